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
	"os/signal"
	"time"

	"holdfast/internal/crashtest"
	"holdfast/internal/faultrun"
)

func main() {
	faultrun.Instance()
	os.Exit(run())
}

func run() int {
	var o faultrun.Options
	flag.IntVar(&o.Messages, "messages", 100_000, "messages to process")
	flag.IntVar(&o.Keys, "keys", 0, "keys that they concern; 0: one for every 50 messages")
	flag.Uint64Var(&o.Seed, "seed", 0, "seed; 0: one of the clock")
	flag.Parse()
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())
	}
	o.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, remove, err := crashtest.TempDir()
	if err == nil {
		defer remove()
		o.Dir = dir
		o.Broker, err = crashtest.BuildHoldfast(dir)
	}
	var report *faultrun.Report
	if err == nil {
		report, err = faultrun.Run(ctx, o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "faults: seed %d: %v\n", o.Seed, err)
		return 2
	}
	fmt.Println(report)
	if len(report.Differences) > 0 {
		return 1
	}
	return 0
}
