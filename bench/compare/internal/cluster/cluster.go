// Package cluster compares three nodes of a cluster with one server, with three members of etcd
// and with three servers of NATS, all on the same machine: what a request costs the leader, a
// follower and the client, how long there is no leader, and what a front gains.
package cluster

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

// FollowerShare is the processor time of a follower for each million requests, by the leader's.
const FollowerShare = "processor time of a follower for each second of the leader"

// The works of a change of the leader, and what is measured.
const (
	LeaderKilled = "leader killed"
	Transferred  = "leadership transferred"
	FewKeys      = "until a write is acknowledged, few keys"
	ManyKeys     = 1_000_000
)

// Keys is FewKeys of so many.
func Keys(count int) string { return fmt.Sprintf("until a write is acknowledged, %d keys", count) }

// start starts one server and three nodes. one is nil if it cannot be started: the report has the reason.
func start(ctx context.Context, run *work.Run) (one *servers.Target, three *servers.Cluster, err error) {
	if one = run.Lab.Start(ctx, servers.Holdfast); one == nil {
		return nil, nil, nil
	}
	if three, err = run.Lab.StartCluster(ctx); err != nil {
		one.Stop()
	}
	return one, three, err
}

// Measure compares requests, and then how long changes of the leader take.
func Measure(ctx context.Context, run *work.Run) error {
	one, c, err := start(ctx, run)
	if one == nil || err != nil {
		return err
	}
	defer one.Stop()
	defer c.Stop()
	if err := requests(ctx, run, one, c); err != nil {
		return err
	}
	one.Stop()
	if err := alternatives(ctx, run, c); err != nil {
		return err
	}
	return changes(ctx, run, c)
}

var shapes = []load.Shape{load.ShapeOf(1, 1, 64), load.ShapeOf(50, 1, 64), load.ShapeOf(200, 1, 64), load.ShapeOf(50, 16, 64)}

// verbs take turns, so that the GETs of each server come as soon after its SETs.
var verbs = []string{"SET", "GET"}

// pairsPerRound is how often in a round one server and three nodes take turns: what one pair gives differs from
// another by a tenth to a quarter, by what the disk and other users of the machine do, and the targets are nearer than
// that.
const pairsPerRound = 4

func preload(t *servers.Target) error {
	if err := load.Preload(t, load.KeyNames(load.KeyCount), strings.Repeat("v", 64), 1, 50); err != nil {
		return fmt.Errorf("%s: setting the keys: %w", t.Name, err)
	}
	return nil
}

// requests compares three nodes with one server. No other server runs meanwhile.
func requests(ctx context.Context, run *work.Run, one *servers.Target, c *servers.Cluster) error {
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	for _, t := range []*servers.Target{one, servers.Through(servers.ThreeNodes, leader, leader.Process)} {
		if err := preload(t); err != nil {
			return err
		}
	}
	for _, s := range shapes {
		var shares []float64
		for turn := range run.Report.Rounds * pairsPerRound {
			leader, err := c.Leader(ctx)
			if err != nil {
				return err
			}
			others := c.Others(leader)
			followers := process.Group{others[0].Process, others[1].Process}
			three := servers.Through(servers.ThreeNodes, leader, leader.Process)
			for _, verb := range verbs {
				round := func(t *servers.Target) { measure(run, fmt.Sprint(verb, " ", s), t, verb, s) }
				both := []func(){func() { round(one) }, func() {
					before, of := followers.CPU(), process.Group{leader.Process}.CPU()
					round(three)
					if spent := (process.Group{leader.Process}).CPU() - of; verb == "SET" && spent > 0 {
						shares = append(shares, float64(followers.CPU()-before)/2/float64(spent))
					}
				}}
				if turn%2 == 1 { // what ran before is not to make the difference
					slices.Reverse(both)
				}
				for _, measureOne := range both {
					measureOne()
				}
				if verb == "GET" && turn%pairsPerRound == 0 {
					round(servers.Through(servers.ByFollower, others[0], leader.Process))
				}
				if err := ctx.Err(); err != nil {
					return err
				}
			}
		}
		if len(shares) > 0 {
			run.Report.Measure(fmt.Sprint("SET ", s), servers.ThreeNodes, FollowerShare, report.Median(shares), "s")
		}
	}
	return nil
}

// measure adds a round of t to the report's figures for that work.
func measure(run *work.Run, work string, t *servers.Target, verb string, s load.Shape) {
	f, err := load.Round(t, verb, s, load.KeyNames(load.KeyCount), run.RoundTime)
	run.Report.Add(work, t.Name, f, err)
}

// BesideWork is the work in which three nodes and another cluster take turns.
func BesideWork(verb string, s load.Shape, other string) string {
	return fmt.Sprint(verb, " ", s, ", in turns with ", other)
}

