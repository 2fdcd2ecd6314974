package session

import (
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/stats"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Turn is the work of one goroutine between two moments at which it has nothing
// to do: scratch memory that routing needs, and the connections that got output
// and must be flushed at the end. A reader's turn is what it does with the bytes
// of one read; it is pooled, so that an idle connection holds none.
type Turn struct {
	env      *Env
	Self     *peer.Peer // the reader's own connection, which it flushes itself; nil for others
	Publish  mqtt.Publish
	Connect  mqtt.Connect
	delivery mqtt.Delivery
	Out      message.Outgoing
	Matches  []*Subscription
	Seen     map[*Session]int // scratch of route: position in matches
	SubIDs   []uint32
	props    []byte
	Dirty    []*peer.Peer
	Notified []*peer.Peer // connections that got a handler's notification
	ending   []*Session   // sessions whose queue passed its bound

	Saves        []save     // what was enqueued and belongs on disk, until commit
	Deletes      [][]byte   // keys of rows to go with that
	row, key     []byte     // scratch
	Feed         []*Session // sessions that have more to send than is in their queue in memory
	nearFull     []*Session // sessions whose queue has come near its bound
	whenFlushed  []func(t *Turn)
	MustNotBlock bool // others wait for this goroutine: it must not read the disk

	Chain []Link // scratch of route: matches of the same session

	// Scratch is the Handler's: what it leaves here it finds again, or nothing, in
	// a later turn of any connection.
	Scratch any

	// Grants is the version of the access.Grants by which the reader checks the PUBLISH in
	// hand; 0: it asks for each decision.
	Grants uint64

	Debt   int  // of a reader, from the turns before this one, in units of pace.go
	Worked int  // of a reader, in these units
	paced  int  // work when the reader last let others pass
	inside bool // the reader has a place in the gate
	Asked  bool // of a reader: its client awaits an answer to a packet of this turn

	PacketsIn int64         // counted here, and added to the broker's at the flush, as In and out are
	In, out   stats.Tally   // PUBLISH packets
	counter   *atomic.Int64 // of the handler's
	countedBy int64         // to be added to counter at the flush
}

var turns = sync.Pool{New: func() any { return new(Turn) }}

// NewTurn begins the work of a goroutine that isn't a reader.
func (e *Env) NewTurn() *Turn {
	t := turns.Get().(*Turn)
	t.env = e
	t.Publish.Bounds = e.Bounds
	return t
}

// Do gives do a turn of its own. The turn isn't ended by a deferred call: after a
// panic it must not be flushed, which takes locks that may have stayed locked.
func (e *Env) Do(do func(t *Turn)) {
	t := e.NewTurn()
	do(t)
	t.End()
}

// MarkDirty remembers that c has output to be flushed.
func (t *Turn) MarkDirty(c *peer.Peer) {
	if c == t.Self || len(t.Dirty) > 0 && t.Dirty[len(t.Dirty)-1] == c {
		return
	}
	t.Dirty = append(t.Dirty, c)
}

// fewDirty is how many connections the journal's committer writes to itself after a
// batch: to wake a flusher takes longer. To more of them several processors write
// sooner than one.
const fewDirty = 8

// MessageOf gives a Message of what is being routed, with a reference for the caller.
func (t *Turn) MessageOf(o *message.Outgoing) *message.Message { return o.Message(&t.props) }

// EndSession has a session end that can't go on without a hole in what its client gets,
// when the turn is flushed.
func (t *Turn) EndSession(s *Session) { t.ending = append(t.ending, s) }

// WhenFlushed has do called when the turn is flushed: then the outputs have what this turn
// has written to them.
func (t *Turn) WhenFlushed(do func(t *Turn)) { t.whenFlushed = append(t.whenFlushed, do) }

// Flush hands the connections with output to the flushers, after it has seen to
// what could not be done under the locks of routing: sessions whose queue passed
// its bound end, messages that wait on disk are read.
func (t *Turn) Flush() {
	for len(t.ending)+len(t.Feed)+len(t.Saves)+len(t.nearFull)+len(t.whenFlushed) > 0 {
		t.env.Commit(t, nil)
		switch {
		case len(t.ending) > 0:
			s := t.ending[len(t.ending)-1]
			t.ending = t.ending[:len(t.ending)-1]
			t.env.EndOverflowed(t, s)
		case len(t.Feed) > 0:
			s := t.Feed[len(t.Feed)-1]
			t.Feed = t.Feed[:len(t.Feed)-1]
			t.env.ResumeFeed(t, s)
		case len(t.whenFlushed) > 0:
			do := t.whenFlushed[len(t.whenFlushed)-1]
			t.whenFlushed = t.whenFlushed[:len(t.whenFlushed)-1]
			do(t)
		case len(t.nearFull) > 0:
			s := t.nearFull[len(t.nearFull)-1]
			t.nearFull = t.nearFull[:len(t.nearFull)-1]
			t.env.isNearFull(s)
		}
	}
	t.count()
	here := t == t.env.deferredOutput && len(t.Dirty) <= fewDirty
	for i, c := range t.Dirty {
		if here {
			c.Transport.FlushOnly()
		} else {
			c.Transport.FlushSoon()
		}
		t.Dirty[i] = nil
	}
	t.Dirty = t.Dirty[:0]
	for i, c := range t.Notified {
		c.Transport.FlushBulk()
		t.Notified[i] = nil
	}
	t.Notified = t.Notified[:0]
}

// count adds to the broker's counters what this turn has counted: a counter that
// all processors write to, packet by packet, costs more than the rest of a packet.
func (t *Turn) count() {
	if t.PacketsIn > 0 {
		t.env.Counters.PacketsIn.Add(t.PacketsIn)
		if t.inside {
			t.env.Counters.PacketsPaced.Add(t.PacketsIn)
		}
	}
	t.PacketsIn = 0
	t.In.MoveTo(&t.env.Counters.In, &t.env.Counters.MessagesIn)
	t.out.MoveTo(&t.env.Counters.Out, &t.env.Counters.MessagesOut)
	if t.countedBy > 0 {
		t.counter.Add(t.countedBy)
		t.countedBy = 0
	}
}

// Count adds one to a counter of a Handler's, at the end of the turn.
func (t *Turn) Count(counter *atomic.Int64) {
	if t.counter != counter {
		t.count()
		t.counter = counter
	}
	t.countedBy++
}

// End flushes and gives the turn back.
func (t *Turn) End() {
	t.Flush()
	t.LeaveGate()
	t.Debt, t.Self, t.env, t.MustNotBlock, t.Worked, t.paced, t.Grants = 0, nil, nil, false, 0, 0, 0
	if max(cap(t.Matches), cap(t.Dirty), cap(t.Saves)) > 2*MaxDirty || max(cap(t.props), cap(t.row)) > 64<<10 {
		return // an unusual turn; don't keep its memory
	}
	turns.Put(t)
}

// LockDeferred gives the turn of those who aren't readers: completions, timers.
// Its connections are flushed when Broker.FlushDeferred is called.
func (e *Env) LockDeferred() *Turn {
	e.deferredMu.Lock()
	return e.deferredOutput
}

func (e *Env) UnlockDeferred() { e.deferredMu.Unlock() }

// FlushDeferred flushes the connections that completions wrote to. The journal
// calls it when it has run the callbacks of a batch, so that each connection
// gets one write for all of them.
func (e *Env) FlushDeferred() {
	t := e.LockDeferred()
	defer e.UnlockDeferred()
	t.Flush()
}

// Link leads from one match to the next of the same session.
type Link struct {
	Next    int  // 0: there is none
	Follows bool // another match leads here
}

// MaxDirty is how many connections a turn of a reader writes to before it has
// them flushed, although there is more to read.
const MaxDirty = 4096
