package broker

import (
	"sync"
	"sync/atomic"

	"holdfast/internal/mqtt"
)

// Turn is the work of one goroutine between two moments at which it has nothing
// to do: scratch memory that routing needs, and the connections that got output
// and must be flushed at the end. A reader's turn is what it does with the bytes
// of one read; it is pooled, so that an idle connection holds none.
type Turn struct {
	b        *Broker
	self     *Conn // the reader's own connection, which it flushes itself; nil for others
	publish  mqtt.Publish
	connect  mqtt.Connect
	delivery mqtt.Delivery
	out      outgoing
	matches  []*subscription
	seen     map[*Session]int // scratch of route: position in matches
	subIDs   []uint32
	props    []byte
	dirty    []*Conn
	notified []*Conn    // connections that got a handler's notification
	ending   []*Session // sessions whose queue passed its bound

	saves    []save     // what was enqueued and belongs on disk, until commit
	deletes  [][]byte   // keys of rows to go with that
	row, key []byte     // scratch
	feed     []*Session // sessions that wait for messages from the disk
	nearFull []*Session // sessions whose queue has come near its bound
	hurried  bool       // others wait for this goroutine: it must not read the disk

	chain []link // scratch of route: matches of the same session

	// Scratch is the Handler's: what it leaves here it finds again, or nothing, in
	// a later turn of any connection.
	Scratch any

	work   int  // of a reader, in units of pace.go
	paced  int  // work when the reader last let others pass
	inside bool // the reader has a place in the gate

	packetsIn, messagesIn, messagesOut int64         // counted here, and added to the broker's at the flush
	counter                            *atomic.Int64 // of the handler's
	counted                            int64         // to be added to counter at the flush
}

var turns = sync.Pool{New: func() any { return new(Turn) }}

// turn begins the work of a goroutine that isn't a reader.
func (b *Broker) turn() *Turn {
	t := turns.Get().(*Turn)
	t.b = b
	t.publish.Bounds = b.bounds
	return t
}

// work gives do a turn of its own. The turn isn't ended by a deferred call: after a
// panic it must not be flushed, which takes locks that may have stayed locked.
func (b *Broker) work(do func(t *Turn)) {
	t := b.turn()
	do(t)
	t.end()
}

// touch remembers that c has output to be flushed.
func (t *Turn) touch(c *Conn) {
	if c == t.self || len(t.dirty) > 0 && t.dirty[len(t.dirty)-1] == c {
		return
	}
	t.dirty = append(t.dirty, c)
}

// fewDirty is how many connections the journal's committer writes to itself after a
// batch: to wake a flusher takes longer. To more of them several processors write
// sooner than one.
const fewDirty = 8

// flush hands the connections with output to the flushers, after it has seen to
// what could not be done under the locks of routing: sessions whose queue passed
// its bound end, messages that wait on disk are read.
func (t *Turn) flush() {
	for len(t.ending)+len(t.feed)+len(t.saves)+len(t.nearFull) > 0 {
		t.b.commit(t, nil)
		switch {
		case len(t.ending) > 0:
			s := t.ending[len(t.ending)-1]
			t.ending = t.ending[:len(t.ending)-1]
			t.b.endOverflowed(t, s)
		case len(t.feed) > 0:
			s := t.feed[len(t.feed)-1]
			t.feed = t.feed[:len(t.feed)-1]
			t.b.goOn(t, s)
		case len(t.nearFull) > 0:
			s := t.nearFull[len(t.nearFull)-1]
			t.nearFull = t.nearFull[:len(t.nearFull)-1]
			t.b.isNearFull(s)
		}
	}
	t.count()
	here := t == t.b.later && len(t.dirty) <= fewDirty
	for i, c := range t.dirty {
		if here {
			c.tr.FlushOnly()
		} else {
			c.tr.FlushSoon()
		}
		t.dirty[i] = nil
	}
	t.dirty = t.dirty[:0]
	for i, c := range t.notified {
		c.tr.FlushInCrowd()
		t.notified[i] = nil
	}
	t.notified = t.notified[:0]
}

// count adds to the broker's counters what this turn has counted: a counter that
// all processors write to, packet by packet, costs more than the rest of a packet.
func (t *Turn) count() {
	if t.packetsIn > 0 {
		t.b.stats.PacketsIn.Add(t.packetsIn)
		if t.inside {
			t.b.stats.PacketsPaced.Add(t.packetsIn)
		}
	}
	if t.messagesIn > 0 {
		t.b.stats.MessagesIn.Add(t.messagesIn)
	}
	if t.messagesOut > 0 {
		t.b.stats.MessagesOut.Add(t.messagesOut)
	}
	t.packetsIn, t.messagesIn, t.messagesOut = 0, 0, 0
	if t.counted > 0 {
		t.counter.Add(t.counted)
		t.counted = 0
	}
}

// Count adds one to a counter of a Handler's, at the end of the turn.
func (t *Turn) Count(counter *atomic.Int64) {
	if t.counter != counter {
		t.count()
		t.counter = counter
	}
	t.counted++
}

// end flushes and gives the turn back.
func (t *Turn) end() {
	t.flush()
	t.leaveGate()
	t.self, t.b, t.hurried, t.work, t.paced = nil, nil, false, 0, 0
	if max(cap(t.matches), cap(t.dirty), cap(t.saves)) > 2*maxDirty || max(cap(t.props), cap(t.row)) > 64<<10 {
		return // an unusual turn; don't keep its memory
	}
	turns.Put(t)
}

// lockLater gives the turn of those who aren't readers: completions, timers.
// Its connections are flushed when Broker.FlushLater is called.
func (b *Broker) lockLater() *Turn {
	b.laterMu.Lock()
	return b.later
}

func (b *Broker) unlockLater() { b.laterMu.Unlock() }

// FlushLater is Broker.FlushLater, for a Handler that released an acknowledgement
// outside the journal's callbacks.
func (c *Conn) FlushLater() { c.b.FlushLater() }

// FlushLater flushes the connections that completions wrote to. The journal
// calls it when it has run the callbacks of a batch, so that each connection
// gets one write for all of them.
func (b *Broker) FlushLater() {
	t := b.lockLater()
	defer b.unlockLater()
	t.flush()
}
