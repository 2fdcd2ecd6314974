// Command compare measures Holdfast and its alternatives on one machine, in one
// session, with the servers taking turns:
//
//	go run -C bench/compare .          (from the repository's root; under 15 minutes)
//	go run -C bench/compare . -quick   (one short round of everything, for checking that it works)
//	go run -C bench/compare . -profile (where a request's time goes, drawn; under a minute)
//
// It builds Holdfast and the servers below server/, starts them and what Debian
// has (mosquitto, redis-server) on 127.0.0.1, loads them, and ends each by its
// process ID. A server that is not installed is skipped and named. The load generator is this
// process: it encodes beforehand and parses no more than it must, but it shares
// the cores with the servers, so the servers' processor time per million
// requests is the fair figure and requests per second the familiar one.
//
// The report goes to docs/performance: compare.json, compare.md and a chart.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bench is one run.
type bench struct {
	lab       *laboratory
	report    *Report
	roundTime time.Duration
	quick     bool
	flood     string // part of the names of the floods to measure
}

// works are the parts of a run, in order.
var works = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"requests", (*bench).requests},
	{"tls", (*bench).overTLS},
	{"policy", (*bench).policy},
	{"routing", (*bench).routingWork},
	{"idle", (*bench).idle},
	{"notify", (*bench).notify},
	{"greedy", (*bench).greedy},
	{"retained", (*bench).retained},
	{"keys", (*bench).manyKeys},
	{"processors", (*bench).processors},
}

func main() {
	quick := flag.Bool("quick", false, "one short round of everything, with small numbers; writes no report unless -out is given")
	out := flag.String("out", "", "`DIR` for the report (default docs/performance of the repository)")
	only := flag.String("only", "", "comma-separated parts: "+workNames())
	servers := flag.String("servers", "", "comma-separated parts of the names of the servers to measure (default all)")
	flood := flag.String("flood", "", "of the part greedy, only the floods whose names contain `TEXT`")
	rounds := flag.Int("rounds", 5, "rounds of each measurement")
	seconds := flag.Float64("seconds", 0.4, "length of a round")
	dir := flag.String("dir", os.TempDir(), "`DIR` on the disk that is to be measured")
	binary := flag.String("holdfast", "", "`FILE` to measure as Holdfast, instead of one built from this repository")
	profiles := flag.Bool("profile", false, "instead of comparing, profile the server and draw where a request's time goes: profile.svg and profile.md")
	asBystanders := flag.String(bystandersFlag, "", "instead of comparing, be clients of the server at `ADDR` until the input ends: what a run starts beside notifications")
	floodOf := flag.String(floodFlag, "", "instead of comparing, be the clients of the flood -flood at the server at `ADDR`: what a run starts beside the part greedy")
	floodWeb := flag.String(webFlag, "", "the server's `ADDR` for WebSocket")
	floodYields := flag.Bool(yieldingFlag, false, "leave the processors to all other processes")
	flag.Parse()
	if *asBystanders != "" {
		exit(beBystanders(*asBystanders))
		return
	}
	if *floodOf != "" {
		exit(beFlood(&target{kind: kindOf(bareLoop), addr: *floodOf, webSocket: *floodWeb}, *flood, *floodYields))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *profiles {
		exit(profile(ctx, *dir, *out, *quick))
		return
	}
	b := &bench{report: &Report{Rounds: *rounds, RoundSeconds: *seconds}, quick: *quick, flood: *flood}
	if *quick {
		b.report.Rounds, b.report.RoundSeconds = 1, 0.3
	}
	b.roundTime = time.Duration(b.report.RoundSeconds * float64(time.Second))
	exit(b.run(ctx, *dir, *out, *binary, split(*only), split(*servers)))
}

// exit ends the process if there is an error.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// split takes a comma-separated list apart; nil if there is none.
func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func workNames() string {
	var names []string
	for _, w := range works {
		names = append(names, w.name)
	}
	return strings.Join(names, ", ")
}

func (b *bench) run(ctx context.Context, dir, out, binary string, only, servers []string) error {
	repository, err := findRepository()
	if err != nil {
		return err
	}
	if out == "" && !b.quick {
		out = filepath.Join(repository, "docs/performance")
	}
	work, err := os.MkdirTemp(dir, "holdfast-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	warnAboutMemoryDisk(work)
	b.lab = &laboratory{repository: repository, dir: work, built: map[string]string{}, versions: map[string]string{}, skipped: map[string]string{}, only: servers}
	if binary != "" {
		if b.lab.built[holdfastPackage], err = filepath.Abs(binary); err != nil {
			return err
		}
	}
	b.report.describeMachine()
	start := time.Now()
	logf("building")
	if err := b.lab.prepare(ctx); err != nil {
		return err
	}
	for _, w := range works {
		if len(only) > 0 && !slices.Contains(only, w.name) {
			continue
		}
		logf("== %s (%.0f s)", w.name, time.Since(start).Seconds())
		if err := w.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	r := b.report
	r.Elapsed = time.Since(start).Seconds()
	r.Versions, r.Skipped, r.Durability = b.lab.versions, b.lab.skipped, map[string]string{}
	for _, k := range kinds {
		r.Durability[k.name] = k.durability
	}
	r.Goals = r.goals()
	fmt.Print(r.markdown())
	if out == "" {
		return nil
	}
	return r.write(out)
}

// write writes the report's files.
func (r *Report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := r.json()
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, "compare.json"), data, 0o644),
		os.WriteFile(filepath.Join(dir, "compare.md"), []byte(r.markdown()), 0o644),
		os.WriteFile(filepath.Join(dir, "compare.svg"), r.chart(), 0o644))
}

// findRepository looks upwards for Holdfast's own module.
func findRepository() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		b, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(b), "module github.com/holdfast-mqtt/holdfast\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("run this inside Holdfast's repository")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// warnAboutMemoryDisk says so if an fsync would cost nothing.
func warnAboutMemoryDisk(dir string) {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
		logf("warning: %s is in memory, so an fsync costs nothing there: choose another with -dir", dir)
	}
}

func (b *bench) shapes() []shape {
	if b.quick {
		return []shape{{1, 1, 64}, {50, 1, 64}, {50, 16, 64}, {200, 1, 64}, {50, 16, 4096}}
	}
	return shapes
}
