// Package metrics shows what the server's packages count to Prometheus. Each figure is
// read when it is asked for, so it costs nothing until then. docs/metrics.md is made of
// the same list.
//
// The server package calls it. It counts nothing itself.
package metrics

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-mqtt/holdfast/internal/auth"
	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/broker/principals"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/front"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/service"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

// Sources are the packages whose figures are shown. All but Login are needed, and stay
// readable until the server has ended.
type Sources struct {
	Broker  *broker.Broker
	Engine  *engine.Local
	Service *service.Service
	Journal *journal.Journal
	Memory  *memory.Pool        // nil: the machine does not say how much there is
	Login   *auth.Authenticator // nil: clients are not asked who they are
	Bridges []*bridge.Link
	API     func() *httpapi.API // gives nil while there is none

	Version     string
	Started     time.Time
	Maximum     int64 // bytes of memory that the process may take; 0: unknown
	Descriptors int   // that the process may have open; 0: unknown
	Handshakes  func() (under, ended int64)
	TurnedAway  func() int64 // connections closed for lack of descriptors
	Cluster     *Cluster     // the node of a cluster that the server runs on; nil: it is by itself
	// Spans says how many spans the collector has taken, how many found no room in their queue,
	// and how many the collector has not taken; nil: there are none.
	Spans func() (sent, dropped, failed int64)
}

// moment is what is read once for an answer.
type moment struct {
	*Sources
	levels  broker.Levels
	held    principals.Figures
	store   engine.Stats
	stats   *broker.Stats
	queued  [2]int64 // bounds of bytes: of one queue, of all
	journal journal.Figures
	cluster *clusterMoment // nil: the server is by itself
	front   *front.Figures // of a front, which has nothing else
}

// family is one metric with all its labels.
type family struct {
	name   string
	kind   prometheus.ValueType // of one that has a value
	labels []string
	help   string
	azure  string // the metric of the Azure broker that means the same; empty: none does
	// values calls emit for each combination of labels.
	values func(m *moment, emit func(v float64, labels ...string))
	// histograms is instead of values: unit is what a value is divided by.
	histograms func(m *moment, emit func(h histogram.Snapshot, unit float64, labels ...string))
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// families are all metrics, in the order of docs/metrics.md.
var families = slices.Concat(ofServer, ofNode)

// one is for a family without labels.
func one(value func(m *moment) int64) func(*moment, func(float64, ...string)) {
	return func(m *moment, emit func(float64, ...string)) { emit(float64(value(m))) }
}

// ofWebhook is for a family of the webhook, if there is one.
func ofWebhook(values func(f *webhook.Figures, emit func(float64, ...string))) func(*moment, func(float64, ...string)) {
	return func(m *moment, emit func(float64, ...string)) {
		if m.Login != nil && m.Login.Webhook() != nil {
			f := m.Login.Webhook().Figures()
			values(&f, emit)
		}
	}
}

// Collector gives the metrics to a prometheus.Registry.
type Collector struct {
	now      func() *moment
	families []family
	descs    []*prometheus.Desc
}

// New makes a Collector.
func New(s Sources) *Collector {
	all := ofServer
	if s.Cluster != nil {
		all = families
	}
	return collect(all, func() *moment { return now(&s) })
}

func collect(all []family, now func() *moment) *Collector {
	c := &Collector{now: now, families: all}
	for _, f := range all {
		c.descs = append(c.descs, prometheus.NewDesc(f.name, f.help, f.labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	m := c.now()
	for i := range c.families {
		f, desc := &c.families[i], c.descs[i]
		if f.histograms != nil {
			f.histograms(m, func(h histogram.Snapshot, unit float64, labels ...string) {
				out <- prometheus.MustNewConstHistogram(desc, uint64(h.Count), float64(h.Sum)/unit, bucketsOf(h, unit), labels...)
			})
			continue
		}
		f.values(m, func(v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(desc, f.kind, v, labels...)
		})
	}
}

// now reads what is read once.
func now(s *Sources) *moment {
	m := &moment{Sources: s, levels: s.Broker.Levels(), held: s.Broker.Sessions.Principals.Figures(), store: s.Engine.Stats(), stats: s.Broker.Stats(), journal: s.Journal.Figures()}
	m.queued[0], m.queued[1] = s.Broker.QueueBounds()
	if s.Cluster != nil {
		m.cluster = s.Cluster.now()
	}
	return m
}

// Read gives the metrics of the server as they are now, for a program that speaks no Prometheus:
// each sum over all labels by its name, and each sum over all but the first label by name, blank
// and that label's value. Histograms are added up over all labels.
func Read(s Sources) (values map[string]float64, times map[string]histogram.Snapshot) {
	m := now(&s)
	values, times = map[string]float64{}, map[string]histogram.Snapshot{}
	for i := range ofServer {
		f := &ofServer[i]
		if f.histograms != nil {
			f.histograms(m, func(h histogram.Snapshot, _ float64, _ ...string) {
				sum := times[f.name]
				sum.Add(&h)
				times[f.name] = sum
			})
			continue
		}
		f.values(m, func(v float64, labels ...string) {
			values[f.name] += v
			if len(labels) > 0 {
				values[f.name+" "+labels[0]] += v
			}
		})
	}
	return values, times
}

// Fill calls judge for each bound that a metric shows, NAME beside NAME_max, and returns what
// it says, in the order of the metrics. It leaves out what has no bound.
func Fill[Judged any](s Sources, judge func(help string, used, bound float64) Judged) (all []Judged) {
	m, single := now(&s), map[string]float64{}
	for _, f := range ofServer {
		if f.values != nil && len(f.labels) == 0 {
			f.values(m, func(v float64, _ ...string) { single[f.name] = v })
		}
	}
	for _, f := range ofServer {
		stem, bytes := strings.CutSuffix(f.name, "_bytes")
		for _, name := range []string{f.name + "_max", stem + "_max_bytes"} {
			if bound := single[name]; bound > 0 && (bytes || name == f.name+"_max") {
				all = append(all, judge(f.help, single[f.name], bound))
			}
		}
	}
	return all
}

func bucketsOf(h histogram.Snapshot, unit float64) map[float64]uint64 {
	buckets := make(map[float64]uint64, len(h.Bounds))
	for i, bound := range h.Bounds {
		buckets[float64(bound)/unit] = uint64(h.Cumulative[i])
	}
	return buckets
}

// Handler serves the metrics, with those of the process and of Go's runtime.
func Handler(s Sources) http.Handler { return serve(New(s)) }

// qos are the labels of MQTT's qualities of service.
var qos = [...]string{"0", "1", "2"}

// api gives the HTTP API; nil: there is none.
func (m *moment) api() *httpapi.API {
	if m.API == nil {
		return nil
	}
	return m.API()
}
