package service

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Stats counts requests since the start.
type Stats struct {
	Commands  [statestore.Verbs][outcomes]atomic.Int64 // executed, by verb and Outcome; verb 0: none could be read
	Ignored   atomic.Int64                             // requests at QoS 0 or from MQTT 3.1.1, which can't be answered
	Malformed atomic.Int64                             // requests refused in their PUBACK
	Expired   atomic.Int64                             // requests that expired before they were executed
	Exceeded  [statestore.Bounds]atomic.Int64          // requests answered with the quota error, by what they have run into
	Notices   atomic.Int64                             // notifications given to connections

	TxnCommitted atomic.Int64 // TXNs that were carried out
	TxnRepeated  atomic.Int64 // TXNs whose ONCE was remembered already
	TxnUnmet     atomic.Int64 // TXNs of which a condition was not met
	TxnRefused   atomic.Int64 // TXNs answered with an error

	// Latency is the time in ns from a command to its answer, of a write until it is
	// durable, by verb; of each sampleEvery-th command of a connection.
	Latency [statestore.Verbs]*histogram.Histogram
}

// Requests is how many commands were executed.
func (s *Stats) Requests() (n int64) {
	for v := range s.Commands {
		for o := range s.Commands[v] {
			n += s.Commands[v][o].Load()
		}
	}
	return n
}

// OverQuota is how many requests were answered with the quota error.
func (s *Stats) OverQuota() (n int64) {
	for b := range s.Exceeded {
		n += s.Exceeded[b].Load()
	}
	return n
}

// Outcome is what came of a command.
type Outcome byte

// The outcomes.
const (
	Done   Outcome = iota // it did what it says
	Missed                // no such key, or a condition was not met
	Quota                 // it was refused at a bound
	Denied                // the policy does not allow it
	Faulty                // it was answered with another error
	outcomes
)

func (o Outcome) String() string {
	return [...]string{"ok", "missed", "quota", "denied", "error"}[o]
}

// outcomeOf is the outcome that a reply tells of.
func outcomeOf(r *statestore.Reply) Outcome {
	switch {
	case r.Bound != statestore.NoBound:
		return Quota
	case r.Kind == statestore.Error && r.Fault == statestore.NotAuthorized:
		return Denied
	case r.Kind == statestore.Error:
		return Faulty
	case r.Kind == statestore.NotApplied, r.Kind == statestore.Nil, r.Kind == statestore.Conflict,
		r.Kind == statestore.Transacted && r.Count != statestore.Committed && r.Count != statestore.AlreadyDone:
		return Missed
	}
	return Done
}

// sampleEvery is how many commands of a connection come to one whose time is taken: to ask
// the clock for each would cost more than counting it.
const sampleEvery = 64

// samples are commands whose time is being taken while they wait for the disk. There are
// few, so that they cost nothing: without a free one a command goes without.
type samples struct {
	all  [64]sample
	free atomic.Uint64 // a bit for each that is free
}

// sample implements journal.Waiter.
type sample struct {
	of    *samples
	index int
	began time.Time
	into  *histogram.Histogram
}

func (s *samples) init() {
	for i := range s.all {
		s.all[i].of, s.all[i].index = s, i
	}
	s.free.Store(^uint64(0))
}

// take notes the time since a command began, when its batch is durable.
func (s *samples) take(began time.Time, into *histogram.Histogram, batch journal.Seq, await func(journal.Seq, journal.Waiter) bool) {
	if batch == 0 {
		into.Observe(int64(time.Since(began)))
		return
	}
	free := s.free.Load()
	i := bits.TrailingZeros64(free)
	if await == nil || free == 0 || !s.free.CompareAndSwap(free, free&^(1<<i)) {
		return
	}
	one := &s.all[i]
	one.began, one.into = began, into
	if !await(batch, one) {
		one.Durable(batch)
	}
}

// Durable implements journal.Waiter.
func (s *sample) Durable(journal.Seq) {
	s.into.Observe(int64(time.Since(s.began)))
	s.of.free.Or(1 << s.index)
}
