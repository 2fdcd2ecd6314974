package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The loops of internal/loops that process messages, and what to build for them.
const (
	loopsPackage = "./internal/loops"
	byTxn        = "transactions"
	byState      = "state"
	atLeastOnce  = "at-least-once"
)

// processorKeys are over how many keys the messages of the load are spread, and how many messages
// a round has.
var processorKeys = []struct{ keys, messages int }{{1, 10_000}, {64, 40_000}, {1024, 40_000}}

func processorWork(keys int) string { return fmt.Sprintf("processing messages, %d keys", keys) }

// processors measures loops that process messages exactly once beside one that does so at least
// once. Server, loop and load are a process each; the processor time is that of server and loop.
func (b *bench) processors(ctx context.Context) error {
	loops, err := b.lab.build(ctx, b.lab.repository, loopsPackage)
	if err != nil {
		return err
	}
	rounds := min(b.report.Rounds, 3)
	for range rounds {
		for _, shape := range processorKeys {
			if b.quick {
				shape.messages /= 20
			}
			for _, loop := range []string{atLeastOnce, byTxn, byState} {
				if err := ctx.Err(); err != nil {
					return err
				}
				t := b.lab.start(ctx, holdfast)
				if t == nil {
					return nil
				}
				f, err := t.process(ctx, loops, loop, shape.keys, shape.messages)
				b.report.add(processorWork(shape.keys), loop, f, err)
				t.stop()
			}
		}
	}
	return nil
}

// process has a loop process messages.
func (t *target) process(ctx context.Context, loops, loop string, keys, messages int) (f Figures, err error) {
	p, _, err := start(ctx, t.dir, loop, "ready", loops, loop, t.addr)
	if err != nil {
		return f, err
	}
	defer p.stop()
	work := append(processes{p}, t.procs...)
	before := work.cpu()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, loops, "load", t.addr, strconv.Itoa(keys), strconv.Itoa(messages)).Output()
	if err != nil {
		return f, fmt.Errorf("the load: %w", err)
	}
	spent := work.cpu() - before
	seconds, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil {
		return f, fmt.Errorf("the load: %w", err)
	}
	return Figures{PerSecond: float64(messages) / seconds, CPUPerMillion: spent.Seconds() * 1e6 / float64(messages)}, nil
}
