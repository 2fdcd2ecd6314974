// Command crash kills a broker hundreds of times and says what it lost.
//
//	go run ./internal/crashtest/crash -rounds 500 -seed 1
//
// runs the whole harness against this project's broker, and with -cluster against three nodes of a
// cluster, whose leaders it kills, among other things, and with -partition against three whose links it
// cuts, with -grow against one node to which others are added, which then are removed again, and with
// -from against three of a former program, which it upgrades;
//
//	go run ./internal/crashtest/crash -broker mosquitto -rounds 100
//	go run ./internal/crashtest/crash -command 'mybroker --port {port} --dir {dir}' -ready 'listening'
//
// run its part for messages, which is plain MQTT 5, against another one. The
// exit status is 1 if anything was lost.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/partition"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/harness/netns"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

func main() { os.Exit(run()) }

type flags struct {
	options             crashtest.Options
	broker, binary, ext string
	command, ready      string
	autosave            int
	only, json, keep    string
	cluster, partition  bool
	faults, from        string
	grow                int
}

func parse() *flags {
	f := &flags{}
	flag.IntVar(&f.options.Rounds, "rounds", 100, "kills, with -cluster of leaders, with -partition cuts; 0: as many as fit into -for")
	flag.BoolVar(&f.cluster, "cluster", false, "run three nodes of a cluster")
	flag.BoolVar(&f.partition, "partition", false, "run three nodes of a cluster in network namespaces, and cut links between them; needs root and iproute2")
	flag.StringVar(&f.faults, "faults", "", "with -cluster or -partition: what happens, with commas; empty: "+crashtest.FaultNames(false)+", with -partition "+crashtest.FaultNames(true))
	flag.StringVar(&f.from, "from", "", "run three nodes of a cluster that begin with the program at this path, and get -binary in its place one after the other; nothing else happens")
	flag.IntVar(&f.grow, "grow", 0, "run a cluster that grows from one node to three and five and shrinks again, so many times")
	flag.DurationVar(&f.options.For, "for", 0, "longest time to run; 0: until all rounds are done")
	flag.Uint64Var(&f.options.Seed, "seed", 0, "seed; 0: one of the clock")
	flag.StringVar(&f.only, "only", "store,sessions,messages", "parts to run, with commas")
	flag.StringVar(&f.broker, "broker", "holdfast", "holdfast or mosquitto")
	flag.StringVar(&f.binary, "binary", "", "path of the broker's program; empty: build holdfast, look for mosquitto")
	flag.StringVar(&f.ext, "flags", "", "more flags for holdfast serve, with spaces")
	flag.IntVar(&f.autosave, "autosave", 1, "mosquitto: seconds between two saves")
	flag.StringVar(&f.command, "command", "", "any other broker: its command line, with {port}, {addr} and {dir}")
	flag.StringVar(&f.ready, "ready", "listening", "with -command: pattern of the line that says that it accepts connections")
	flag.StringVar(&f.json, "json", "", "file for the summary as JSON; -: standard output")
	flag.StringVar(&f.keep, "dir", "", "empty directory for data, kept; empty: a temporary one")
	flag.Parse()
	return f
}

func run() int {
	f := parse()
	summary, err := f.run()
	var result harness.Result
	if summary != nil {
		result = summary
	}
	return harness.Report("crash", result, err, f.json)
}

func (f *flags) run() (*crashtest.Summary, error) {
	ctx, stop := harness.UntilSignal()
	defer stop()
	o := &f.options
	o.Seed = harness.Seed(o.Seed)
	tmp, remove, err := harness.TempDir()
	if err != nil {
		return nil, err
	}
	defer remove()
	o.Dir = tmp
	if f.keep != "" {
		o.Dir = f.keep
	}
	if o.Program, err = f.program(tmp); err != nil {
		return nil, err
	}
	if f.cluster || f.partition || f.grow > 0 || f.from != "" {
		if err := f.planCluster(); err != nil {
			return nil, err
		}
	}
	if o.Network != nil {
		defer o.Network.Close()
	}
	if err := f.parts(); err != nil {
		return nil, err
	}
	o.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	return crashtest.Run(ctx, *o)
}

// planCluster plans the cluster.
func (f *flags) planCluster() (err error) {
	o := &f.options
	if f.command != "" || f.broker != "holdfast" {
		return errors.New("-cluster and -partition run holdfast only")
	}
	if f.faults != "" {
		if o.Faults, err = crashtest.ParseFaults(f.faults); err != nil {
			return err
		}
	}
	if f.partition {
		if err := netns.Unavailable(); err != nil {
			return fmt.Errorf("-partition needs root on Linux, and iproute2: %w", err)
		}
		o.Network, err = partition.New(f.binary, o.Dir, partition.Names("a", "b", "c"), strings.Fields(f.ext)...)
		return err
	}
	names := []string{"a", "b", "c"}
	if f.grow > 0 {
		names = names[:1]
		f.growAndShrink()
	}
	program := f.binary
	if f.from != "" {
		program, o.Next, o.Faults, o.Rounds = f.from, f.binary, []crashtest.Fault{crashtest.Upgrade}, 1
		o.Enough = func(s *crashtest.Summary) bool { return s.Cluster.Upgraded == len(names) }
	}
	o.Cluster, err = nodes.New(program, o.Dir, names, strings.Fields(f.ext)...)
	return err
}

// growAndShrink plans -grow.
func (f *flags) growAndShrink() {
	o := &f.options
	o.Faults, o.Rounds = []crashtest.Fault{crashtest.Resize}, 1
	for range f.grow {
		o.Sizes = append(o.Sizes, 3, 5, 3, 1)
	}
	o.Enough = func(s *crashtest.Summary) bool { return s.Cluster.Removed == 4*f.grow }
}

func (f *flags) parts() error {
	o := &f.options
	if f.command != "" || f.broker != "holdfast" {
		f.only = "messages"
	}
	for part := range strings.SplitSeq(f.only, ",") {
		switch part {
		case "store":
			o.Store = true
		case "sessions":
			o.Sessions = true
		case "messages":
			o.Messages = true
		default:
			return fmt.Errorf("-only %q: want store, sessions or messages", part)
		}
	}
	return nil
}

func (f *flags) program(tmp string) (harness.Program, error) {
	switch {
	case f.command != "":
		return harness.CommandLine(strings.Fields(f.command + " ?")[0], f.command, f.ready)
	case f.broker == "mosquitto":
		if f.binary == "" {
			f.binary = "mosquitto"
		}
		return harness.Mosquitto(f.binary, f.autosave), nil
	case f.broker != "holdfast":
		return harness.Program{}, fmt.Errorf("-broker %q: want holdfast or mosquitto, or give -command", f.broker)
	}
	if f.binary == "" {
		built, err := process.Build(tmp, process.Holdfast)
		if err != nil {
			return harness.Program{}, err
		}
		f.binary = built
	}
	return harness.Holdfast(f.binary, strings.Fields(f.ext)...), nil
}
