package engine

import (
	"sync"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// change is what remains to be done about a change of a key or of what is remembered,
// once its batch is durable: the key's watchers are told, a deletion's tombstone goes,
// a memo settles. A SET of an unwatched key needs none of it, and has no
// change: its reply only waits for the batch.
//
// It belongs to the goroutine that makes it until it is given to the journal as a waiter,
// and to the journal's committer from then on: the journal may call Durable before End has returned.
type change struct {
	e *Local

	events    [2]statestore.Event // numEvents of them, from the rules; their keys and values are in key and value, or lasting
	numEvents int
	key       []byte   // its own memory
	value     []byte   // its own memory, of the value in an event
	own       *watch   // the requester's own, if it watches the key
	watchers  []*watch // as they were at the change, own among them
	requester journal.Waiter

	tombstone *shard // where the key's is; nil: it has none
	hash      uint64 // of the key
	deletion  hlc.Timestamp

	settling // memo is nil if no memo has changed
}

var changes = sync.Pool{New: func() any { return new(change) }}

func (e *Local) newChange() *change {
	ch := changes.Get().(*change)
	ch.e = e
	return ch
}

// release gives the change back, with no reference left to what it was about.
func (ch *change) release() {
	key, value := ch.key, ch.value
	*ch = change{}
	ch.key, ch.value = kept(key, maxKeptRow), kept(value, maxKeptValue)
	changes.Put(ch)
}

// Durable implements journal.Waiter. On the requester's connection the notification of a
// change precedes the reply to it (protocol, section 6); then the others hear of it, who
// may be thousands. That is the order of calls here: the requester's own watch, its
// Waiter, the other watchers.
//
// The watchers are those of the moment of the change. None of them is told after its STOP
// was answered: the answer to STOP asks the journal after the key's last change was
// appended, so its callback comes after this one. A session that was closed meanwhile is
// passed over (see tell).
func (ch *change) Durable(batch journal.Seq) {
	ch.tellOwn(batch)
	if ch.requester != nil {
		ch.requester.Durable(batch)
	}
	ch.tellOthers()
	ch.release()
}

// tellOwn is what comes before the reply.
func (ch *change) tellOwn(batch journal.Seq) {
	if ch.memo != nil {
		ch.settling.batch = batch
		ch.e.settle(ch.settling)
	}
	if ch.own != nil {
		ch.tell(ch.own)
	}
}

// tellOthers is what comes after the reply.
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

// carryOut puts what was decided in the place of the key's record r and appends it to
// the journal. by is the session that made the change, nil for expiry. The shard's lock
// is held.
func (d *decision) carryOut(sh *shard, key []byte, hash uint64, r table.Record, by *session) (wait Wait) {
	e, entry := d.e, d.res.Entry
	d.row = append(append(d.row[:0], rows.KeyPrefix...), key...)
	watchers := sh.watching(key)
	var ch *change
	if entry == nil || watchers != nil || d.memo != nil {
		ch = e.newChange()
		ch.key = append(ch.key[:0], key...)
		ch.settling = d.settling()
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
		d.memo.batch = wait.Batch
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

// aim finds those who are to hear of the change.
func (ch *change) aim(watchers *watchers, by *session) {
	ch.watchers = watchers.All
	if by != nil {
		ch.own = by.watching(ch.key)
		ch.requester = by.origin.Waiter
	}
}

// take takes the events over. The value of a SET's must outlast the command's: it is the
// record's own, if that is on the Go heap, where it never changes, or a copy.
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
