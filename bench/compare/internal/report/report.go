// Package report holds what a run found, and writes it as JSON, as Markdown and as a chart.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
)

// Figures are one round's, or the medians of all rounds.
type Figures struct {
	PerSecond     float64 `json:"per_second"`
	P50           float64 `json:"p50_us"`
	P99           float64 `json:"p99_us"`
	P999          float64 `json:"p99_9_us"`
	CPUPerMillion float64 `json:"cpu_seconds_per_million"` // of the server's processes
}

// Row is one kind of work by one server.
type Row struct {
	Work   string    `json:"work"`
	Server string    `json:"server"`
	Rounds []Figures `json:"rounds"`
	Median Figures   `json:"median"`
	Failed string    `json:"failed,omitempty"` // why a round, if any, gave no figures
}

// Measure is a single figure.
type Measure struct {
	Work   string  `json:"work"`
	Server string  `json:"server"`
	What   string  `json:"what"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
}

// Report is everything that a run found.
type Report struct {
	Date         string            `json:"date"`
	Machine      string            `json:"machine"`
	Kernel       string            `json:"kernel"`
	Go           string            `json:"go"`
	Rounds       int               `json:"rounds"`
	RoundSeconds float64           `json:"round_seconds"`
	Elapsed      float64           `json:"elapsed_seconds"`
	Versions     map[string]string `json:"versions"`
	Durability   map[string]string `json:"durability"`
	Skipped      map[string]string `json:"skipped"`
	Servers      []string          `json:"-"` // in the order of the table
	Rows         []*Row            `json:"rows"`
	Measures     []Measure         `json:"measures"`
	Goals        []Goal            `json:"goals"`
}

// Row finds or begins a row.
func (r *Report) Row(work, server string) *Row {
	for _, row := range r.Rows {
		if row.Work == work && row.Server == server {
			return row
		}
	}
	row := &Row{Work: work, Server: server}
	r.Rows = append(r.Rows, row)
	return row
}

// Add notes what a round gave.
func (r *Report) Add(work, server string, f Figures, err error) {
	row := r.Row(work, server)
	if err != nil {
		row.Failed = err.Error()
		log.Printf("%-32s %-26s failed: %v", work, server, err)
		return
	}
	log.Printf("%-32s %-26s %9.0f/s  p50 %7.0f  p99 %7.0f  p99.9 %7.0f µs  CPU %6.2f s/M", work, server, f.PerSecond, f.P50, f.P99, f.P999, f.CPUPerMillion)
	row.Rounds = append(row.Rounds, f)
	row.Median = Figures{
		PerSecond:     medianOf(row.Rounds, func(f Figures) float64 { return f.PerSecond }),
		P50:           medianOf(row.Rounds, func(f Figures) float64 { return f.P50 }),
		P99:           medianOf(row.Rounds, func(f Figures) float64 { return f.P99 }),
		P999:          medianOf(row.Rounds, func(f Figures) float64 { return f.P999 }),
		CPUPerMillion: medianOf(row.Rounds, func(f Figures) float64 { return f.CPUPerMillion }),
	}
}

func medianOf(rounds []Figures, of func(Figures) float64) float64 {
	values := make([]float64, len(rounds))
	for i, f := range rounds {
		values[i] = of(f)
	}
	return Median(values)
}

// Median gives the median; 0 of nothing.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Measure notes a single figure; a later one of the same name replaces it.
func (r *Report) Measure(work, server, what string, value float64, unit string) {
	m := Measure{work, server, what, value, unit}
	log.Printf("%-32s %-26s %s: %.4g %s", work, server, what, value, unit)
	for i, old := range r.Measures {
		if old.Work == work && old.Server == server && old.What == what {
			r.Measures[i] = m
			return
		}
	}
	r.Measures = append(r.Measures, m)
}

// Median gives the medians of a row; ok is false if it has no figures.
func (r *Report) Median(work, server string) (Figures, bool) {
	row := r.Row(work, server)
	return row.Median, len(row.Rounds) > 0
}

// Value gives a single figure; ok is false if it was not measured.
func (r *Report) Value(work, server, what string) (float64, bool) {
	for _, m := range r.Measures {
		if m.Work == work && m.Server == server && m.What == what {
			return m.Value, true
		}
	}
	return 0, false
}

// Microseconds gives a duration in µs.
func Microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// FiguresOf sums up a round: what h counted, in elapsed time, at a price of cpu.
func FiguresOf(h *latency.Histogram, elapsed, cpu time.Duration) Figures {
	return Figures{
		PerSecond:     float64(h.Count) / elapsed.Seconds(),
		P50:           Microseconds(h.Percentile(0.5)),
		P99:           Microseconds(h.Percentile(0.99)),
		P999:          Microseconds(h.Percentile(0.999)),
		CPUPerMillion: cpu.Seconds() / float64(max(h.Count, 1)) * 1e6,
	}
}

// DescribeMachine fills in where and when.
func (r *Report) DescribeMachine() {
	r.Date = time.Now().UTC().Format("2006-01-02 15:04 MST")
	r.Go = runtime.Version()
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range bytes.Lines(b) {
			if name, value, ok := bytes.Cut(l, []byte(":")); ok && strings.TrimSpace(string(name)) == "model name" {
				model = strings.TrimSpace(string(value))
			}
		}
	}
	var info syscall.Sysinfo_t
	syscall.Sysinfo(&info)
	r.Machine = fmt.Sprintf("%s, %d cores, %d GiB", model, runtime.NumCPU(), (uint64(info.Totalram)*uint64(info.Unit)+1<<29)>>30)
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Kernel = "Linux " + strings.TrimSpace(string(b))
	}
}

func (r *Report) json() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "  ")
	return append(b, '\n'), err
}

// Goal is a target for a row, with the measured value.
type Goal struct {
	Work     string `json:"work"`
	Goal     string `json:"goal"`
	Measured string `json:"measured"`
	Met      *bool  `json:"met"` // nil: not measured in this run
}

// Write writes the report's files.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := r.json()
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, "compare.json"), data, 0o644),
		os.WriteFile(filepath.Join(dir, "compare.md"), []byte(r.Markdown()), 0o644),
		os.WriteFile(filepath.Join(dir, "compare.svg"), r.chart(), 0o644))
}
