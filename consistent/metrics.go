package consistent

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts by handler. They exist without a registry too, so that the code that
// counts doesn't ask.
type metrics struct {
	processed, duplicates, confirmed, conflicts, retries, deadLetters, nonDeterministic *prometheus.CounterVec
	seconds                                                                             *prometheus.HistogramVec
}

// The steps of a message, as the label of the latency.
const (
	stepLoad    = "load"
	stepHandle  = "handle"
	stepStore   = "store"
	stepPublish = "publish"
)

func newMetrics(processor string, registry prometheus.Registerer) (*metrics, error) {
	labels := prometheus.Labels{"processor": processor}
	var failed error
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "consistent", Name: name, Help: help, ConstLabels: labels}, []string{"handler"})
		return register(registry, c, &failed)
	}
	m := &metrics{
		processed:        counter("messages_processed_total", "Messages whose effects were committed, and whose outputs were published, in this process."),
		duplicates:       counter("duplicates_replayed_total", "Duplicates that were processed again to publish the same outputs."),
		confirmed:        counter("duplicates_confirmed_total", "Duplicates of which nothing was left to do."),
		conflicts:        counter("conflicts_total", "STOREs that came too late because somebody else had changed the state."),
		retries:          counter("retries_total", "Attempts that failed and were made again."),
		deadLetters:      counter("dead_letters_total", "Messages that were published to the dead-letter topic."),
		nonDeterministic: counter("non_deterministic_total", "Replays whose outputs were not those of the first processing."),
	}
	m.seconds = register(registry, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "consistent", Name: "step_seconds", Help: "Time that one step of a message took: load, handle, store, publish.", ConstLabels: labels,
		Buckets: prometheus.ExponentialBuckets(50e-6, 4, 10),
	}, []string{"handler", "step"}), &failed)
	return m, failed
}

// register returns the collector that counts: c, or the one of a former processor of
// the same name.
func register[C prometheus.Collector](registry prometheus.Registerer, c C, failed *error) C {
	if registry == nil {
		return c
	}
	err := registry.Register(c)
	var before prometheus.AlreadyRegisteredError
	if errors.As(err, &before) {
		if former, ok := before.ExistingCollector.(C); ok {
			return former
		}
	}
	if err != nil && *failed == nil {
		*failed = err
	}
	return c
}

// handlerMetrics are one handler's, looked up once.
type handlerMetrics struct {
	processed, duplicates, confirmed, conflicts, retries, deadLetters, nonDeterministic prometheus.Counter
	load, handle, store, publish                                                        prometheus.Observer
}

func (m *metrics) of(handler string) handlerMetrics {
	return handlerMetrics{
		processed: m.processed.WithLabelValues(handler), duplicates: m.duplicates.WithLabelValues(handler),
		confirmed: m.confirmed.WithLabelValues(handler), conflicts: m.conflicts.WithLabelValues(handler),
		retries: m.retries.WithLabelValues(handler), deadLetters: m.deadLetters.WithLabelValues(handler),
		nonDeterministic: m.nonDeterministic.WithLabelValues(handler),
		load:             m.seconds.WithLabelValues(handler, stepLoad), handle: m.seconds.WithLabelValues(handler, stepHandle),
		store: m.seconds.WithLabelValues(handler, stepStore), publish: m.seconds.WithLabelValues(handler, stepPublish),
	}
}

// timed observes how long f takes.
func timed(o prometheus.Observer, f func() error) error {
	start := time.Now()
	err := f()
	o.Observe(time.Since(start).Seconds())
	return err
}
