// Command soak lets clients come and go at the built program for an hour, and says
// whether what the process holds stays flat.
//
//	go run ./internal/soak/soak -for 1h -clients 2000 -chart docs/performance/soak.svg
//
// The exit status is 0 if it does, 1 if it does not, and 2 if the run itself failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/soak"
)

func main() { os.Exit(run()) }

func run() int {
	var o soak.Options
	var chart, file string
	flag.DurationVar(&o.For, "for", 0, "how long; 0: an hour")
	flag.IntVar(&o.Clients, "clients", 0, "clients at a time; 0: 2,000")
	flag.DurationVar(&o.Life, "life", 0, "the longest life of a connection; 0: two minutes")
	flag.DurationVar(&o.Pause, "pause", 0, "of a client between two operations; 0: two seconds")
	flag.DurationVar(&o.Sample, "sample", 0, "between two looks at the process; 0: 10 seconds")
	flag.Uint64Var(&o.Seed, "seed", 1, "seed")
	flag.StringVar(&chart, "chart", "", "file to draw the curves into, as an SVG")
	flag.StringVar(&file, "json", "", "file for the report as JSON; -: standard output")
	flag.Parse()
	o.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	var result harness.Result
	err := harness.WithHoldfast(func(ctx context.Context, dir, binary string) error {
		o.Dir, o.Binary = dir, binary
		report, err := soak.Run(ctx, o)
		if err != nil {
			return err
		}
		result = report
		if chart == "" {
			return nil
		}
		return os.WriteFile(chart, report.Chart(), 0o644)
	})
	return harness.Report("soak", result, err, file)
}
