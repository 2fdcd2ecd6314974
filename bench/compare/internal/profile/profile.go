// Package profile shows where the processor time of a request goes. It takes profiles of
// benchmarks of internal/server.
package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/svg"
)

// profiled are the loads whose requests are taken apart: benchmarks of
// internal/server, and how often each runs.
var profiled = []struct {
	name, benchmark string
	requests        int
}{
	{"GET 1 × 1", "BenchmarkGet/1x1$", 200_000},
	{"GET 50 × 1", "BenchmarkGet/50x1$", 300_000},
	{"GET 50 × 16", "BenchmarkGet/50x16$", 1_500_000},
	{"SET 50 × 1", "BenchmarkSet/50x1$", 200_000},
	{"SET 50 × 16", "BenchmarkSet/50x16$", 500_000},
}

// room is a part of the server in which a request's time is spent.
type room struct {
	name, color string
	frames      []string // parts of the names of functions that belong to it
}

// rooms are asked in this order about each function of a stack, the innermost
// first, so system calls are found before their callers.
var rooms = []room{
	{"read system call", "#1f4e79", []string{"transport.readOnce", "transport.readNow"}},
	{"write system call", "#4a90c2", []string{"transport.writeOnce", "transport.writeNow"}},
	{"MQTT: decode", "#b8860b", []string{"mqtt.Split", "mqtt.(*", "protocol.Parse"}},
	{"MQTT: encode", "#e0b040", []string{"internal/mqtt.", "internal/protocol."}},
	{"store: service and rules", "#0b6e4f", []string{"internal/service.", "internal/engine.", "internal/statestore.", "github.com/holdfast-mqtt/holdfast/hlc."}},
	{"broker and transport", "#5fb58c", []string{"internal/broker.", "internal/topic.", "internal/transport."}},
	{"journal: the log and its fsync", "#8e5572", []string{"internal/wal.", "linuxFile).SyncData"}},
	{"journal: rows, and Pebble", "#c79bb0", []string{"internal/journal.", "cockroachdb/pebble"}},
}

// elsewhere is what no function of the server's accounts for.
var elsewhere = room{name: "Go's scheduler, poller and collector", color: "#9aa5b1"}

// neither is a function that reading and writing have in common: its caller tells.
var neither = []string{"transport.callNow"}

// generator are functions of the benchmark's client, whose time isn't a request's.
var generator = []string{"server.(*wire)", "server.benchmarkRequests", "server.request", "server.dialWire"}

// roomOf says where a stack, innermost function first, spends its time; ok is
// false if that is in the load generator.
func roomOf(stack []string) (name string, ok bool) {
	found := elsewhere.name
	for _, function := range stack {
		if containsAny(function, generator) {
			return "", false
		}
		if found != elsewhere.name || containsAny(function, neither) {
			continue
		}
		for _, r := range rooms {
			if containsAny(function, r.frames) {
				found = r.name
				break
			}
		}
	}
	return found, true
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// spent is what the requests of one load cost, by room, in ns each.
type spent struct {
	load  string
	rooms map[string]float64
}

func (s *spent) total() (ns float64) {
	for _, v := range s.rooms {
		ns += v
	}
	return ns
}

// Loads takes each load's CPU profile and draws where the time goes.
// repository is Holdfast's, dir is where the benchmarks write, out where the report goes.
func Loads(ctx context.Context, repository, dir, out string, quick bool) error {
	work, err := os.MkdirTemp(dir, "holdfast-profile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	binary := filepath.Join(work, "server.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "./internal/server")
	build.Dir = repository
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c ./internal/server: %w: %s", err, process.FirstLine(string(text)))
	}
	var all []spent
	for _, p := range profiled {
		requests := p.requests
		if quick {
			requests /= 20
		}
		file := filepath.Join(work, "cpu.pprof")
		run := exec.CommandContext(ctx, binary, "-test.run=^$", "-test.bench="+p.benchmark, fmt.Sprintf("-test.benchtime=%dx", requests), "-test.cpuprofile="+file)
		run.Dir = work
		run.Env = append(os.Environ(), "TMPDIR="+work) // the journal's disk
		if text, err := run.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", p.benchmark, err, text)
		}
		traces, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-unit=ns", "-traces", file).Output()
		if err != nil {
			return fmt.Errorf("go tool pprof: %w", err)
		}
		s := spent{p.name, map[string]float64{}}
		if err := s.add(traces, requests); err != nil {
			return err
		}
		log.Printf("%-12s %6.0f ns of processor time a request", s.load, s.total())
		all = append(all, s)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	text := profileTable(all)
	fmt.Print(text)
	return errors.Join(
		os.WriteFile(filepath.Join(out, "profile.md"), []byte(text), 0o644),
		os.WriteFile(filepath.Join(out, "profile.svg"), profileChart(all), 0o644))
}

