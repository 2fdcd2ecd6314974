package crashtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
)

// The faults of a cluster whose links can be cut. Clients go on connecting to all nodes.
const (
	CutLeader    Fault = "cut-leader"    // from both followers, both ways
	UnplugLeader Fault = "unplug-leader" // its interface has no carrier
	DeafLeader   Fault = "deaf-leader"   // hears nothing of the others
	MuteLeader   Fault = "mute-leader"   // is not heard
	PauseInCut   Fault = "pause-in-cut"  // the leader is cut off and paused; it goes on before the cut is mended, or after that
	CutFollower  Fault = "cut-follower"  // so the leader has one other node
	DeafFollower Fault = "deaf-follower"
	MuteFollower Fault = "mute-follower"
	CutLink      Fault = "cut-link" // between the leader and one follower, both ways
	CutAll       Fault = "cut-all"  // no node reaches another one
	Flapping     Fault = "flapping" // directions are cut and mended all the time
	SlowLinks    Fault = "slow"     // delays and losses at all nodes
)

// cutFaults are all of them. Leaders are cut off most often.
var cutFaults = []Fault{CutLeader, CutLeader, UnplugLeader, DeafLeader, MuteLeader, PauseInCut, CutFollower, DeafFollower, MuteFollower, CutLink, CutAll, Flapping, SlowLinks}

// How long, at most, what a cut consists of takes.
const (
	maxMajority = time.Second            // that a former leader stays cut off while others write at the next one
	maxAway     = 5 * time.Second        // that links are cut
	maxFlap     = 500 * time.Millisecond // between two changes of a link that flaps
	maxFlaps    = 20
)

// cutLinks has a fault of cutFaults happen, and mends it.
func (a *act) cutLinks(f Fault, leader, follower *nodes.Node) (err error) {
	net, counts := a.Network, a.sum.Cluster
	a.life.Doors.Move("")
	counts.Cuts++
	defer func() { err = errors.Join(err, net.Heal()) }()
	switch f {
	case CutLeader, PauseInCut:
		err = net.Isolate(leader)
	case UnplugLeader:
		err = net.Unplug(leader)
	case DeafLeader:
		err = net.Deafen(leader)
	case MuteLeader:
		err = net.Mute(leader)
	case CutFollower:
		err = net.Isolate(follower)
	case DeafFollower:
		err = net.Deafen(follower)
	case MuteFollower:
		err = net.Mute(follower)
	case CutLink:
		err = errors.Join(net.Cut(leader, follower), net.Cut(follower, leader))
	case CutAll:
		err = net.Scatter()
	case Flapping:
		return a.flap()
	case SlowLinks:
		return a.slow()
	}
	if err != nil {
		return err
	}
	switch f {
	case CutLeader, UnplugLeader, DeafLeader, MuteLeader:
		return a.replaced(leader)
	case PauseInCut:
		leader.Pause()
		defer leader.Continue()
		counts.Paused++
		if err := a.replaced(leader); err != nil {
			return err
		}
		if a.rng.IntN(2) == 0 {
			leader.Continue()
			a.wait(maxMajority)
		}
		return nil
	}
	a.wait(maxAway)
	return nil
}

// replaced waits until clients of the other nodes are served by a leader that is none of this node, and for
// a while after that.
func (a *act) replaced(leader *nodes.Node) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(a.ctx, a.Patience)
	defer cancel()
	for _, n := range a.Network.Others(leader) {
		if err := n.Probe(ctx); err != nil {
			return err
		}
	}
	a.sum.Cluster.gap(time.Since(began))
	a.wait(maxMajority)
	return nil
}

// flap cuts and mends directions between nodes at random moments.
func (a *act) flap() error {
	for range 1 + a.rng.IntN(maxFlaps) {
		from := a.Network.Nodes()[a.rng.IntN(len(a.Network.Nodes()))]
		others := a.Network.Others(from)
		to := others[a.rng.IntN(len(others))]
		change := a.Network.Cut
		if a.rng.IntN(2) == 0 {
			change = a.Network.Mend
		}
		if err := change(from, to); err != nil {
			return err
		}
		a.wait(maxFlap)
	}
	return nil
}

// slow has all links lose what is too much for a while.
func (a *act) slow() (err error) {
	for _, n := range a.Network.Nodes() {
		err = errors.Join(err, a.Network.Slow(n, true))
	}
	if err == nil {
		a.wait(maxAway)
	}
	for _, n := range a.Network.Nodes() {
		err = errors.Join(err, a.Network.Slow(n, false))
	}
	return err
}

// isCut says whether a fault needs links that can be cut.
func isCut(f Fault) bool { return slices.Contains(cutFaults, f) }

// faultsOf are those of a run that names none.
func (o *Options) faultsOf() []Fault {
	switch {
	case o.Faults != nil:
		return o.Faults
	case o.Network != nil:
		return cutFaults
	}
	return allFaults
}

// byFault are the faults that happened, by name.
func (c *ClusterCounts) byFault() (names []Fault) {
	for f := range c.ByFault {
		names = append(names, f)
	}
	slices.SortFunc(names, func(a, b Fault) int { return cmp.Compare(a, b) })
	return names
}
