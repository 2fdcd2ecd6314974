package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

// readTurns times the rounds of a run are those of Reads: the differences are small, and what else
// runs on the machine comes and goes.
const readTurns = 8

// idleTime is how long the processor time without requests is measured.
const idleTime = 10 * time.Second

// Reads compares what a GET takes and costs at one server, at the leader of three nodes, through a
// follower, and through a proxy in front of the leader that does nothing but pass bytes on. The
// rounds alternate, and every second time in the opposite order, so what ran before is not what
// makes a difference.
func Reads(ctx context.Context, run *work.Run) error {
	one, c, err := start(ctx, run)
	if one == nil || err != nil {
		return err
	}
	defer one.Stop()
	defer c.Stop()
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	follower := c.Others(leader)[0]
	addr, proxy, err := run.Lab.StartProxy(ctx, leader.Addr)
	if err != nil {
		return err
	}
	defer proxy.Stop()
	byProxy := *leader
	byProxy.Addr = addr
	three := servers.Through(servers.ThreeNodes, leader, leader.Process)
	targets := []*servers.Target{
		one, three,
		servers.Through(servers.ByFollower, follower, leader.Process),
		servers.Through(servers.FollowerItself, follower, follower.Process),
		servers.Through(servers.ByProxy, &byProxy, leader.Process),
		servers.Through(servers.ProxyItself, &byProxy, proxy),
	}
	keys := load.KeyNames(load.KeyCount)
	for _, t := range targets[:2] {
		if err := load.Preload(t, keys, strings.Repeat("v", 64), 1, 50); err != nil {
			return fmt.Errorf("%s: setting the keys: %w", t.Name, err)
		}
	}
	for _, s := range []load.Shape{load.ShapeOf(1, 1, 64), load.ShapeOf(50, 1, 64), load.ShapeOf(50, 16, 64)} {
		name, ratios := fmt.Sprint("GET ", s), map[string][]float64{}
		for range readTurns * run.Report.Rounds {
			spent := map[string]float64{}
			for _, t := range targets {
				f, err := load.Round(t, "GET", s, keys, run.RoundTime)
				run.Report.Add(name, t.Name, f, err)
				if err := errors.Join(err, ctx.Err()); err != nil {
					return err
				}
				spent[t.Name] = f.CPUPerMillion
			}
			for _, t := range targets {
				ratios[t.Name] = append(ratios[t.Name], spent[t.Name]/spent[one.Name])
			}
			slices.Reverse(targets)
		}
		for _, t := range targets {
			run.Report.Measure(name, t.Name, "processor time, times that of one server in the same turn", report.Median(ratios[t.Name]), "")
		}
	}
	return idle(ctx, run, map[string]process.Group{
		servers.Holdfast: one.Procs, servers.ThreeNodes: {leader.Process}, servers.FollowerItself: {follower.Process},
	})
}

// idle measures what the processes spend without requests: a GET's processor time has a part of it.
func idle(ctx context.Context, run *work.Run, of map[string]process.Group) error {
	before, begun := map[string]time.Duration{}, time.Now()
	for name, g := range of {
		before[name] = g.CPU()
	}
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	for name, g := range of {
		spent := g.CPU() - before[name]
		run.Report.Measure("no requests", name, "processor time in a second", 1e3*spent.Seconds()/time.Since(begun).Seconds(), "ms")
	}
	return nil
}
