package session

import (
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/stats"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Turn is what one goroutine does until it has nothing more to do: it has the scratch
// memory that routing needs, and the connections that got output and must be flushed at
// the end. A reader's turn is what it does with the bytes of one read. Turns are pooled,
// so that an idle connection holds none.
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

	Saves        []save         // what was enqueued and belongs on disk, until commit
	Deletes      [][]byte       // keys of rows to go with that
	row, key     []byte         // scratch
	Feed         []*Session     // sessions that have more to send than is in their queue in memory
	nearFull     []*Session     // sessions whose queue has come near its bound
	Promises     queue.Promises // to the message in hand
	whenFlushed  []func(t *Turn)
	MustNotBlock bool // others wait for this goroutine: it must not read the disk

	Chain []Link // scratch of route: matches of the same session

	// Scratch is the Handler's: what it leaves here, a later turn of any connection may find.
	Scratch any

	// Grants is the version of the access.Grants by which the reader checks the PUBLISH in
	// hand; 0: it asks for each decision.
	Grants uint64

	Debt        int  // of a reader, from the turns before this one, in units of pace.go
	Worked      int  // of a reader, in these units
	paced       int  // work when the reader last let others pass
	inside      bool // the reader has a place in the gate
	ClientWaits bool // of a reader: its client awaits an answer to a packet of this turn

	PacketsIn int64         // counted here, and added to the broker's at the flush, as In and out are
	In, out   stats.Tally   // PUBLISH packets
	counter   *atomic.Int64 // of the handler's
	countedBy int64         // to be added to counter at the flush
}

var turns = sync.Pool{New: func() any { return new(Turn) }}

// NewTurn begins a turn. A reader sets Self afterwards. The caller ends the turn by End.
func (e *Env) NewTurn() *Turn {
	t := turns.Get().(*Turn)
	t.env = e
	t.Publish.Bounds = e.Limits().Packet()
	return t
}

// Do calls do with a turn of its own, and ends the turn. No deferred call ends it: after a
// panic it must not be flushed, since a flush acquires locks that may have stayed locked.
func (e *Env) Do(do func(t *Turn)) {
	t := e.NewTurn()
	do(t)
	t.End()
}

// MarkDirty notes that c has output, which Flush writes. A reader writes its own.
func (t *Turn) MarkDirty(c *peer.Peer) {
	if c == t.Self || len(t.Dirty) > 0 && t.Dirty[len(t.Dirty)-1] == c {
		return
	}
	t.Dirty = append(t.Dirty, c)
}

// fewDirty is up to how many connections the journal's committer writes itself after a
// batch, as it takes longer to wake a flusher. More connections are left to the flushers,
// which write on several processors.
const fewDirty = 8

// MessageOf gives a Message of what is being routed, with a reference for the caller.
func (t *Turn) MessageOf(o *message.Outgoing) *message.Message { return o.Message(&t.props) }

// EndSession makes the next Flush end the session: its client would otherwise miss messages
// without notice.
func (t *Turn) EndSession(s *Session) { t.ending = append(t.ending, s) }

// WhenFlushed makes the next Flush call do, before it writes: all that this turn has to
// write is in the outputs by then.
func (t *Turn) WhenFlushed(do func(t *Turn)) { t.whenFlushed = append(t.whenFlushed, do) }

// Flush first does what could not be done under the locks of routing: it ends sessions
// whose queue passed its bound, and reads messages that are on disk only. Then it hands the
// connections with output to the flushers, or after a batch writes a few of them itself.
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
			t.env.noteNearFull(s)
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

// count adds to the broker's counters what this turn has counted: to write to a shared
// counter for each packet would cost more than the rest of the packet.
func (t *Turn) count() {
	if !stats.Counting {
		return
	}
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
	if !stats.Counting {
		return
	}
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

// LockDeferred locks and returns the turn that all of the journal's callbacks share, whose
// output FlushDeferred flushes. The caller calls UnlockDeferred. A goroutine calls
// LockDeferred before it acquires any lock of the broker, the engine or the journal.
func (e *Env) LockDeferred() *Turn {
	e.deferredMu.Lock()
	return e.deferredOutput
}

// UnlockDeferred unlocks what LockDeferred has locked.
func (e *Env) UnlockDeferred() { e.deferredMu.Unlock() }

// FlushDeferred flushes the output of the shared turn. The journal calls it when it has run
// the callbacks of a batch, so that each connection gets one write for all of them.
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

// MaxDirty is to how many connections a reader writes in a turn before it flushes them,
// although it has more input to handle.
const MaxDirty = 4096
