// Package requests compares GET and SET: in several shapes, over TLS, under a policy, and with
// many keys.
package requests

import (
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

var shapes = []load.Shape{
	load.ShapeOf(1, 1, 64), load.ShapeOf(50, 1, 64), load.ShapeOf(50, 16, 64), load.ShapeOf(200, 1, 64), load.ShapeOf(200, 16, 64),
	load.ShapeOf(50, 1, 4096), load.ShapeOf(50, 16, 4096),
}

func shapesOf(run *work.Run) []load.Shape {
	if run.Quick {
		return []load.Shape{load.ShapeOf(1, 1, 64), load.ShapeOf(50, 1, 64), load.ShapeOf(50, 16, 64), load.ShapeOf(200, 1, 64), load.ShapeOf(50, 16, 4096)}
	}
	return shapes
}

// Measure compares GET and SET. The servers take turns in every round. Those
// that keep nothing on disk answer only GET: their SET would be no comparison.
func Measure(ctx context.Context, run *work.Run) error {
	var targets []*servers.Target
	for _, name := range []string{servers.Holdfast, servers.BareLoop, servers.Redis, servers.Mochi, servers.Mosquitto, servers.NatsDefault, servers.NatsSync, servers.Etcd} {
		if t := run.Lab.Start(ctx, name); t != nil {
			defer t.Stop()
			targets = append(targets, t)
		}
	}
	keys := load.KeyNames(load.KeyCount)
	if err := verifyBare(run, targets); err != nil {
		return err
	}
	size := 0
	for _, s := range shapesOf(run) {
		if s.ValueSize != size {
			size = s.ValueSize
			for _, t := range targets {
				if err := load.Preload(t, keys, strings.Repeat("v", size), 1, 50); err != nil {
					return fmt.Errorf("%s: setting the keys: %w", t.Name, err)
				}
			}
		}
		if err := measureShape(ctx, run, targets, s, keys); err != nil {
			return err
		}
	}
	for _, t := range targets {
		run.Report.Measure("requests", t.Name, "peak memory", float64(t.Procs.Memory("VmHWM"))/(1<<20), "MiB")
	}
	return nil
}

func measureShape(ctx context.Context, run *work.Run, targets []*servers.Target, s load.Shape, keys []string) error {
	commits := newCommitter(run.Lab.Dir)
	defer commits.close()
	for range run.Report.Rounds {
		for _, verb := range []string{"GET", "SET"} {
			for _, t := range targets {
				if !compares(t, verb, s) {
					continue
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				f, err := load.Round(t, verb, s, keys, run.RoundTime)
				run.Report.Add(fmt.Sprint(verb, " ", s), t.Name, f, err)
			}
		}
		if s.Connections == 1 {
			f, err := commits.round(run.RoundTime)
			run.Report.Add(CommitAlone, "Pebble", f, err)
		}
	}
	return nil
}

// compares says whether a server's answer to verb can be compared: a SET that isn't
// kept on disk can't, and how NATS syncs does not affect a GET. The largest load is
// for servers that handle it in less than a second.
func compares(t *servers.Target, verb string, s load.Shape) bool {
	if s.Connections*s.Inflight > 1000 && t.Name != servers.Holdfast && t.Name != servers.BareLoop && t.Name != servers.Redis {
		return false
	}
	return verb == "GET" && t.Name != servers.NatsSync || verb == "SET" && t.Durability != ""
}

// verifyBare compares what the bare loop and Holdfast answer: as many bytes, or
// a ratio of their costs would mean nothing.
func verifyBare(run *work.Run, targets []*servers.Target) error {
	sizes := map[string]int{}
	for _, t := range targets {
		if t.Name != servers.Holdfast && t.Name != servers.BareLoop {
			continue
		}
		for _, verb := range []string{"SET", "GET"} {
			n, err := client.AnswerSize(t.Addr, &client.Script{Verb: verb, Keys: load.KeyNames(1), Value: strings.Repeat("v", 64), Window: 1})
			if err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
			sizes[t.Name+verb] = n
		}
	}
	for _, verb := range []string{"SET", "GET"} {
		if h, l := sizes[servers.Holdfast+verb], sizes[servers.BareLoop+verb]; h != 0 && l != 0 && h != l {
			return fmt.Errorf("the bare loop answers a %s with %d bytes, Holdfast with %d: bring wire.Answers up to date", verb, l, h)
		}
	}
	return nil
}
