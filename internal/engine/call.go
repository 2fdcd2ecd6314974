package engine

import (
	"math"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/engine/ahead"
	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Call is one command and the reply to it, with the memory that running it takes. One
// goroutine at a time uses it, for one command after the other. The zero value is ready for
// use.
type Call struct {
	Command statestore.Command

	decision
}

// Reply is the reply to the last Do. It and its bytes are valid until the next Do or Clear;
// bytes that it calls lasting stay valid.
func (c *Call) Reply() *statestore.Reply { return &c.res.Reply }

// Clear drops what the reply refers to, and unusually large buffers. The caller calls it
// when it has used the reply.
func (c *Call) Clear() {
	if c.Command.Verb == statestore.Get { // nearly all of the rest is as it was
		c.stored, c.res.Reply, c.res.Entry = statestore.Entry{}, statestore.Reply{}, nil
		c.value = kept(c.value, maxKeptValue)
	} else {
		c.decision.clear()
	}
}

// decision is what the rules look at and what they decide, for one command or one
// expiry, until the change is made.
type decision struct {
	e   *Local
	env statestore.Env
	res statestore.Result

	stored statestore.Entry // what the rules look at; a view of the table, or of value
	value  []byte           // a copy of the value in the table
	owner  uint32           // that a changed key gets
	row    []byte           // the key as it is on disk

	remembering
}

// maxKeptRow and maxKeptValue bound the buffers, in bytes, that an idle decision or change
// keeps.
const (
	maxKeptRow   = 4 << 10
	maxKeptValue = table.MaxSlot
)

func kept(b []byte, most int) []byte {
	if cap(b) > most {
		return nil
	}
	return b[:0]
}

// decisions are for changes that no command asks for: expiry.
var decisions = sync.Pool{New: func() any { return new(decision) }}

func (e *Local) newDecision() *decision {
	d := decisions.Get().(*decision)
	d.e = e
	return d
}

// release returns a decision to the pool of newDecision.
func (d *decision) release() {
	d.clear()
	decisions.Put(d)
}

// clear resets everything but the buffers, which are used again.
func (d *decision) clear() {
	row, memoRow, indexRow, value := d.row, d.memoRow, d.indexRow, d.value
	*d = decision{} // in place: a composite of what stays would be made elsewhere and copied
	d.row, d.memoRow, d.indexRow = kept(row, maxKeptRow), kept(memoRow, maxKeptRow), kept(indexRow, maxKeptRow)
	d.value = kept(value, maxKeptValue)
}

// read makes a copy of the record's entry, but for its token, and returns it; nil if
// there is none. The shard's lock is held; the copy needs none.
func (d *decision) read(sh *shard, r table.Record) *statestore.Entry {
	if !r.Live() {
		return nil
	}
	sh.table.Entry(r, &d.stored)
	if !r.Lasting() {
		d.value = append(d.value[:0], d.stored.Value...)
		d.stored.Value = d.value
	}
	return &d.stored
}

// look fills the environment that every rule needs.
func (d *decision) look() {
	e := d.e
	d.env.Node = e.o.NodeID
	d.env.MaxSkewMs = e.o.MaxSkew.Milliseconds()
	d.env.KeepMs = e.o.Remember.Milliseconds()
	d.env.MaxKeepMs = e.o.MaxRemember.Milliseconds()
	d.env.NowMs, d.env.CutMs = e.now()
	d.env.WallMs = e.clock.WallMs()
}

// decide runs the rules of a write, with the last version and the quota, which
// all keys share, under their lock. Last version and quota include the change from here
// on; the table has it a moment later (carryOut), still under the shard's lock.
// by is the session that writes, nil for expiry.
func (d *decision) decide(sh *shard, key []byte, r table.Record, by *session, rules func(*decision, *statestore.Entry)) {
	e := d.e
	d.look()
	own := d.boundsOf(by)
	var stored *statestore.Entry
	if r.Live() {
		sh.table.FencedEntry(r, &d.stored)
		stored = &d.stored
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	d.env.Last = e.last
	e.findRoom(&d.env.Room, r, by, own)
	rules(d, stored)
	if !d.res.Changed {
		return
	}
	e.issued(d, by)
	owner := uint32(0)
	d.owner = 0
	if stored != nil {
		owner = r.Owner()
	}
	d.count(by, key, d.res.Entry, stored, owner)
	if d.res.MemoChanged {
		d.placeMemo()
		d.countMemo()
	}
}

// count counts a change for the quotas: the key had the entry stored, which belonged to
// owner, and gets the one that the session by writes. nil: none. The engine's mu is held.
func (d *decision) count(by *session, key []byte, entry, stored *statestore.Entry, owner uint32) {
	e := d.e
	if entry != nil {
		var o *quota.Owner
		if by != nil {
			o = e.ownerOf(by)
		}
		if o != nil {
			d.owner = o.Number
		}
		e.quota.Add(o, size(key, entry))
	}
	if stored != nil {
		e.quota.Remove(e.quota.ByNumber(owner), size(key, stored))
	}
}

// placeMemo finds the place in the index of the message that is remembered now. The engine's
// mu is held.
func (d *decision) placeMemo() { d.indexMs = max(d.indexDeadline(d.res.Memo), d.e.sweptMs) }

// countMemo counts what is remembered now in the place of before. The engine's mu is held.
func (d *decision) countMemo() {
	d.counts = statestore.MemoChange(d.before, d.res.Memo, rows.NameSize(d.memoRow))
	d.e.quota.Remembered.Add(d.counts)
}

// boundsOf gives the bounds of the session's principal, and judges timestamps by them.
func (d *decision) boundsOf(by *session) (own quota.Bounds) {
	if by != nil && by.origin.Bounds != nil {
		if own = by.origin.Bounds(); own.MaxSkew > 0 {
			d.env.MaxSkewMs = min(d.env.MaxSkewMs, own.MaxSkew.Milliseconds())
		}
	}
	return own
}

// issued records the version that the change has got as the last one, and the client if its
// timestamp has put the versions far ahead of the wall clock. mu is held.
func (e *Local) issued(d *decision, by *session) {
	before := e.last.Wall
	e.last = d.res.Last
	if by != nil && e.last.Wall > before && e.last.Wall > uint64(max(0, d.env.WallMs)+ahead.Warning.Milliseconds()) {
		e.aheadBy = by.origin.ID
		e.expiry.wake()
	}
}

// diskDeadline is the entry's deadline on the wall clock, in ms; 0: none.
func (d *decision) diskDeadline(entry *statestore.Entry) int64 {
	if entry == nil || entry.DeadlineMs == 0 {
		return 0
	}
	left, wall := max(0, entry.DeadlineMs-d.env.NowMs), max(1, d.env.WallMs)
	if left > math.MaxInt64-wall {
		return math.MaxInt64
	}
	return wall + left
}

// indexDeadline is the same for a memo. The server reads it again while it runs. So while
// the two clocks agree it is the memo's deadline itself, without the millisecond that may
// pass between reading the one clock and the other.
func (d *decision) indexDeadline(memo *statestore.Memo) int64 {
	step := d.env.WallMs - d.env.NowMs
	if -2 <= step && step <= 2 || memo.DeadlineMs > math.MaxInt64-max(0, step) {
		step = 0
	}
	return max(1, memo.DeadlineMs+step)
}

// ownerOf returns the session's client as an owner of keys; nil if there are too many, or
// the session is closed. mu is held.
func (e *Local) ownerOf(s *session) *quota.Owner {
	if s.owner == nil && !s.closed.Load() {
		s.owner = e.quota.Join(s.origin.ID)
	}
	return s.owner
}

// findRoom fills room with what the store and the client of the session, nil for none, may
// still grow by changing the record r. mu is held.
func (e *Local) findRoom(room *statestore.Room, r table.Record, by *session, own quota.Bounds) {
	*room = statestore.Room{}
	var held *quota.Owner
	if by != nil {
		if held = by.owner; held == nil { // it has written nothing yet, but the client may have, before
			held = e.quota.ByID(by.origin.ID)
		}
	}
	e.quota.Room(room, r, by != nil, held, own)
	room.Disk = e.diskRoom()
}

func (e *Local) diskRoom() statestore.DiskRoom {
	switch {
	case e.journal.Scarce():
		return statestore.DiskScarce
	case e.journal.Low():
		return statestore.DiskLow
	}
	return statestore.DiskFree
}
