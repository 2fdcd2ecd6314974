package engine

import (
	"math"
	"sync"

	"holdfast/internal/journal"
	"holdfast/internal/statestore"
)

// turn is one command, or one expiry, from the moment when its turn has come to
// its reply. It belongs to the goroutine in Do until it is given to the journal
// as a waiter, and to the journal's committer from then on: the journal may call
// Durable before End or Await has returned, so nothing of the turn may be
// touched after either.
type turn struct {
	e          *Local
	completion Completion // nil: an expiry
	held       bool       // Hold was called
	env        statestore.Env
	res        statestore.Result

	stored statestore.Entry // what the rules look at; a view of the table, or of value
	value  []byte           // a copy of what the table had, or of what watchers will be told

	// Of a change only, else zero.
	shard    *shard
	hash     uint64   // of the key
	owner    uint32   // that the key gets
	own      *watch   // the requester's own, if it watches the key
	watchers []*watch // as they were at the change, own among them

	row []byte // the key as it is on disk

	// Of a change to what is remembered for a message only, else zero.
	stripe     *stripe
	memory     *memory // the change
	memoRow    []byte  // where it is on disk
	overlayRow string  // the same, as the overlay has it
	indexRow   []byte  // the row of the index that goes with it, empty for none; then the one that comes
	indexMs    int64   // the deadline by which the index is to have a new one
	found      bool    // the disk had one before
}

// maxKeptRow and maxKeptValue bound the memory that an idle turn holds on to.
const (
	maxKeptRow   = 4 << 10
	maxKeptValue = maxSlot
)

var turns = sync.Pool{New: func() any { return new(turn) }}

func (e *Local) newTurn(c Completion) *turn {
	t := turns.Get().(*turn)
	t.e, t.completion = e, c
	return t
}

// release gives the turn back, with no reference left to what it worked on.
func (t *turn) release() {
	row, memoRow, indexRow, value := t.row, t.memoRow, t.indexRow, t.value
	*t = turn{} // in place: a composite of what stays would be made elsewhere and copied
	t.row, t.memoRow, t.indexRow = kept(row, maxKeptRow), kept(memoRow, maxKeptRow), kept(indexRow, maxKeptRow)
	t.value = kept(value, maxKeptValue)
	turns.Put(t)
}

// releaseRead is release for a turn that has done no more than get: nearly all of it
// is as it was.
func (t *turn) releaseRead() {
	t.completion, t.env.NowMs = nil, 0
	t.stored, t.res.Reply, t.res.Entry = statestore.Entry{}, statestore.Reply{}, nil
	t.value = kept(t.value, maxKeptValue)
	turns.Put(t)
}

func kept(b []byte, most int) []byte {
	if cap(b) > most {
		return nil
	}
	return b[:0]
}

// hold tells the requester that the reply may come later.
func (t *turn) hold() {
	if !t.held {
		t.held = true
		t.completion.Hold()
	}
}

// answer replies as soon as the batch is complete: now, if it is. No lock is
// held.
func (t *turn) answer(batch journal.Seq) {
	if j := t.e.journal; batch > j.Complete() {
		t.hold()
		if j.Await(batch, t) {
			j.Admit()
			return
		}
	}
	t.completion.Reply(&t.res.Reply)
	t.release()
}

// Durable finishes the turn. On the requester's connection the notification of
// a change precedes the reply (protocol, section 6); then the others hear of it.
// The watchers are those of the moment of the change. That none of them is told
// after its STOP was answered follows from the order of waiters: the answer to
// STOP waits for the key's last change. That leaves sessions that were closed.
func (t *turn) Durable(batch journal.Seq) {
	if t.memory != nil {
		t.settleMemo(batch)
	}
	if t.own != nil {
		t.tell(t.own)
	}
	if t.completion != nil {
		t.completion.Reply(&t.res.Reply)
	}
	for _, w := range t.watchers {
		if w != t.own {
			t.tell(w)
		}
	}
	if t.shard != nil && t.res.Entry == nil {
		t.shard.settle(t.key(), t.hash, t.res.Last)
	}
	t.release()
}

func (t *turn) tell(w *watch) {
	sink := w.session.origin.Sink
	for i := range t.res.NumEvents {
		if sink == nil || w.session.closed.Load() {
			return
		}
		sink.Event(&t.res.Events[i])
	}
}

// key is the one that has changed.
func (t *turn) key() []byte { return t.row[len(keyPrefix):] }

// read makes a copy of the record's entry, but for its token, and returns it; nil if
// there is none. The shard's lock is held; the copy needs none.
func (t *turn) read(sh *shard, r record) *statestore.Entry {
	if !r.live() {
		return nil
	}
	sh.table.entry(r, &t.stored)
	if !r.has(recordLarge) {
		t.value = append(t.value[:0], t.stored.Value...)
		t.stored.Value = t.value
	}
	return &t.stored
}

// look fills the environment that every rule needs.
func (t *turn) look() {
	e := t.e
	t.env.Node = e.o.NodeID
	t.env.MaxSkewMs = e.o.MaxSkew.Milliseconds()
	t.env.KeepMs = e.o.Remember.Milliseconds()
	t.env.MaxKeepMs = e.o.MaxRemember.Milliseconds()
	t.env.NowMs, t.env.CutMs = e.now()
	t.env.WallMs = e.clock.WallMs()
}

