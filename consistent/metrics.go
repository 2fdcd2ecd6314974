package consistent

import (
	"fmt"
	"time"
)

// Metrics gets what processors count and measure, with the names of the processor and
// the handler. Package consistentprom has one for Prometheus. Its methods are called by
// many goroutines at once, for each message, and must not block.
type Metrics interface {
	// Count adds one to a counter.
	Count(processor, handler string, c Counter)
	// Observe records how long a step of a message took.
	Observe(processor, handler string, s Step, took time.Duration)
}

// Counter is what is counted.
type Counter uint8

const (
	// CountProcessed: a message's effects are committed.
	CountProcessed Counter = iota
	// CountReplayed: a duplicate was processed again, to publish the same outputs.
	CountReplayed
	// CountConfirmed: a duplicate came after all of its outputs were published.
	CountConfirmed
	// CountConflict: a STORE or a transaction was too late, because another instance had changed the state.
	CountConflict
	// CountRetry: an attempt failed, and is made again.
	CountRetry
	// CountDeadLetter: a message was published to the dead-letter topic.
	CountDeadLetter
	// CountNonDeterministic: the outputs of a replay were not those of the first processing.
	CountNonDeterministic
	// CountUnkept: a dead letter was published and not kept in the store, because it had no
	// room or was not allowed.
	CountUnkept
	// CountBackpressure: as many messages as the server sends without an acknowledgement
	// were being processed, so the server queues those that come; once its queue is full,
	// it refuses publishes to the processor's topics. The handler is empty.
	CountBackpressure
	// CountLoaded: the state of a key was not at hand, or not known to be that which a message
	// is to be processed on, and was loaded.
	CountLoaded
	// CountEvicted: the state of a key was at hand, and had to make room for others. See
	// [WithStatesAtHand].
	CountEvicted
)

var counterNames = [...]string{"processed", "replayed", "confirmed", "conflict", "retry", "dead letter", "non-deterministic", "unkept dead letter", "backpressure", "loaded", "evicted"}

// String names the counter, for example "processed".
func (c Counter) String() string {
	if int(c) < len(counterNames) {
		return counterNames[c]
	}
	return fmt.Sprintf("counter %d", c)
}

// Step is a step of processing a message.
type Step uint8

const (
	StepLoad    Step = iota // LOAD
	StepHandle              // the handler
	StepStore               // STORE
	StepPublish             // publishing the outputs, until the last PUBACK
	StepCommit              // the transaction with the state and the outputs of one message, or of several
)

var stepNames = [...]string{"load", "handle", "store", "publish", "commit"}

// String names the step: "load", "handle", "store", "publish" or "commit".
func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return fmt.Sprintf("step %d", s)
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) Count(_, _ string, _ Counter)                 {}
func (noMetrics) Observe(_, _ string, _ Step, _ time.Duration) {}

func (p *Processor) count(f *task, c Counter) { p.o.metrics.Count(p.o.name, f.Handler, c) }

// timed observes how long a step of a message takes.
func (p *Processor) timed(f *task, s Step, do func() error) error {
	start := time.Now()
	err := do()
	p.observe(f, s, start)
	return err
}

func (p *Processor) observe(f *task, s Step, start time.Time) {
	p.o.metrics.Observe(p.o.name, f.Handler, s, time.Since(start))
}
