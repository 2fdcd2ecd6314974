package crashtest

import (
	"context"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
)

// What an operator does with a cluster while clients work. Runs that name no faults have none of them.
const (
	Upgrade Fault = "upgrade" // a node gets the program Options.Next, the leader after all others
	Resize  Fault = "resize"  // nodes are added or removed, to the next of Options.Sizes
)

// upgrade gives the next node another program. The cluster's format level must not rise before all
// nodes have it, and must then be the one that it knows.
func (a *act) upgrade(leader *nodes.Node) error {
	ctx, cancel := context.WithTimeout(a.ctx, a.Patience)
	defer cancel()
	before, err := a.Cluster.Status(ctx)
	if err != nil {
		return err
	}
	var next *nodes.Node
	left := 0
	for _, n := range a.Cluster.Nodes() {
		if n.Program() == a.Next {
			continue
		}
		left++
		if next == nil || next == leader {
			next = n
		}
	}
	switch {
	case next == nil:
		a.life.Doors.Move("")
		return nil
	case next == leader:
		a.life.Doors.Move(leader.Name)
		if err := a.Cluster.Transfer(ctx, a.Cluster.Other(leader, a.rng.IntN)); err != nil {
			a.Log("life %d: transfer from node %s: %v", a.lives, leader.Name, err)
		}
		a.sum.Cluster.Transfers++
	default:
		a.life.Doors.Fell(next.Name)
	}
	if err := next.Replace(a.Next); err != nil {
		return err
	}
	a.life.Doors.Open(next.Name, next.Dial)
	a.sum.Cluster.Upgraded++
	if left > 1 {
		after, err := a.Cluster.Status(ctx)
		if err == nil && before.Level > 0 && after.Level != before.Level { // 0: the former program does not say it
			a.violate("the cluster has format level %d after an upgrade of node %s, although %d nodes have the former program; before it had %d", after.Level, next.Name, left-1, before.Level)
		}
		return err
	}
	return a.Cluster.AwaitStatus(ctx, "all nodes have the next program, and the format level is not that of it", func(r control.Report) bool {
		return r.Level > 0 && len(r.Missing) == 0 && r.Upgrade() == ""
	})
}

// resize adds nodes, or removes them, until the cluster has the next of Options.Sizes. By turns it removes
// the leader and the node that is there for longest, so that none of the first nodes is left in the end.
func (a *act) resize() error {
	ctx, cancel := context.WithTimeout(a.ctx, a.Patience)
	defer cancel()
	counts := a.sum.Cluster
	if len(a.Sizes) == 0 {
		a.life.Doors.Move("")
		return nil
	}
	want := a.Sizes[0]
	for len(a.Cluster.Nodes()) < want {
		n, err := a.Cluster.Join(ctx, a.Dir, fmt.Sprintf("n%d", counts.Added))
		if err != nil {
			return err
		}
		counts.Added++
		a.life.Doors.Open(n.Name, n.Dial)
		a.wait(maxAbsence)
	}
	for len(a.Cluster.Nodes()) > want {
		goes := a.Cluster.Nodes()[0]
		if now := a.Cluster.Look(ctx).Leader; now != nil && counts.Removed%2 == 0 {
			goes = now
		}
		a.life.Doors.Move(goes.Name)
		if err := a.Cluster.Leave(ctx, goes); err != nil {
			return err
		}
		counts.Removed++
		a.wait(maxAbsence)
	}
	a.Sizes = a.Sizes[1:]
	if want == 1 { // no other node can lead, so that the life ends
		a.kill(a.Cluster.Nodes()...)
	}
	return nil
}