// decide runs the rules of a write, with the last version and the quota, which
// all keys share, under their lock. What is decided counts from here on, even
// for others, before it is in its place; that is only ever too strict.
// by is the session that writes, nil for expiry.
func (t *turn) decide(sh *shard, key []byte, r record, by *session, rules func(*turn, *statestore.Entry)) {
	e := t.e
	t.look()
	var stored *statestore.Entry
	if r.live() {
		sh.table.fencedEntry(r, &t.stored)
		stored = &t.stored
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	t.env.Last = e.last
	t.env.Room = e.room(r, by)
	rules(t, stored)
	if !t.res.Changed {
		return
	}
	e.issued(t, by)
	t.owner = 0
	if t.res.Entry != nil {
		n := size(key, t.res.Entry)
		e.keys++
		e.bytes += n
		if by != nil {
			if o := e.ownerOf(by); o != nil {
				t.owner = o.number
				e.owns(o, 1, n)
			}
		}
	}
	if stored != nil {
		n := size(key, stored)
		e.keys--
		e.bytes -= n
		e.owns(e.owners.of(r.owner()), -1, -n)
	}
	if t.res.MemoChanged {
		t.indexMs = max(t.indexDeadline(t.res.Memo), e.sweptMs)
		if !t.found {
			e.remembered++
		}
	}
}

// issued takes over the last version, and notes the client if its timestamp is what
// puts the versions far ahead of the wall clock. mu is held.
func (e *Local) issued(t *turn, by *session) {
	before := e.last.Wall
	e.last = t.res.Last
	if by != nil && e.last.Wall > before && e.last.Wall > uint64(max(0, t.env.WallMs)+aheadWarning.Milliseconds()) {
		e.aheadBy = by.origin.ID
		e.expiry.wake()
	}
}

// commit puts the change in the place of the key's record r and appends it to the
// journal. If there is something to do when the batch is durable besides replying,
// the journal owns the turn from then on: given. by is the session that made the
// change, nil for expiry. The shard's lock is held.
func (t *turn) commit(sh *shard, key []byte, hash uint64, r record, by *session) (batch journal.Seq, given bool) {
	e, entry := t.e, t.res.Entry
	t.row = append(append(t.row[:0], keyPrefix...), key...)
	t.shard, t.hash = sh, hash
	watchers := sh.watching(key)
	t.aim(watchers, by)
	r = sh.put(r, key, hash, entry, t.res.Last)
	t.keepValue(sh, r)
	if t.owner != 0 {
		r.setOwner(t.owner)
	}
	deadlineMs, diskMs := int64(never), t.diskDeadline(entry)
	if entry != nil && entry.DeadlineMs != 0 {
		deadlineMs = entry.DeadlineMs
	}

	given = t.completion == nil || entry == nil || watchers != nil || t.memory != nil
	if given && t.completion != nil {
		t.hold() // the reply may come at any moment
	}
	a := e.journal.Begin()
	batch = a.Seq()
	if t.memory != nil {
		t.memory.batch = batch
	}
	if watchers != nil {
		watchers.shared = batch
	}
	if entry == nil {
		a.Delete(t.row)
	} else {
		k, v := a.SetDeferred(len(t.row), encodedSize(entry, diskMs))
		copy(k, t.row)
		encodeEntry(v[:0], entry, diskMs)
	}
	if t.memory != nil {
		t.appendMemo(a)
	}
	var w journal.Waiter
	if given {
		w = t
	}
	a.End(w)
	r.setBatch(batch)
	e.expiry.arm(deadlineMs)
	return batch, given
}

// aim finds those who are to hear of the change.
func (t *turn) aim(watchers *watchers, by *session) {
	if watchers == nil {
		t.res.NumEvents = 0
		return
	}
	for i := range t.res.NumEvents {
		ev := &t.res.Events[i]
		ev.Key = t.key() // not the command's, which is gone by then
	}
	t.watchers = watchers.list
	if by != nil {
		t.own = by.watching(t.key())
	}
}

// keepValue gives the event of a SET a value that outlasts the command's: the record's
// own, if that is on the Go heap, where it never changes, or a copy.
func (t *turn) keepValue(sh *shard, r record) {
	for i := range t.res.NumEvents {
		ev := &t.res.Events[i]
		switch {
		case ev.Kind != statestore.KeySet:
		case r.has(recordLarge):
			_, ev.Value, _ = sh.table.parts(r)
			ev.Lasting = true
		default:
			t.value = append(t.value[:0], ev.Value...)
			ev.Value = t.value
		}
	}
}

// diskDeadline turns the deadline into the time of the wall clock.
func (t *turn) diskDeadline(entry *statestore.Entry) int64 {
	if entry == nil || entry.DeadlineMs == 0 {
		return 0
	}
	left, wall := max(0, entry.DeadlineMs-t.env.NowMs), max(1, t.env.WallMs)
	if left > math.MaxInt64-wall {
		return math.MaxInt64
	}
	return wall + left
}

// indexDeadline is the same for what is remembered. It is read again while the
// server runs, so while the clocks agree it is the deadline itself, and not off
// by the millisecond between the looks at them.
func (t *turn) indexDeadline(memo *statestore.Memo) int64 {
	step := t.env.WallMs - t.env.NowMs
	if -2 <= step && step <= 2 || memo.DeadlineMs > math.MaxInt64-max(0, step) {
		step = 0
	}
	return max(1, memo.DeadlineMs+step)
}
