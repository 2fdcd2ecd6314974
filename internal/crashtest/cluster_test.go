package crashtest

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/partition"
	"github.com/holdfast-mqtt/holdfast/internal/harness/netns"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// threeNodes plans a cluster of the program. On a machine that is busy with other tests its nodes must not
// elect leaders all the time.
func threeNodes(t *testing.T, program string) *nodes.Cluster {
	t.Helper()
	c, err := nodes.New(program, t.TempDir(), []string{"a", "b", "c"}, "--cluster-election-timeout", "2s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kill(c.Nodes()...) })
	return c
}

// leaders is how many leaders the tests of a cluster kill; -for changes it into a time.
const leaders = 4

// clusterPatience bounds a life, which elections are part of.
const clusterPatience = 4 * time.Minute

// What a cluster has acknowledged survives its leaders.
func TestClusterKeepsItsPromises(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the elections of three real nodes, which take half a minute; a run without -short has them")
	}
	o := Options{Cluster: threeNodes(t, testserver.Binary()), Rounds: leaders, Store: true, Sessions: true, Messages: true, Patience: clusterPatience}
	if *forFlag > 0 {
		o.Rounds, o.For = 0, *forFlag
	}
	o.Enough = func(s *Summary) bool {
		return s.Cluster.Leaders >= leaders && s.Messages.Delivered > 0 && s.Messages.Wills > 0 && s.Store.Answered > 0 && s.Transfers.Done > 0 && s.Timers.Came > 0
	}
	mustHold(t, runFor(t, o))
}

// cutsInTest is how many times the test of partitions cuts links; -for changes it into a time. "make
// partition" does it for longer.
const cutsInTest = 5

// What a cluster has acknowledged survives cuts between its nodes, of which leaders are in the smaller
// part, and nothing that clients read in either part is stale.
func TestClusterKeepsItsPromisesThroughPartitions(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the elections of three real nodes, which take half a minute; a run without -short has them")
	}
	if err := netns.Unavailable(); err != nil {
		t.Skipf("no partitions: this test needs root on Linux, and iproute2: %v", err)
	}
	c, err := partition.New(testserver.Binary(), t.TempDir(), partition.Names("a", "b", "c"), "--cluster-election-timeout", "2s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	o := Options{Network: c, Rounds: cutsInTest, Store: true, Sessions: true, Messages: true, Patience: clusterPatience}
	if *forFlag > 0 {
		o.Rounds, o.For = 0, *forFlag
	}
	o.Enough = func(s *Summary) bool {
		return s.Cluster.Cuts >= cutsInTest && s.Messages.Delivered > 0 && s.Store.Answered > 0
	}
	mustHold(t, runFor(t, o))
}

// What a leader has not got to the disks of others, because they do not run, it does not
// acknowledge: when it dies, no node has that. The negative control is a program that does.
func TestNothingIsAcknowledgedWithoutAQuorum(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the elections of three real nodes, which take half a minute; a run without -short has them")
	}
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("acknowledges early: %v", early), func(t *testing.T) {
			t.Parallel()
			program := testserver.Binary()
			if early {
				program = filepath.Join(t.TempDir(), "holdfast")
				if out, err := exec.Command("go", "build", "-tags", "holdfast_acks_early", "-o", program, process.Holdfast).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			// The broken program acknowledges until its office ends, five seconds after it has lost
			// the others: a busy machine may need longer for the request.
			lost := false
			for range 5 {
				if lost = losesWithoutQuorum(t, program); lost || !early {
					break
				}
			}
			if lost != early {
				t.Errorf("an acknowledged key is lost: %v, want %v", lost, early)
			}
		})
	}
}

// losesWithoutQuorum has a client of the leader set a key while the other nodes are dead, kills
// the leader, starts the others, and says whether they lack what was acknowledged, then or before.
// (Nodes that are paused would read what the leader has sent when they go on.)
func losesWithoutQuorum(t *testing.T, program string) bool {
	c, err := nodes.New(program, t.TempDir(), []string{"a", "b", "c"}, "--cluster-election-timeout", "5s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Kill(c.Nodes()...)
	ctx, cancel := context.WithTimeout(t.Context(), clusterPatience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v; the nodes said\n%s", err, c.Output())
		}
	}
	must(c.Start(c.Nodes()...))
	before, err := c.AwaitLeader(ctx, 0)
	must(err)
	writer := dialNode(ctx, t, before.Leader)
	_, err = writer.Set(ctx, "with a quorum", []byte("v"))
	must(err)
	var followers []*nodes.Node
	for _, n := range c.Nodes() {
		if n != before.Leader {
			followers = append(followers, n)
		}
	}
	c.Kill(followers...)
	waiting, stop := context.WithTimeout(ctx, 4*time.Second)
	defer stop()
	_, err = writer.Set(waiting, "without", []byte("v"))
	acknowledged := err == nil
	c.Kill(before.Leader)
	must(c.Start(followers...))
	_, err = c.AwaitLeader(ctx, before.Term)
	must(err)
	must(followers[0].Probe(ctx))
	other := dialNode(ctx, t, followers[1])
	_, first, err := other.Get(ctx, "with a quorum")
	must(err)
	_, second, err := other.Get(ctx, "without")
	must(err)
	return !first || acknowledged && !second
}

func dialNode(ctx context.Context, t *testing.T, n *nodes.Node) *client.Client {
	t.Helper()
	c, err := client.Dial(ctx, n.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestNamesOfFaults(t *testing.T) {
	t.Parallel()
	if all, err := ParseFaults(FaultNames(false) + "," + FaultNames(true)); err != nil || len(all) != 8+12 {
		t.Errorf("got %v, %v", all, err)
	}
	if got, err := ParseFaults("leader,flood"); err == nil {
		t.Errorf("an unknown fault is read as %v", got)
	}
}
