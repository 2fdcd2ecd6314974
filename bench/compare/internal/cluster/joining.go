package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

// Joining measures what a node that gets all data costs the leader, with the default of
// --cluster-snapshot-rate and with twice as much: what clients get and what the leader spends while it sends,
// and while the node is away, in turns. Each turn sends the data from the beginning: the node is killed
// at the end, and removes at its start what had arrived.
//
// The node's directory is in memory if there is room, as the disk of another machine would be its own; its
// processor time is not.
func Joining(ctx context.Context, run *work.Run) error {
	for _, c := range []struct{ mebibytes, seconds int }{{32, 20}, {64, 10}} { // how long the data take
		if run.Quick {
			c.seconds = 5
		}
		if err := joiningAt(ctx, run, c.mebibytes, c.seconds); err != nil {
			return err
		}
	}
	return nil
}

const (
	largeValue   = 64 << 10   // bytes of a value
	roomInMemory = "/dev/shm" // where the node's directory may be
)

var joiningShapes = []load.Shape{load.ShapeOf(50, 1, 64), load.ShapeOf(50, 16, 64)}

// joining is a cluster of which one node is away.
type joining struct {
	run          *work.Run
	c            *servers.Cluster
	leader, node *servers.Node // node is away, or gets all data
	rate         string
	values       map[string][]float64 // of note
}

func joiningAt(ctx context.Context, run *work.Run, mebibytes, seconds int) error {
	dir, err := os.MkdirTemp(roomInMemory, "holdfast-compare-")
	if err != nil {
		log.Printf("the node that gets all data has the same disk as the leader: %v", err)
		if dir, err = os.MkdirTemp(run.Lab.Dir, "node-"); err != nil {
			return err
		}
	}
	defer os.RemoveAll(dir)
	rate := fmt.Sprintf("%dMiB", mebibytes)
	c, err := run.Lab.StartClusterIn(ctx, map[string]string{"c": dir + "/c"}, "--cluster-log-keep", "64MiB", "--cluster-snapshot-rate", rate)
	if err != nil {
		return err
	}
	defer c.Stop()
	j := &joining{run: run, c: c, node: c.Nodes[2], rate: rate, values: map[string][]float64{}}
	j.node.Kill()
	if j.leader, err = c.Leader(ctx); err != nil {
		return err
	}
	noise := make([]byte, largeValue)
	_, _ = rand.Read(noise) // which no compression makes smaller
	if err := load.Preload(j.target(), load.KeyNames(seconds*mebibytes<<20/largeValue), string(noise), 8, 2); err != nil {
		return err
	}
	keys := load.KeyNames(load.KeyCount)
	if err := load.Preload(j.target(), keys, strings.Repeat("v", 64), 1, 50); err != nil {
		return err
	}
	for range run.Report.Rounds {
		for _, s := range joiningShapes {
			if err := j.turns(ctx, fmt.Sprint("SET ", s), func(work string) {
				f, err := load.Round(j.target(), "SET", s, keys, 5*run.RoundTime)
				run.Report.Add(work, servers.ThreeNodes, f, err)
			}); err != nil {
				return err
			}
		}
		if err := j.turns(ctx, "no requests", func(work string) {
			before, begun := process.Group{j.leader.Process}.CPU(), time.Now()
			time.Sleep(5 * run.RoundTime)
			spent := process.Group{j.leader.Process}.CPU() - before
			j.note(work, "processor time of the leader in a second", "ms", 1e3*spent.Seconds()/time.Since(begun).Seconds())
		}); err != nil {
			return err
		}
	}
	return nil
}

func (j *joining) target() *servers.Target {
	return servers.Through(servers.ThreeNodes, j.leader, j.leader.Process)
}

// note notes a figure of a round; the report has the median.
func (j *joining) note(work, what, unit string, value float64) {
	j.values[work+what] = append(j.values[work+what], value)
	j.run.Report.Measure(work, servers.ThreeNodes, what, report.Median(j.values[work+what]), unit)
}

// turns measures while the node is away, and while it gets all data.
func (j *joining) turns(ctx context.Context, what string, measure func(work string)) error {
	measure(fmt.Sprintf("%s, a node is away (beside %s/s)", what, j.rate))
	if err := j.c.Run(ctx, j.node); err != nil {
		return err
	}
	defer j.node.Kill()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if got, receives := j.c.Received(ctx, j.node, j.leader); receives && got > 0 {
			break
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return errors.Join(errors.New("the node gets no data a minute after its start"), ctx.Err())
		}
	}
	work := fmt.Sprintf("%s, it gets all data at %s/s", what, j.rate)
	before, _ := j.c.Received(ctx, j.node, j.leader)
	begun := time.Now()
	measure(work)
	after, receives := j.c.Received(ctx, j.node, j.leader)
	if !receives {
		return errors.New("the node had all data before the round was over")
	}
	j.note(work, "sent in a second", "MiB", float64(after-before)/time.Since(begun).Seconds()/(1<<20))
	return nil
}
