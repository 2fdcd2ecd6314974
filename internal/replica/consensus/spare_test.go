package consensus

import (
	"testing"
	"time"
)

// busy is a world of three nodes whose leader has proposed an entry since the last tick, and the one of its
// followers that has answered first.
func busy(t *testing.T) (w *world, leader, prompt *node) {
	t.Helper()
	w = newWorld(plan{seed: 1, nodes: 3})
	w.run(5 * time.Second)
	leader = w.leader()
	if leader == nil {
		t.Fatal("no node leads")
	}
	for range 100 {
		leader.propose()
		w.run(w.now + 10*time.Millisecond) // in which it is committed
		if s := &leader.core.spares; len(s.answered) == 1 && len(s.held) == 1 {
			return w, leader, w.nodes[s.answered[0]-1]
		}
	}
	t.Fatalf("nothing is held for a follower: %+v", leader.core.spares)
	return nil, nil, nil
}

// The follower without which there is a quorum gets several entries with one message, and has all of them
// soon.
func TestSpareFollowerGetsEntriesTogether(t *testing.T) {
	w, leader, _ := busy(t)
	const entries = 200
	before := w.appends
	for range entries {
		leader.propose()
		w.run(w.now + 10*time.Millisecond)
		if leader.machine.at.Index != leader.core.tail {
			t.Fatalf("the leader has entries up to %d, and proposed %d", leader.machine.at.Index, leader.core.tail)
		}
	}
	if sent := w.appends - before; sent > entries*7/4 {
		t.Errorf("%d messages for %d entries", sent, entries)
	}
	w.run(w.now + 2*tick)
	for _, n := range w.nodes {
		if n.machine.at.Index != leader.core.tail {
			t.Errorf("node %d has entries up to %d two ticks later, the last is %d", n.id, n.machine.at.Index, leader.core.tail)
		}
	}
	if w.violation != nil {
		t.Error(w.violation)
	}
}

// Entries and bytes that are held have bounds.
func TestWhatIsHeldIsBounded(t *testing.T) {
	w, leader, _ := busy(t)
	for _, test := range []struct {
		size, fit int // bytes of an entry; how many of them are held with the first one, which has few
	}{{size: 10, fit: maxHeld - 2}, {size: maxHeldBytes / 3, fit: 2}, {size: maxHeldBytes - 1000, fit: 1}, {size: maxHeldBytes, fit: 0}} {
		leader.work()
		for len(leader.core.spares.held) != 1 || len(leader.core.spares.held[0].m.GetEntries()) != 1 {
			leader.propose()
			if len(leader.core.spares.held) == 0 {
				w.run(w.now + 10*time.Millisecond)
			}
		}
		for i := range test.fit + 1 {
			if len(leader.core.spares.held) != 1 {
				t.Errorf("%d more entries of %d bytes are held, want %d", i-1, test.size, test.fit)
				break
			}
			if _, err := leader.core.Propose(make([]byte, test.size)); err != nil {
				t.Fatal(err)
			}
			leader.work()
		}
		if len(leader.core.spares.held) != 0 {
			t.Errorf("%d more entries of %d bytes are held", test.fit+1, test.size)
		}
	}
}

// A leader whose prompt follower has died commits with the other one as soon as it is told that entries are
// late.
func TestHurry(t *testing.T) {
	w, leader, prompt := busy(t)
	prompt.stop(false)
	leader.propose()
	w.run(w.now + 8*time.Millisecond) // less than maxHeldTime since busy
	if len(leader.core.spares.held) != 1 || leader.machine.at.Index == leader.core.tail {
		t.Fatalf("the entry is not held, or committed: %+v", leader.core.spares)
	}
	leader.core.Hurry()
	leader.work()
	w.run(w.now + 8*time.Millisecond)
	if leader.machine.at.Index != leader.core.tail {
		t.Errorf("the leader has entries up to %d, and proposed %d", leader.machine.at.Index, leader.core.tail)
	}
	leader.propose()
	w.run(w.now + 10*time.Millisecond)
	if leader.machine.at.Index != leader.core.tail {
		t.Error("an entry that was proposed later was not committed soon")
	}
	if w.violation != nil {
		t.Error(w.violation)
	}
}
