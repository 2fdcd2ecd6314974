package crashtest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Under load the nodes of a cluster get a program that knows a higher format level, one after the
// other. The level rises when all have it, and nothing that was acknowledged is lost. Then the former program
// is kept out, which also is the control: it would not have stood an earlier rise.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the elections of three real nodes, which take half a minute; a run without -short has them")
	}
	former, c := testserver.Binary(), threeNodes(t, testserver.Binary())
	next, err := process.Build(t.TempDir(), process.Holdfast, "-tags", "holdfast_next_level")
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, runFor(t, Options{
		Cluster: c, Next: next, Faults: []Fault{Upgrade}, Rounds: 1, Store: true, Sessions: true, Messages: true, Patience: clusterPatience,
		Enough: func(s *Summary) bool {
			return s.Cluster.Upgraded == len(c.Nodes()) && s.Messages.Delivered > 0 && s.Store.Answered > 0
		},
	}))

	ctx, cancel := context.WithTimeout(t.Context(), clusterPatience)
	defer cancel()
	if err := c.Start(c.Nodes()...); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitStatus(ctx, "the level is kept", func(r control.Report) bool { return r.Level == 2 && r.Leader != "" && r.Upgrade() == "" }); err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes()[1].Probe(ctx); err != nil {
		t.Fatal(err)
	}
	// It may listen for a moment, until it has read its log.
	_ = c.Nodes()[1].Replace(former)
	if err := c.Nodes()[1].AwaitEnd(ctx, "knows the format level 1, and the cluster has level 2: use the version that the other nodes run"); err != nil {
		t.Errorf("with the former program: %v", err)
	}
	if err := c.Nodes()[1].Replace(next); err != nil {
		t.Errorf("the same node with the program of the others: %v", err)
	}
}

// A cluster grows from one node to three and to five, and shrinks to one again, under load. Nothing
// that was acknowledged is lost, although the node that was there first is gone at the end.
func TestGrowAndShrinkUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the elections of real nodes, which take half a minute; a run without -short has them")
	}
	dir := t.TempDir()
	c, err := nodes.New(testserver.Binary(), filepath.Join(dir, "first"), []string{"first"}, "--cluster-election-timeout", "2s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kill(c.Nodes()...) })
	mustHold(t, runFor(t, Options{
		Cluster: c, Sizes: []int{3, 5, 3, 1}, Faults: []Fault{Resize}, Rounds: 1, Store: true, Sessions: true, Messages: true, Patience: clusterPatience,
		Enough: func(s *Summary) bool {
			return s.Cluster.Removed == 4 && s.Messages.Delivered > 0 && s.Store.Answered > 0
		},
	}))
	if left := c.Nodes(); len(left) != 1 || left[0].Name == "first" {
		t.Errorf("left are %v", left)
	}
}
