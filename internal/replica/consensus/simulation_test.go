package consensus

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/lease"
)

var (
	seeds = flag.Int("seeds", 300, "how many seeds the simulation of a cluster runs")
	first = flag.Uint64("first-seed", 1, "the first of them")
)

func longLease() *lease.Lease { return lease.New(3 * election / 2 * 100 / 72) }

// simulate runs a world with faults, then one without, in which it must get on.
func simulate(p plan) *world {
	w := newWorld(p)
	w.load()
	w.fault()
	if p.shortLogs {
		w.disturb()
	}
	if p.changes {
		w.reconfigure()
	}
	if p.bars {
		w.judgeNodes()
	}
	w.run(p.lasts)
	if w.violation == nil {
		w.settle()
	}
	return w
}

// planOf makes the plan of a seed: mostly three nodes.
func planOf(seed uint64) plan {
	p := plan{seed: seed, nodes: 3, lasts: 8 * time.Second}
	switch seed % 10 {
	case 0:
		p.suspends = true
	case 1:
		p.bars = true
	case 2:
		p.changes = true
	case 3:
		p.changes, p.nodes = true, 1
	case 4:
		p.shortLogs = true
	case 5:
		p.shortLogs, p.changes = true, seed%20 == 5
	case 6:
		p.separations = true
	case 7:
		p.nodes, p.bars = 5, seed%20 == 7
	case 8:
		p.nodes = 2
	case 9:
		p.nodes = 1
	}
	return p
}

// load has clients write and read at all nodes.
func (w *world) load() {
	w.after(w.between(0, 30*time.Millisecond), nil, func() {
		for _, n := range w.nodes {
			if !n.up || n.paused > w.now {
				continue
			}
			if w.number%7 == 0 {
				n.core.Hurry()
			}
			switch {
			case w.chance(50) && w.now > w.quiet:
				n.propose()
			case w.chance(80):
				w.read(n)
			default:
				w.askQuorum(n)
			}
		}
		w.load()
	})
}

// fault breaks one thing after the other.
func (w *world) fault() {
	next := w.between(0, time.Second)
	if w.separations {
		next += 3 * time.Second // which is how long one takes
	}
	if w.changes {
		next += w.between(0, 2*time.Second) // for changes to come to their end
	}
	w.after(next, nil, func() {
		if w.now > w.lasts {
			return
		}
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		if leader := w.leader(); leader != nil && w.chance(50) {
			n = leader
		}
		kinds := 13
		if w.suspends {
			kinds = 15
		}
		kind := w.rng.IntN(kinds)
		if w.separations {
			kind = 12
		}
		switch kind {
		case 0, 1:
			w.crash(n, w.chance(50))
		case 2:
			for _, n := range w.nodes {
				w.crash(n, true)
			}
		case 3, 4:
			w.isolate(n)
		case 5:
			w.cut[[2]uint64{n.id, uint64(w.rng.IntN(len(w.nodes)) + 1)}] = true
		case 6:
			clear(w.cut)
		case 7:
			if n.asleep == 0 {
				n.paused = w.now + w.between(0, 3*election)
			}
		case 8:
			n.slow = w.between(0, 100*time.Millisecond)
		case 9:
			if n.up {
				_ = n.core.Transfer(uint64(w.rng.IntN(len(w.nodes)) + 1))
				n.work()
			}
		case 10:
			w.loss = w.rng.IntN(20)
		case 11:
			w.loss, n.slow = 0, 0
		case 12:
			w.separate()
		case 13:
			n.suspend(w.between(0, 3*election))
		case 14:
			n.step += w.between(0, 4*election) - 2*election
		}
		w.fault()
	})
	w.after(w.between(0, time.Second), nil, func() {
		for _, n := range w.nodes {
			if n.up && w.chance(50) {
				n.writeTables()
			}
		}
	})
}

// interrupt ends a program while it installs a snapshot, sometimes.
func (w *world) interrupt(n *node) {
	if !w.shortLogs || w.now > w.lasts || !w.chance(30) {
		return
	}
	w.after(w.between(0, 2*time.Millisecond+2*n.slow), nil, func() {
		if n.half {
			w.crash(n, w.chance(50))
		}
	})
}

