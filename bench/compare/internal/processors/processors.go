// Package processors measures loops that process messages.
package processors

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

// The loops of internal/loops that process messages.
const (
	ByTxn       = "transactions"
	ByState     = "state"
	AtLeastOnce = "at-least-once"
)

// processorKeys are over how many keys the messages of the load are spread, and how many messages
// a round has.
var processorKeys = []struct{ keys, messages int }{{1, 10_000}, {64, 40_000}, {1024, 40_000}}

// Work names the processing of messages that are spread over so many keys.
func Work(keys int) string { return fmt.Sprintf("processing messages, %d keys", keys) }

// Measure measures loops that process messages exactly once beside one that does so at least
// once. Server, loop and load are a process each; the processor time is that of server and loop.
func Measure(ctx context.Context, run *work.Run) error {
	loops, err := run.Lab.Build(ctx, run.Lab.Repository, servers.LoopsPackage)
	if err != nil {
		return err
	}
	rounds := min(run.Report.Rounds, 3)
	for range rounds {
		for _, shape := range processorKeys {
			if run.Quick {
				shape.messages /= 20
			}
			for _, loop := range []string{AtLeastOnce, ByTxn, ByState} {
				if err := ctx.Err(); err != nil {
					return err
				}
				t := run.Lab.Start(ctx, servers.Holdfast)
				if t == nil {
					return nil
				}
				f, err := processWith(ctx, t, loops, loop, shape.keys, shape.messages)
				run.Report.Add(Work(shape.keys), loop, f, err)
				t.Stop()
			}
		}
	}
	return nil
}

// process has a loop process messages.
func processWith(ctx context.Context, t *servers.Target, loops, loop string, keys, messages int) (f report.Figures, err error) {
	p, _, err := process.Start(ctx, t.Dir, loop, "ready", loops, loop, t.Addr)
	if err != nil {
		return f, err
	}
	defer p.Stop()
	work := append(process.Group{p}, t.Procs...)
	before := work.CPU()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, loops, "load", t.Addr, strconv.Itoa(keys), strconv.Itoa(messages)).Output()
	if err != nil {
		return f, fmt.Errorf("the load: %w", err)
	}
	spent := work.CPU() - before
	seconds, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil {
		return f, fmt.Errorf("the load: %w", err)
	}
	return report.Figures{PerSecond: float64(messages) / seconds, CPUPerMillion: spent.Seconds() * 1e6 / float64(messages)}, nil
}
