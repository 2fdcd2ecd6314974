package relief

import (
	"slices"
	"testing"
)

// connection is a Holder, and remembers whether it was closed.
type connection struct {
	waiting, unfinished int64
	progressed          bool
	closed              bool
}

func (c *connection) Waiting() int64    { return c.waiting }
func (c *connection) Unfinished() int64 { return c.unfinished }
func (c *connection) Progressed() bool  { return c.progressed }
func (c *connection) Relieve(int64)     { c.closed = true }

// connections are a Source with nothing to evict.
type connections []*connection

func (cs connections) Evict() {}

func (cs connections) Holders() (holders []Holder) {
	for _, c := range cs {
		holders = append(holders, c)
	}
	return holders
}

// Those that hold most are closed, and no more of them than it takes; those with little
// never are.
func TestTheConnectionsThatHoldMostAreClosed(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	most, more, little := &connection{waiting: 2 * size}, &connection{waiting: size}, &connection{waiting: Least - 1}
	r := newRelief(connections{little, more, most})
	if !r.closeHeaviest(size, true) || !most.closed || more.closed {
		t.Error("not the connection that holds most was closed, and only that")
	}
	if !r.closeHeaviest(10*size, true) || !more.closed || little.closed {
		t.Error("for more memory not every connection was closed that holds much, and only those")
	}
	if r.closeHeaviest(10*size, true) {
		t.Error("connections were closed again")
	}
}

// While the memory of a connection that was closed is coming back, no other is closed in
// its place; after longestReturn looks it isn't waited for any more.
func TestReliefWaitsForWhatItHasClosed(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	ends, other := &connection{waiting: size}, &connection{waiting: size}
	r := newRelief(connections{ends, other})
	r.closed[ends] = closing{bytes: size}
	for range longestReturn {
		if r.closeHeaviest(size, true) {
			t.Fatal("another connection was closed although enough memory is coming back")
		}
	}
	if !r.closeHeaviest(size, true) {
		t.Error("no connection was closed although what was waited for has not come back in time")
	}

	r = newRelief(connections{ends, other})
	r.closed[ends] = closing{bytes: size}
	other.closed = false
	if !r.closeHeaviest(size+1, true) || !other.closed {
		t.Error("not the other connection was closed although too little memory is coming back")
	}
}

// A packet is still coming in as long as bytes of it come, or the reader doesn't take
// them; after a pause it counts like any other.
func TestReliefSparesPacketsThatAreComingIn(t *testing.T) {
	t.Parallel()
	c := &connection{unfinished: 8 << 20}
	r := newRelief(connections{c})
	for look := range longestQuiet {
		if closed, want := r.closeHeaviest(1, true), look == longestQuiet-1; closed != want {
			t.Errorf("look %d: the connection was closed: %v", look, closed)
		}
	}

	c.progressed = true
	r = newRelief(connections{c})
	looks := make([]bool, 2*longestQuiet)
	for i := range looks {
		looks[i] = r.closeHeaviest(1, true)
	}
	if slices.Contains(looks, true) {
		t.Error("the connection was closed although bytes of its packet are coming in")
	}
	if !r.closeHeaviest(1, false) {
		t.Error("the connection was not closed although packets that are coming in are spared no more")
	}
}