// alternatives has the three nodes take turns with three members of etcd, and then with three servers of NATS. None of
// them runs while three nodes are compared with one server: they take processor time and write without requests, too.
func alternatives(ctx context.Context, run *work.Run, c *servers.Cluster) error {
	for _, cluster := range []struct {
		name  string
		start func(context.Context) (*servers.Target, error)
	}{
		{servers.ThreeMembers, run.Lab.StartEtcds},
		{servers.ThreeNATS, run.Lab.StartNATSes},
	} {
		t, err := cluster.start(ctx)
		if err != nil {
			run.Lab.Skipped[cluster.name] = err.Error()
			log.Printf("skipping %s: %v", cluster.name, err)
			continue
		}
		err = beside(ctx, run, c, t)
		t.Procs.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func beside(ctx context.Context, run *work.Run, c *servers.Cluster, other *servers.Target) error {
	if err := preload(other); err != nil {
		return err
	}
	for _, s := range shapes {
		for range run.Report.Rounds {
			leader, err := c.Leader(ctx)
			if err != nil {
				return err
			}
			for _, verb := range verbs {
				for _, t := range []*servers.Target{servers.Through(servers.ThreeNodes, leader, leader.Process), other} {
					measure(run, BesideWork(verb, s, other.Name), t, verb, s)
				}
				if err := ctx.Err(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// gap is how long after begun a SET through a node is acknowledged that was sent after then.
func gap(ctx context.Context, n *servers.Node, begun time.Time) (time.Duration, error) {
	script := client.Script{Verb: "SET", Keys: []string{load.KeyName(0)}, Value: "v", Window: 1}
	for ctx.Err() == nil && time.Since(begun) < time.Minute {
		c, err := client.DialStore(n.Addr, "after-the-change", &script)
		if err == nil {
			var h latency.Histogram
			err = c.Exchange(&h)
			c.Close()
		}
		if err == nil {
			return time.Since(begun), nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0, fmt.Errorf("no write is acknowledged a minute after the leader has gone: %w", ctx.Err())
}

// changes measures how long a change of the leader takes.
func changes(ctx context.Context, run *work.Run, c *servers.Cluster) error {
	failover := func(what string) error {
		var took []float64
		for range run.Report.Rounds {
			leader, err := c.Leader(ctx)
			if err != nil {
				return err
			}
			leader.Kill()
			d, err := gap(ctx, c.Others(leader)[0], time.Now())
			if err != nil {
				return err
			}
			took = append(took, d.Seconds())
			if err := c.Run(ctx, leader); err != nil {
				return err
			}
		}
		run.Report.Measure(LeaderKilled, servers.ThreeNodes, what, report.Median(took), "s")
		return nil
	}
	if err := failover(FewKeys); err != nil {
		return err
	}
	var took []float64
	for range run.Report.Rounds {
		leader, err := c.Leader(ctx)
		if err != nil {
			return err
		}
		to := c.Others(leader)[0]
		begun := time.Now()
		for end := begun.Add(time.Minute); ; begun = time.Now() {
			if err = c.Transfer(ctx, to); err == nil {
				break
			}
			if begun.After(end) || ctx.Err() != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond) // the node does not know the leader yet
		}
		d, err := gap(ctx, to, begun)
		if err != nil {
			return err
		}
		took = append(took, d.Seconds())
	}
	run.Report.Measure(Transferred, servers.ThreeNodes, FewKeys, report.Median(took), "s")
	count := ManyKeys
	if run.Quick {
		count = 20_000
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	if err := load.Preload(servers.Through(servers.ThreeNodes, leader, leader.Process), load.KeyNames(count), strings.Repeat("v", 64), 50, 16); err != nil {
		return err
	}
	return failover(Keys(count))
}

// Links measures what the leader saves when a front passes the requests of many connections on
// over few: each connection has one request under way, directly at the leader and through a front.
// Before that it measures what could be saved at the most: as many requests under way on few
// connections.
func Links(ctx context.Context, run *work.Run) error {
	t := run.Lab.Start(ctx, servers.Holdfast)
	if t == nil {
		return nil
	}
	defer t.Stop()
	count := 10_000
	if run.Quick {
		count = 400
	}
	if err := throughAFront(ctx, run, count); err != nil {
		return err
	}
	keys := load.KeyNames(count)
	if err := load.Preload(t, keys, strings.Repeat("v", 64), 50, 16); err != nil {
		return err
	}
	for _, verb := range []string{"GET", "SET"} {
		for range run.Report.Rounds {
			for _, connections := range []int{count, 80, 8} {
				s := load.ShapeOf(connections, min(count/connections, 100), 64)
				f, err := load.Round(t, verb, s, keys, 5*run.RoundTime)
				run.Report.Add(fmt.Sprint(verb, " ", s), t.Name, f, err)
				if err := ctx.Err(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// throughAFront measures what requests of many connections cost the leader of three nodes, directly
// and through a front, and what they cost the front.
func throughAFront(ctx context.Context, run *work.Run, count int) error {
	c, err := run.Lab.StartCluster(ctx)
	if err != nil {
		return err
	}
	defer c.Stop()
	addr, front, err := c.StartFront(ctx)
	if err != nil {
		return err
	}
	defer front.Stop()
	keys, s := load.KeyNames(count), load.ShapeOf(count, 1, 64)
	for _, verb := range []string{"SET", "GET"} { // the first one sets all keys
		for range run.Report.Rounds {
			leader, err := c.Leader(ctx)
			if err != nil {
				return err
			}
			at := *leader
			at.Addr = addr
			for _, t := range []*servers.Target{
				servers.Through(servers.ThreeNodes, leader, leader.Process),
				servers.Through(servers.ByFront, &at, leader.Process),
				servers.Through(servers.FrontItself, &at, front),
			} {
				f, err := load.Round(t, verb, s, keys, 5*run.RoundTime)
				run.Report.Add(fmt.Sprint(verb, " ", s), t.Name, f, err)
				if err := ctx.Err(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
