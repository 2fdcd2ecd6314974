package clustered_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// machineClock is the clock of a node's machine, which a test steps.
type machineClock struct {
	start time.Time
	ahead atomic.Int64 // ms
}

func (c *machineClock) WallMs() int64             { return time.Now().UnixMilli() + c.ahead.Load() }
func (c *machineClock) SinceStart() time.Duration { return time.Since(c.start) }

func (c *machineClock) step(ahead time.Duration) { c.ahead.Store(ahead.Milliseconds()) }

// startWithClocks starts nodes whose clocks can be stepped.
func startWithClocks(t *testing.T, names ...string) (*cluster, map[string]*machineClock) {
	t.Helper()
	machines := map[string]*machineClock{}
	for _, name := range names {
		machines[name] = &machineClock{start: time.Now()}
	}
	return startWith(t, func(name string, c *server.Config) { c.Clock = machines[name] }, names...), machines
}

// set sets a key, again until it is acknowledged, and returns how far its version is ahead of the right time.
func (c *cluster) set(cl *client.Client) (ahead time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		r, err := cl.Set(ctx, "key", []byte("value"))
		if err == nil {
			return time.Until(time.UnixMilli(int64(r.Version.Wall)))
		}
		if ctx.Err() != nil {
			c.t.Fatalf("SET: %v", err)
		}
	}
}

// The clock of the leader goes two hours ahead, and that of another leader behind. It gives the leadership away, and no
// version is ahead of the right time meanwhile, so the next leader serves clients at once. As long as its
// clock is wrong it takes the leadership from no other node; when only one other is left, some node leads.
func TestLeaderWhoseClockIsStepped(t *testing.T) {
	t.Parallel()
	c, machines := startWithClocks(t, "a", "b", "c")
	former, others := c.leader()
	cl := c.client(others[0])
	c.set(cl)
	for _, ahead := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		former, others = c.leader()
		machines[former].step(ahead)
		await(t, "another node leads", func() bool {
			if off := c.set(cl); off > engine.DefaultMaxSkew {
				t.Fatalf("a version is %v ahead", off)
			}
			now, _ := c.leader()
			return now != former
		})
		if off := c.set(cl); off.Abs() > engine.DefaultMaxSkew {
			t.Errorf("a version of the next leader is %v ahead of the right time", off)
		}
		if ahead < 0 {
			break
		}
		machines[former].step(0)
		await(t, "the node finds its clock right again", func() bool { return !c.nodes[former].Status().Unfit })
	}
	said := []string{"The clock of node " + former + " is 2h0m0s behind those of the other nodes. It does not lead as long as another node can: set its clock right."}
	await(t, "the status says whose clock is wrong", func() bool {
		report, err := control.Status(t.Context(), c.dirs[others[0]])
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(report.Clocks(), said)
	})
	await(t, "the API says the same", func() bool {
		var got httpapi.Cluster
		status := c.ask(others[0], "GET", "/api/v1/cluster", nil, &got)
		return status == http.StatusOK && slices.Equal(got.Clocks, said)
	})
	await(t, "the figures say it, too", func() bool {
		_, own := c.fetch(former, "/metrics")
		_, other := c.fetch(others[0], "/metrics")
		return strings.Contains(own, "\nholdfast_cluster_clock_wrong 1\n") && strings.Contains(other, "\nholdfast_cluster_clock_wrong 0\n") &&
			strings.Contains(other, "\nholdfast_cluster_clock_offset_seconds{peer=\""+former+"\"} -7")
	})
	if err := control.Transfer(t.Context(), c.dirs[others[0]], former); err == nil || !strings.Contains(err.Error(), "its clock is wrong") {
		t.Errorf("a transfer to the node with the wrong clock: %v", err)
	}
	if log := c.log.String(); !strings.Contains(log, "the clock of this node is wrong, so it does not lead") || strings.Contains(log, "machine's clock is behind the versions") {
		t.Error("the log does not say what was wrong, or a node has met versions of the future")
	}

	gone, _ := c.leader()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.nodes[gone].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, gone)
	if off := c.set(c.client(former)); off.Abs() > engine.DefaultMaxSkew {
		t.Errorf("a version of one of the last two nodes is %v ahead of the right time", off)
	}
}

// A node whose clock is wrong from the start does not get the leadership, or not for long, and gives out no
// version of the future.
func TestNodeThatStartsWithAWrongClock(t *testing.T) {
	t.Parallel()
	machines := map[string]*machineClock{}
	for _, name := range []string{"a", "b", "c"} {
		machines[name] = &machineClock{start: time.Now()}
	}
	machines["a"].step(2 * time.Hour)
	c := startWith(t, func(name string, c *server.Config) { c.Clock = machines[name] }, "a", "b", "c")
	cl := c.client("b")
	await(t, "node a knows that its clock is wrong, and another one leads", func() bool {
		if off := c.set(cl); off > engine.DefaultMaxSkew {
			t.Fatalf("a version is %v ahead", off)
		}
		now, _ := c.leader()
		return now != "a" && c.nodes["a"].Status().Unfit
	})
}

// Two nodes that disagree go on: neither of them is the majority.
func TestTwoNodesWhoseClocksDiffer(t *testing.T) {
	t.Parallel()
	c, machines := startWithClocks(t, "a", "b")
	leader, others := c.leader()
	cl := c.client(others[0])
	c.set(cl)
	machines[leader].step(-2 * time.Hour)
	await(t, "a node says so", func() bool {
		said := strings.Count(c.log.String(), "no majority of them agrees")
		return said >= 1 && c.nodes[leader].Server() != nil
	})
	c.set(cl)
	findings, err := server.Doctor(t.Context(), c.dirs[leader])
	if err != nil || !slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Check == "clocks" && f.Level == doctor.Problem }) {
		t.Errorf("the doctor finds %v, %v", findings, err)
	}
	if now, _ := c.leader(); now != leader || c.nodes[leader].Status().Unfit {
		t.Errorf("%s led, and %s does; unfit: %v", leader, now, c.nodes[leader].Status().Unfit)
	}
}
