// Package consistentprom counts and measures processors of package consistent with
// Prometheus. It is a package of its own so that programs without Prometheus don't
// depend on it.
//
//	metrics, err := consistentprom.New(prometheus.DefaultRegisterer)
//	…
//	p, err := consistent.New(conn, "range", consistent.WithMetrics(metrics))
//
// The metrics, with the labels processor and handler:
//
//	consistent_messages_processed_total    effects committed in this process
//	consistent_duplicates_replayed_total   duplicates processed again, to publish the same outputs
//	consistent_duplicates_confirmed_total  duplicates of which nothing was left to do
//	consistent_conflicts_total             STOREs that came too late
//	consistent_retries_total               attempts that failed and were made again
//	consistent_dead_letters_total          messages published to the dead-letter topic
//	consistent_dead_letters_unkept_total   those of them that could not be kept in the store
//	consistent_non_deterministic_total     replays whose outputs differed
//	consistent_backpressure_total          times when the server had to queue messages, because the processor had as many as it takes
//	consistent_step_seconds                histogram, with the label step: load, handle, store, publish
package consistentprom

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-mqtt/holdfast/consistent"
)

// New registers the metrics, or finds those that an earlier New has registered there.
// Any number of processors may share them.
func New(registerer prometheus.Registerer) (consistent.Metrics, error) {
	if registerer == nil {
		return nil, errors.New("consistentprom: the registerer is nil: give one, for example prometheus.DefaultRegisterer")
	}
	m := &metrics{}
	labels := []string{"processor", "handler"}
	for c, d := range counters {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "consistent", Name: d.name, Help: d.help}, labels)
		if err := register(registerer, &vec); err != nil {
			return nil, fmt.Errorf("consistentprom: %w", err)
		}
		m.counters[c] = vec
	}
	m.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "consistent", Name: "step_seconds", Help: "Time that one step of a message took: load, handle, store, publish, commit.",
		Buckets: prometheus.ExponentialBuckets(50e-6, 4, 10),
	}, append(labels, "step"))
	if err := register(registerer, &m.seconds); err != nil {
		return nil, fmt.Errorf("consistentprom: %w", err)
	}
	return m, nil
}

type metrics struct {
	counters [len(counters)]*prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// counters are the counters, by their consistent.Counter.
var counters = [...]struct{ name, help string }{
	consistent.CountProcessed:        {"messages_processed_total", "Messages whose effects were committed in this process."},
	consistent.CountReplayed:         {"duplicates_replayed_total", "Duplicates that were processed again to publish the same outputs."},
	consistent.CountConfirmed:        {"duplicates_confirmed_total", "Duplicates of which nothing was left to do."},
	consistent.CountConflict:         {"conflicts_total", "STOREs and transactions that came too late because another instance had changed the state."},
	consistent.CountRetry:            {"retries_total", "Attempts that failed and were made again."},
	consistent.CountDeadLetter:       {"dead_letters_total", "Messages that were published to the dead-letter topic."},
	consistent.CountNonDeterministic: {"non_deterministic_total", "Replays whose outputs were not those of the first processing."},
	consistent.CountUnkept:           {"dead_letters_unkept_total", "Dead letters that were published and could not be kept in the store."},
	consistent.CountLoaded:           {"states_loaded_total", "States of keys that were not at hand and were loaded."},
	consistent.CountEvicted:          {"states_evicted_total", "States of keys that were at hand and had to make room for others."},
	consistent.CountBackpressure:     {"backpressure_total", "Times when as many messages were being processed as the server sends without an acknowledgement."},
}

// Count implements consistent.Metrics. A counter of a newer package consistent is left out.
func (m *metrics) Count(processor, handler string, c consistent.Counter) {
	if int(c) < len(m.counters) {
		m.counters[c].WithLabelValues(processor, handler).Inc()
	}
}

// Observe implements consistent.Metrics.
func (m *metrics) Observe(processor, handler string, s consistent.Step, took time.Duration) {
	m.seconds.WithLabelValues(processor, handler, s.String()).Observe(took.Seconds())
}

// register registers a collector, or puts the one that is registered already in its place.
func register[C prometheus.Collector](registerer prometheus.Registerer, c *C) error {
	err := registerer.Register(*c)
	var before prometheus.AlreadyRegisteredError
	if errors.As(err, &before) {
		if former, ok := before.ExistingCollector.(C); ok {
			*c = former
			return nil
		}
	}
	return err
}
