package engine

import (
	"sync"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/engine/unapplied"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// change has what must be done when the batch with a change of a key or of a memo is
// durable: the engine notifies the key's watchers, removes a deletion's tombstone, and
// lets the memo leave its overlay once Pebble has it. A SET of an unwatched key needs none
// of this and has no change: its reply only waits for the batch.
//
// It belongs to the goroutine that makes it until the journal gets it as a waiter, and to
// the journal's committer from then on: the journal may call Durable before End has returned.
type change struct {
	e *Local

	events    [2]statestore.Event // numEvents of them, from the rules; their keys and values are in key and value, or lasting
	numEvents int
	key       []byte   // a copy
	value     []byte   // a copy of the value in an event
	own       *watch   // the requester's own, if it watches the key
	watchers  []*watch // as they were at the change, own among them
	requester journal.Waiter

	tombstone *shard // the shard of the key's tombstone; nil: it has none
	hash      uint64 // of the key
	deletion  hlc.Timestamp

	unapplied unapplied.Change // of a memo; zero if none has changed
}

var changes = sync.Pool{New: func() any { return new(change) }}

func (e *Local) newChange() *change {
	ch := changes.Get().(*change)
	ch.e = e
	return ch
}

// release returns the change to the pool, without references to the key.
func (ch *change) release() {
	key, value := ch.key, ch.value
	*ch = change{}
	ch.key, ch.value = kept(key, maxKeptRow), kept(value, maxKeptValue)
	changes.Put(ch)
}

// Durable implements journal.Waiter. On the requester's connection the notification of a
// change precedes the reply to it (protocol, section 6). The other watchers, which may be
// thousands, come after the reply. So the order of calls is: the requester's own watch, its
// Waiter, the other watchers.
//
// The watchers are those that the key had when it was changed. None is notified after the
// answer to its STOP: that answer awaits the journal from a moment after the key's last
// change was appended, so its callback comes after this one. A session that was closed
// meanwhile is skipped (see tell).
func (ch *change) Durable(batch journal.Seq) {
	ch.tellOwn(batch)
	if ch.requester != nil {
		ch.requester.Durable(batch)
	}
	ch.tellOthers()
	ch.release()
}

// tellOwn does what comes before the reply.
func (ch *change) tellOwn(batch journal.Seq) {
	if !ch.unapplied.IsZero() {
		ch.e.settle(batch, ch.unapplied)
	}
	if ch.own != nil {
		ch.tell(ch.own)
	}
}

// tellOthers does what comes after the reply.
func (ch *change) tellOthers() {
	for _, w := range ch.watchers {
		if w != ch.own {
			ch.tell(w)
		}
	}
	if ch.tombstone != nil {
		ch.tombstone.dropTombstone(ch.key, ch.hash, ch.deletion)
	}
}

func (ch *change) tell(w *watch) {
	sink := w.session.origin.Sink
	for i := range ch.numEvents {
		if sink == nil || w.session.closed.Load() {
			return
		}
		sink.Event(&ch.events[i])
	}
}

// carryOut replaces the key's record r as was decided, and appends the key's row to the
// journal. by is the session that made the change, nil for expiry. The shard's lock
// is held.
func (d *decision) carryOut(sh *shard, key []byte, hash uint64, r table.Record, by *session) (wait Wait) {
	e, entry := d.e, d.res.Entry
	d.row = append(append(d.row[:0], rows.KeyPrefix...), key...)
	watchers := sh.watching(key)
	var ch *change
	if entry == nil || watchers != nil || d.memo != nil {
		ch = e.newChange()
		ch.key = append(ch.key[:0], key...)
		if d.memo != nil {
			ch.unapplied = d.change
		}
	}
	r = sh.put(r, key, hash, entry, d.res.Last)
	if entry == nil {
		ch.tombstone, ch.hash, ch.deletion = sh, hash, d.res.Last
	}
	if watchers != nil {
		ch.aim(watchers, by)
		ch.take(&d.res, sh, r)
	}
	if d.owner != 0 {
		r.SetOwner(d.owner)
	}
	diskMs := d.diskDeadline(entry)
	wait.Asked = ch != nil && ch.requester != nil
	a := e.journal.Begin()
	wait.Batch = a.Seq()
	if d.memo != nil {
		d.memo.Batch = wait.Batch
	}
	if watchers != nil {
		watchers.Shared = wait.Batch
	}
	rows.Write(a, d.row, entry, diskMs)
	if d.memo != nil {
		d.appendMemo(a)
	}
	var w journal.Waiter
	if ch != nil {
		w = ch
	}
	a.End(w)
	r.SetBatch(uint64(wait.Batch))
	if diskMs != 0 {
		e.expiry.arm(entry.DeadlineMs)
	}
	return wait
}

// aim finds the watchers to notify, and the requester's Waiter.
func (ch *change) aim(watchers *watchers, by *session) {
	ch.watchers = watchers.All
	if by != nil {
		ch.own = by.watching(ch.key)
		ch.requester = by.origin.Waiter
	}
}

// take copies the events. The value of a SET's event must outlive the command's bytes: it is
// the record's own value if that is on the Go heap, where it never changes, and else a copy.
func (ch *change) take(res *statestore.Result, sh *shard, r table.Record) {
	ch.numEvents = res.NumEvents
	for i := range ch.numEvents {
		ev := &ch.events[i]
		*ev = res.Events[i]
		ev.Key = ch.key
		switch {
		case ev.Kind != statestore.KeySet:
		case r.Lasting():
			ev.Value = sh.table.Value(r)
			ev.Lasting = true
		default:
			ch.value = append(ch.value[:0], ev.Value...)
			ev.Value = ch.value
		}
	}
}