// disturb drops entries from the logs again and again, and ends programs while a snapshot is
// being sent.
func (w *world) disturb() {
	w.after(w.between(20*time.Millisecond, 100*time.Millisecond), nil, func() {
		if w.now > w.lasts {
			return
		}
		sending := w.streams > w.cutOff+w.arrived
		for _, n := range w.nodes {
			switch {
			case !n.up:
			case sending && n.core.Office().Leads && w.chance(10):
				w.crash(n, w.chance(50))
			case w.chance(2):
				w.crash(n, w.chance(50))
			case w.chance(50):
				n.writeTables()
			}
		}
		w.disturb()
	})
}

// judgeNodes finds any of the nodes unfit for the leadership, also all of them, and again others. What it has found
// last lasts for good: the faults end, and some node must lead nevertheless.
func (w *world) judgeNodes() {
	w.after(w.between(0, 2*time.Second), nil, func() {
		if w.now > w.lasts {
			return
		}
		for _, n := range w.nodes {
			n.unfit = w.chance(50)
			if n.unfit {
				w.barred++
			}
		}
		w.judgeNodes()
	})
}

func (w *world) leader() *node {
	for _, n := range w.nodes {
		if n.up && n.core.Office().Leads {
			return n
		}
	}
	return nil
}

// isolate cuts a node off, in one direction or both.
func (w *world) isolate(n *node) {
	way := w.rng.IntN(4)
	for _, other := range w.nodes {
		if other == n {
			continue
		}
		if way != 0 {
			w.cut[[2]uint64{n.id, other.id}] = true
		}
		if way != 1 {
			w.cut[[2]uint64{other.id, n.id}] = true
		}
	}
}

// separate does to a leader what is worst for its lease: one node, whose log is as new as
// the others', does not hear of it and wants to replace it, and those that do hear of it are
// started again when it is cut off. If they then voted at once, there would be two leaders.
func (w *world) separate() {
	leader, other := w.leader(), w.nodes[w.rng.IntN(len(w.nodes))]
	if leader == nil || other == leader {
		return
	}
	cutOff := w.now + w.between(election, 2*election)
	w.quiet = cutOff
	w.after(100*time.Millisecond, nil, func() {
		if w.now > w.lasts {
			return
		}
		clear(w.cut)
		w.cut[[2]uint64{leader.id, other.id}] = true
	})
	w.after(cutOff-w.now, nil, func() {
		if w.now > w.lasts || !leader.up || !leader.core.Office().Leads {
			return
		}
		w.isolate(leader)
		for _, n := range w.nodes {
			if n != leader && n != other && n.up {
				n.stop(false)
				w.after(w.between(0, 50*time.Millisecond), n, n.start)
			}
		}
	})
}

// crash ends a node's program, which is started again some time later.
func (w *world) crash(n *node, power bool) {
	if !n.up {
		return
	}
	n.stop(power)
	away := 2 * time.Second
	if w.chance(30) {
		away = 100 * time.Millisecond
	}
	w.after(w.between(0, away), n, n.start)
}

// settle ends all faults. The cluster must then elect a leader, and take an entry, which all
// nodes apply.
func (w *world) settle() {
	clear(w.cut)
	w.loss = 0
	for _, n := range w.nodes {
		n.wake()
		n.slow, n.paused = 0, 0
		if n.up {
			w.crash(n, true)
		}
	}
	var target uint64
	for end := w.now + time.Minute; w.now < end && w.violation == nil; {
		w.run(w.now + 100*time.Millisecond)
		if leader := w.leader(); leader != nil && leader.core.Office().Ready && target == 0 && len(w.leaders) > 0 {
			acks := w.acks
			w.run(w.now + 300*time.Millisecond)
			if w.acks > acks {
				target = w.lastAck
			}
		}
		behind := false
		for _, n := range w.nodes {
			behind = behind || w.isMember(n) && (!n.up || n.machine.at.Index < target)
		}
		if target > 0 && !behind {
			return
		}
	}
	if w.violation == nil {
		w.violation = errNoProgress
	}
}

