package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// result is what --json prints.
type result struct {
	Load     string   `json:"load"`
	Clients  int      `json:"clients"`
	Inflight int      `json:"inflight"`
	Bytes    int      `json:"bytes"`
	QoS      *int     `json:"qos,omitempty"`
	Seconds  float64  `json:"seconds"`
	Results  []figure `json:"results"`
}

// figure is one line of the table. Times are in milliseconds.
type figure struct {
	What      string  `json:"what"`
	Count     int64   `json:"count"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P90       float64 `json:"p90_ms"`
	P99       float64 `json:"p99_ms"`
	P999      float64 `json:"p99_9_ms"`
	Max       float64 `json:"max_ms"`
}

// report prints the result, as a table or as JSON.
func (l *load) report(out io.Writer, all []*timings, took time.Duration) error {
	r := result{Load: l.kind, Clients: l.clients, Inflight: l.inflight, Bytes: l.size, Seconds: took.Seconds()}
	if l.kind == "pub" {
		r.QoS = &l.qos
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for _, t := range all {
		n := t.count.Load()
		if n == 0 {
			return errNone
		}
		r.Results = append(r.Results, figure{
			What: t.name, Count: n, PerSecond: float64(n) / took.Seconds(),
			P50: ms(t.percentile(500)), P90: ms(t.percentile(900)), P99: ms(t.percentile(990)), P999: ms(t.percentile(999)), Max: ms(time.Duration(t.longest.Load())),
		})
	}
	if l.json {
		return json.NewEncoder(out).Encode(r)
	}
	fmt.Fprintf(out, "%s: %d clients, %d under way each, %d bytes", l.kind, l.clients, l.inflight, l.size)
	if r.QoS != nil {
		fmt.Fprintf(out, ", QoS %d", l.qos)
	}
	fmt.Fprintf(out, ", %.1f s\n\n", took.Seconds())
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tcount\tper second\tp50 ms\tp90 ms\tp99 ms\tp99.9 ms\tmax ms\t")
	for _, f := range r.Results {
		fmt.Fprintf(table, "%s\t%d\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t\n", f.What, f.Count, f.PerSecond, f.P50, f.P90, f.P99, f.P999, f.Max)
	}
	return table.Flush()
}

// progress is a line on a terminal that shows how a run goes. On anything else nothing is
// shown.
type progress struct {
	out        io.Writer
	stop, done chan struct{}
}

// progressInterval is how often the line is written again.
const progressInterval = 250 * time.Millisecond

func startProgress(out io.Writer, kind string, t *timings, duration time.Duration) *progress {
	p := &progress{out: out, stop: make(chan struct{}), done: make(chan struct{})}
	if !output.IsTerminal(out) {
		close(p.done)
		return p
	}
	began := time.Now()
	go func() {
		defer close(p.done)
		again := time.NewTicker(progressInterval)
		defer again.Stop()
		for before, at := int64(0), began; ; {
			select {
			case <-p.stop:
				fmt.Fprint(p.out, "\r\x1b[K")
				return
			case now := <-again.C:
				n := t.count.Load()
				fmt.Fprintf(p.out, "\r%s: %.0f s of %.0f s, %d done, %.0f a second\x1b[K", kind, now.Sub(began).Seconds(), duration.Seconds(), n, float64(n-before)/max(now.Sub(at).Seconds(), 0.001))
				before, at = n, now
			}
		}
	}()
	return p
}

// end erases the line.
func (p *progress) end() {
	close(p.stop)
	<-p.done
}