// add adds the stacks that "go tool pprof -traces -unit=ns" prints: after each
// rule of dashes a sample's value and its functions, the innermost first.
func (s *spent) add(traces []byte, requests int) error {
	samples := 0
	for block := range strings.SplitSeq(string(traces), "-----------+") {
		_, block, _ = strings.Cut(block, "\n")
		var ns float64
		var stack []string
		for line := range strings.Lines(block) {
			f := strings.Fields(line)
			if len(f) == 0 {
				continue
			}
			if len(stack) == 0 {
				if n, _ := fmt.Sscanf(f[0], "%fns", &ns); n != 1 || len(f) < 2 {
					break
				}
				f = f[1:]
			}
			stack = append(stack, f[0])
		}
		if len(stack) == 0 {
			continue
		}
		samples++
		if name, ok := roomOf(stack); ok {
			s.rooms[name] += ns / float64(requests)
		}
	}
	if samples == 0 {
		return errors.New("go tool pprof printed no stacks")
	}
	return nil
}

func profileRooms() []room { return append(append([]room(nil), rooms...), elsewhere) }

// profileTable writes the figures as Markdown.
func profileTable(all []spent) string {
	var b strings.Builder
	var here report.Report
	here.DescribeMachine()
	fmt.Fprintf(&b, "Written by `go run -C bench/compare . -profile`: %s, %s, %s. Nanoseconds of processor time a request.\n\n", here.Date, here.Machine, here.Go)
	b.WriteString("| where |")
	rule := "|---|"
	for _, s := range all {
		fmt.Fprintf(&b, " %s |", s.load)
		rule += "--:|"
	}
	b.WriteString("\n" + rule + "\n")
	for _, r := range profileRooms() {
		fmt.Fprintf(&b, "| %s |", r.name)
		for _, s := range all {
			fmt.Fprintf(&b, " %.0f |", s.rooms[r.name])
		}
		b.WriteString("\n")
	}
	b.WriteString("| **all** |")
	for _, s := range all {
		fmt.Fprintf(&b, " **%.0f** |", s.total())
	}
	b.WriteString("\n")
	return b.String()
}

// profileChart draws a bar for each load, and a key below.
func profileChart(all []spent) []byte {
	const left, barTop, barTall, step, width = 110, 60, 30, 46, 760
	keyTop := barTop + step*len(all) + 14
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`+"\n", report.ChartWidth+60, keyTop+20*(len(rooms)+2)/2+10)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	svg.Text(&b, 10, 24, "start", "bold", "Where a request's processor time goes")
	svg.Text(&b, 10, 44, "start", "normal", "each bar is one load's whole; the figure at its end is the nanoseconds of a request")
	for i, s := range all {
		y, x, total := barTop+step*i, float64(left), s.total()
		svg.Text(&b, left-10, y+20, "end", "bold", s.load)
		for _, r := range profileRooms() {
			share := s.rooms[r.name] / total
			w := share * width
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#fff"/>`+"\n", x, y, w, barTall, r.color)
			if share >= 0.05 {
				fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#fff" stroke="#1f2933" stroke-width="2.5" paint-order="stroke">%.0f%%</text>`+"\n", x+w/2, y+20, share*100)
			}
			x += w
		}
		svg.Text(&b, left+width+8, y+20, "start", "normal", fmt.Sprintf("%.0f ns", total))
	}
	for i, r := range profileRooms() {
		x, y := left+(i%2)*380, keyTop+20*(i/2)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="14" height="14" fill="%s"/>`+"\n", x, y, r.color)
		svg.Text(&b, x+20, y+12, "start", "normal", r.name)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
