// Command faults has a hundred thousand messages processed while everything fails that
// can, and says what differs from processing each of them once.
//
//	go run ./internal/faultrun/faults -messages 100000 -seed 1
//
// The exit status is 1 if anything does.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/faultrun"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
)

func main() {
	faultrun.Instance()
	os.Exit(run())
}

func run() int {
	var o faultrun.Options
	var file string
	flag.IntVar(&o.Messages, "messages", 100_000, "messages to process")
	flag.IntVar(&o.Keys, "keys", 0, "keys that they concern; 0: one for every 50 messages")
	flag.Uint64Var(&o.Seed, "seed", 0, "seed; 0: one of the clock")
	flag.BoolVar(&o.Cluster, "cluster", false, "run three nodes of a cluster, whose leaders are killed and paused")
	flags := flag.String("flags", "", "more flags for holdfast serve, with spaces")
	flag.StringVar((*string)(&o.Path), "path", string(faultrun.Both), "path of the handlers: transactions, state, or both, where each start of an instance chooses one")
	flag.StringVar(&file, "json", "", "file for the summary as JSON; -: standard output")
	flag.Parse()
	switch o.Path {
	case faultrun.Transactions, faultrun.State, faultrun.Both:
	default:
		fmt.Fprintf(os.Stderr, "-path %s: it must be transactions, state or both\n", o.Path)
		return 2
	}
	o.Seed = harness.Seed(o.Seed)
	o.Flags = strings.Fields(*flags)
	o.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	var result harness.Result
	err := harness.WithHoldfast(func(ctx context.Context, dir, binary string) error {
		o.Dir, o.Broker = dir, binary
		summary, err := faultrun.Run(ctx, o)
		if summary != nil {
			result = summary
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("seed %d: %w", o.Seed, err)
	}
	return harness.Report("faults", result, err, file)
}
