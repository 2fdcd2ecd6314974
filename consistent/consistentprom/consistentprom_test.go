package consistentprom_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistentprom"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// gather gives the metrics by name and the values of their labels, the step's time as
// how often it was measured.
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

func TestMetricsOfAProcessor(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	metrics, err := consistentprom.New(registry)
	if err != nil {
		t.Fatal(err)
	}
	again, err := consistentprom.New(registry) // finds what is registered, and counts on
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range []consistent.Metrics{metrics, again} {
		test := consistenttest.New(t, "sum", func(p *consistent.Processor) {
			_ = consistent.Handle(p, "in", func(int) string { return "k" }, func(_ *consistent.Context, s, n int) (int, []consistent.Message, error) {
				return s + n, []consistent.Message{consistent.JSON("out", s+n)}, nil
			})
		}, consistent.WithMetrics(m))
		test.Send(consistenttest.Event(string(rune('a'+i)), consistent.JSON("in", 1)))
		test.Send(consistent.JSON("in", 1)) // has no identity
	}
	got := gather(t, registry)
	for name, want := range map[string]float64{
		"consistent_messages_processed_total handler=sum processor=sum":  2,
		"consistent_dead_letters_total handler=sum processor=sum":        2,
		"consistent_step_seconds handler=sum processor=sum step=load":    2,
		"consistent_step_seconds handler=sum processor=sum step=handle":  2,
		"consistent_step_seconds handler=sum processor=sum step=commit":  2,
		"consistent_step_seconds handler=sum processor=sum step=publish": 2,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v; all: %v", name, got[name], want, got)
		}
	}
}

func TestEveryCounterHasItsMetric(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	metrics, err := consistentprom.New(registry)
	if err != nil {
		t.Fatal(err)
	}
	counters := consistent.Counter(0)
	for ; !strings.HasPrefix(counters.String(), "counter "); counters++ {
		metrics.Count("p", "h", counters)
	}
	metrics.Count("p", "h", counters) // one that there is not: nothing happens
	metrics.Observe("p", "h", consistent.StepLoad, time.Second)
	got := gather(t, registry)
	if len(got) != int(counters)+1 {
		t.Errorf("%d counters, %d metrics: %v", counters, len(got), got)
	}
	for name, n := range got {
		if n != 1 {
			t.Errorf("%s is %v", name, n)
		}
	}
}

func TestBadRegisterer(t *testing.T) {
	t.Parallel()
	if _, err := consistentprom.New(nil); err == nil || !strings.Contains(err.Error(), "prometheus.DefaultRegisterer") {
		t.Error(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "consistent_conflicts_total", Help: "of something else"}))
	if _, err := consistentprom.New(registry); err == nil {
		t.Error("another metric has the name")
	}
}
