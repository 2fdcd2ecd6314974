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
//
// Below internal/, the packages servers, process and client start what is measured and ask
// it; load and latency measure a closed loop of requests; requests, routing, idle, notify,
// greedy, retained and processors are the kinds of work; report and goals are what comes of
// a run. Package profile is for -profile alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/bystanders"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/cluster"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/goals"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/greedy"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/idle"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/notify"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/processors"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/profile"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/requests"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/retained"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/routing"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

// part is a kind of work.
type part struct {
	name string
	run  func(context.Context, *work.Run) error
}

// parts are those of a run, in order. Of the floods of the part greedy, those whose names
// contain flood are measured.
func parts(flood string) []part {
	return []part{
		{"requests", requests.Measure},
		{"tls", requests.OverTLS},
		{"policy", requests.UnderPolicy},
		{"routing", routing.Measure},
		{"idle", idle.Measure},
		{"notify", notify.Measure},
		{"greedy", func(ctx context.Context, r *work.Run) error { return greedy.Measure(ctx, r, flood) }},
		{"retained", retained.Measure},
		{"keys", requests.ManyKeys},
		{"processors", processors.Measure},
		{"cluster", cluster.Measure},
		{"reads", cluster.Reads},
		{"links", cluster.Links},
		{"joining", cluster.Joining},
	}
}

// byName are the parts that run only if they are named: they need more of a machine than the
// others, and the report of all has no rows for them.
var byName = map[string]bool{"cluster": true, "reads": true, "links": true, "joining": true}

func main() {
	quick := flag.Bool("quick", false, "one short round of everything, with small numbers; writes no report unless -out is given")
	out := flag.String("out", "", "`DIR` for the report (default docs/performance of the repository)")
	only := flag.String("only", "", "comma-separated parts: "+partNames())
	chosen := flag.String("servers", "", "comma-separated parts of the names of the servers to measure (default all)")
	flood := flag.String("flood", "", "of the part greedy, only the floods whose names contain `TEXT`")
	rounds := flag.Int("rounds", 5, "rounds of each measurement")
	seconds := flag.Float64("seconds", 0.4, "length of a round")
	dir := flag.String("dir", os.TempDir(), "`DIR` on the disk that is to be measured")
	binary := flag.String("holdfast", "", "`FILE` to measure as Holdfast, instead of one built from this repository")
	profiles := flag.Bool("profile", false, "instead of comparing, profile the server and draw where a request's time goes: profile.svg and profile.md")
	asBystanders := flag.String(bystanders.Flag, "", "instead of comparing, be clients of the server at `ADDR` until the input ends: what a run starts beside notifications")
	first := flag.Bool(bystanders.FirstFlag, false, "with a real-time priority")
	floodOf := flag.String(greedy.Flag, "", "instead of comparing, be the clients of the flood -flood at the server at `ADDR`: what a run starts beside the part greedy")
	floodWeb := flag.String(greedy.WebFlag, "", "the server's `ADDR` for WebSocket")
	flag.Parse()
	log.SetFlags(0)
	if *asBystanders != "" {
		exit(bystanders.Ask(*asBystanders, *first))
		return
	}
	if *floodOf != "" {
		exit(greedy.BeFlood(servers.At(*floodOf, *floodWeb), *flood))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	repository, err := findRepository()
	if err != nil {
		exit(err)
	}
	if *out == "" && (*profiles || !*quick) {
		*out = filepath.Join(repository, "docs/performance")
	}
	if *profiles {
		exit(profile.Loads(ctx, repository, *dir, *out, *quick))
		return
	}
	files, err := os.MkdirTemp(*dir, "holdfast-compare-")
	if err != nil {
		exit(err)
	}
	warnAboutMemoryDisk(files)
	r := &work.Run{Report: &report.Report{Rounds: *rounds, RoundSeconds: *seconds}, Quick: *quick}
	if *quick {
		r.Report.Rounds, r.Report.RoundSeconds = 1, 0.3
	}
	r.RoundTime = time.Duration(r.Report.RoundSeconds * float64(time.Second))
	r.Report.DescribeMachine()
	r.Lab, err = servers.NewLaboratory(repository, files, *binary, split(*chosen))
	if err == nil {
		err = compare(ctx, r, parts(*flood), split(*only), *out)
	}
	exit(errors.Join(err, os.RemoveAll(files)))
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

func partNames() string {
	var names []string
	for _, p := range parts("") {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// compare does those parts of a run that are named in only, all if it is empty, prints the
// report, and writes it to out, unless that is empty.
func compare(ctx context.Context, r *work.Run, all []part, only []string, out string) error {
	start := time.Now()
	log.Printf("building")
	if err := r.Lab.Prepare(ctx); err != nil {
		return err
	}
	for _, p := range all {
		if len(only) > 0 && !slices.Contains(only, p.name) || len(only) == 0 && byName[p.name] {
			continue
		}
		log.Printf("== %s (%.0f s)", p.name, time.Since(start).Seconds())
		if err := p.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	found := r.Report
	found.Elapsed = time.Since(start).Seconds()
	found.Versions, found.Skipped, found.Durability = r.Lab.Versions, r.Lab.Skipped, map[string]string{}
	for _, k := range servers.Kinds {
		found.Servers = append(found.Servers, k.Name)
		found.Durability[k.Name] = k.Durability
	}
	found.Goals = goals.Of(found)
	fmt.Print(found.Markdown())
	if out == "" {
		return nil
	}
	return found.Write(out)
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
		log.Printf("warning: %s is in memory, so an fsync costs nothing there: choose another with -dir", dir)
	}
}