func TestNothingAcknowledgedIsLostWhateverFails(t *testing.T) {
	var total facts
	if underRace { // the detector takes ten times as long
		*seeds = max(1, *seeds/10)
	}
	for i := range *seeds {
		p := planOf(*first + uint64(i))
		w := simulate(p)
		if w.violation != nil {
			t.Fatalf("seed %d: %v (again with -run TestNothingAcknowledged -seeds 1 -first-seed %d)", p.seed, w.violation, p.seed)
		}
		total.acks += w.acks
		total.elections += w.elections
		total.snapshots += w.snapshots
		total.streams += w.streams
		total.cutOff += w.cutOff
		total.interrupted += w.interrupted
		total.deposed += w.deposed
		total.changed += w.changed
		total.left += w.left
		total.gaveUp += w.gaveUp
		total.barred += w.barred
		total.reads += w.reads
		total.quorumReads += w.quorumReads
		total.suspensions += w.suspensions
	}
	t.Logf("%d seeds: %d entries acknowledged, %d elections, %d reads by lease, %d by quorum",
		*seeds, total.acks, total.elections, total.reads, total.quorumReads)
	t.Logf("%d snapshots begun, of which %d were cut off, %d with the leader's office; %d installed, and %d installations interrupted",
		total.streams, total.cutOff, total.deposed, total.snapshots, total.interrupted)
	t.Logf("the members were changed %d times; %d nodes ended because they were removed; %d leaders gave their office away because they were; nodes were barred %d times, and machines suspended %d times", total.changed, total.left, total.gaveUp, total.barred, total.suspensions)
	if *seeds >= 300 && (total.changed < *seeds/2 || total.left < *seeds/20 || total.gaveUp == 0) {
		t.Error("the simulation does not change the members as often as it should")
	}
	if *seeds >= 300 && total.suspensions < *seeds/20 {
		t.Error("the simulation suspends too few machines")
	}
	if *seeds >= 300 && (total.cutOff == 0 || total.deposed == 0 || total.snapshots == 0 || total.interrupted == 0) {
		t.Error("the simulation does not disturb snapshots in all the ways in which it should")
	}
	for what, n := range map[string]int{"entry was acknowledged": total.acks / *seeds, "leader was elected": total.elections / *seeds, "read was answered": total.reads / *seeds} {
		if n == 0 {
			t.Errorf("less than one %s a seed: the simulation does not do what it is for", what)
		}
	}
}

// What the simulation is worth: with one thing broken, it finds out.
func TestSimulationFindsWhatIsBroken(t *testing.T) {
	for _, test := range []struct {
		what  string
		apply func(*plan)
		stops bool   // what is found is that the cluster stops
		from  uint64 // the first seed: those before it find nothing, and take a minute with the race detector
	}{
		{"disks don't sync", func(p *plan) { p.noFsync = true }, false, 1},
		{"reads without a lease", func(p *plan) { p.noLease = true }, false, 1},
		{"a lease longer than the promise", func(p *plan) { p.longLease = true }, false, 1},
		{"a lease by the monotonic clock alone", func(p *plan) { p.stoppedWalls, p.suspends = true, true }, false, 110},
		{"votes in spite of the promise", func(p *plan) { p.noPromise, p.separations = true, true }, false, 1},
		{"votes are forgotten", func(p *plan) { p.forgetVote = true }, false, 1},
		{"a snapshot lacks its last entries", func(p *plan) { p.oldCopy = true }, false, 1},
		{"a start knows the founders only", func(p *plan) { p.oldMembers, p.changes = true, true }, false, 180},
		{"unfit nodes wait for others for good", func(p *plan) { p.barsForGood, p.bars = true, true }, true, 1},
		{"removals are told before the disk has them", func(p *plan) { p.tellsEarly, p.changes = true, true }, true, 1},
	} {
		t.Run(test.what, func(t *testing.T) {
			for seed := range uint64(2000) {
				p := planOf(test.from + seed)
				p.nodes = 3
				test.apply(&p)
				if w := simulate(p); w.violation != nil && errors.Is(w.violation, errNoProgress) == test.stops {
					t.Logf("found with seed %d: %v", p.seed, w.violation)
					return
				}
			}
			t.Error("not found with any seed")
		})
	}
}

func TestSimulationFollowsFromItsSeed(t *testing.T) {
	for seed := range uint64(5) {
		a, b := simulate(planOf(seed+1)), simulate(planOf(seed+1))
		if a.trace != b.trace || fmt.Sprint(a.violation) != fmt.Sprint(b.violation) {
			t.Errorf("seed %d ran in two ways: %x and %x", seed+1, a.trace, b.trace)
		}
	}
}
