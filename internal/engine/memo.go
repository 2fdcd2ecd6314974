package engine

import (
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/unapplied"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Remembered messages
//
// What LOAD, STORE and DONE know of a message (protocol, section 8) is on disk and
// not in memory: there is one for each message of the last days. Nearly all
// messages are new, and of a new one the disk has nothing, which a bloom filter
// tells (journal.Probe).
//
// A look-up may read the disk nevertheless, so it is not made under a shard's
// lock, where GETs and SETs would wait for it. LOAD, STORE and DONE of one key are
// kept in order by a lock of their own, the stripe, which is taken first and held
// until the command's change is appended: between a STORE's look-up and its commit
// no other command can remember the same message. A GET or SET never takes a stripe, and
// neither does the journal's committer, so neither waits for a read.
//
// The database does not have what was appended a moment ago. Until a change has been
// applied to it (package journal, apply.go) the change is therefore also in the stripe's
// overlay, with the batch that it rides in, for the reply of a command that finds it
// there to wait for. A look-up that had everything applied first would do so for nearly
// every message: that took 33 µs of each.
//
// A STORE is one append: the key's row, the message's, and one in the index of
// deadlines, by which the message is forgotten in time (forget.go). The meta record counts
// messages and bytes as of each batch (rows.Tally), so that a start need not read them.

// stripeCount spreads keys over stripes: more than shards, as a stripe may be held
// while the disk is read.
const stripeCount = 1024

type stripe struct {
	mu lockrank.Mutex[lockrank.KeyStripe] // held over a look-up, never by the committer

	overlay unapplied.Overlay // changes that the database may not have
}

// remembering is the part of a decision that is about a message.
type remembering struct {
	memo     *unapplied.Memo       // the change; nil: there is none
	change   unapplied.Change      // the same, in the overlay
	memoRow  []byte                // where it is on disk
	indexRow []byte                // the row of the index that goes with it, empty for none; then the one that comes
	indexMs  int64                 // the deadline by which the index is to have a new one; 0: it keeps what it has
	before   *statestore.Memo      // what the disk has now; nil: nothing
	counts   statestore.Remembered // what the change means for the quota
}

// message runs LOAD, STORE and DONE.
func (s *session) message(c *Call) Wait {
	c.remembering = remembering{memoRow: c.memoRow, indexRow: c.indexRow[:0]}
	if c.Command.Denied { // which the rules say before they look at anything
		statestore.Apply(&c.Command, statestore.Cell{}, &c.env, &c.res)
		return Wait{}
	}
	if c.Command.Verb.Writes() {
		s.e.journal.Admit()
	}
	st := s.e.stripe(c.Command.Key)
	st.mu.Lock()
	seen, made := s.withStripe(st, c)
	st.mu.Unlock()
	if made.Batch != 0 {
		return made
	}
	return s.after(seen, c.Command.Key)
}

// withStripe does what needs the stripe. Either the command has made a change, which its
// reply waits for, or the reply waits for the batch of what it has seen.
func (s *session) withStripe(st *stripe, c *Call) (seen journal.Seq, made Wait) {
	d, cmd := &c.decision, &c.Command
	d.memoRow = rows.AppendMemoRow(d.memoRow[:0], cmd.Key, cmd.Message)
	found, err := s.e.recall(st, d.memoRow)
	if err != nil {
		s.e.o.Logger.Error("what is remembered of a message cannot be read", "key", string(cmd.Key), "error", err)
		d.res.Reply = statestore.Reply{Kind: statestore.Error, Fault: statestore.Unreadable}
		return 0, Wait{}
	}
	switch cmd.Verb {
	case statestore.Load:
		seen = d.load(cmd, found)
	case statestore.Store:
		for {
			seen, made = s.store(st, c, found)
			if made.Batch != 0 {
				break
			}
			if !s.e.makeRoom(d.res.Reply.Bound) {
				s.e.sayFull(d.res.Reply.Bound)
				break
			}
		}
	default:
		made = d.done(st, cmd, found)
	}
	return max(seen, found.LastBatch()), made
}

func (d *decision) load(cmd *statestore.Command, found *unapplied.Memo) (batch journal.Seq) {
	cell := statestore.Cell{Memo: found.Known()}
	sh, hash := d.e.shard(cmd.Key)
	sh.mu.Lock()
	r := sh.table.Get(cmd.Key, hash)
	cell.Entry, batch = d.read(sh, r), journal.Seq(r.Batch())
	sh.mu.Unlock()
	d.look()
	statestore.Apply(cmd, cell, &d.env, &d.res)
	return batch
}

func (s *session) store(st *stripe, c *Call, found *unapplied.Memo) (seen journal.Seq, made Wait) {
	d, cmd := &c.decision, &c.Command
	sh, hash := s.e.shard(cmd.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.Get(cmd.Key, hash)
	d.before = found.Known()
	d.decide(sh, cmd.Key, r, s, func(d *decision, stored *statestore.Entry) {
		statestore.Apply(cmd, statestore.Cell{Entry: stored, Memo: found.Known()}, &d.env, &d.res)
	})
	if !d.res.Changed {
		return journal.Seq(r.Batch()), Wait{}
	}
	if d.before != nil {
		if !found.Shared { // otherwise the row stays until the others are due
			d.indexRow = rows.AppendIndexRow(d.indexRow[:0], found.DiskMs, d.memoRow)
		}
	}
	d.remember(st, rows.Memo{DiskMs: d.indexMs})
	return 0, d.carryOut(sh, cmd.Key, hash, r, s)
}

func (d *decision) done(st *stripe, cmd *statestore.Command, found *unapplied.Memo) (made Wait) {
	d.look()
	d.before = found.Known()
	d.env.Room.Disk = d.e.diskRoom()
	d.e.mu.Lock()
	d.env.Room.Memos = d.e.quota.MemoRoom()
	statestore.Apply(cmd, statestore.Cell{Memo: d.before}, &d.env, &d.res)
	if d.res.MemoChanged {
		d.countMemo()
	}
	d.e.mu.Unlock()
	if !d.res.MemoChanged {
		d.e.sayFull(d.res.Reply.Bound)
		return Wait{}
	}
	d.remember(st, found.Memo)
	return Wait{Batch: d.carryOutMemo()}
}

// recall finds what is remembered under a row. The stripe's mu is held.
func (e *Local) recall(st *stripe, row []byte) (*unapplied.Memo, error) {
	if m := st.overlay.Find(row); m != nil {
		return m, nil
	}
	// Nothing joins the overlay while mu is held, and what has left it was applied.
	value, any, err := e.journal.Probe(nil, row)
	if err != nil || !any {
		return nil, err
	}
	return unapplied.DecodeMemo(value, e.baseMs)
}

// remember puts what was decided into the overlay, with its place in the index, before the change
// is appended: it may be complete before the append returns. The stripe's mu is held.
func (d *decision) remember(st *stripe, place rows.Memo) {
	d.res.Memo.Own() // not under the lock of all writers, and before the entry is written over
	d.memo = &unapplied.Memo{Memo: rows.Memo{What: d.res.Memo, DiskMs: place.DiskMs, Shared: place.Shared}}
	d.change = st.overlay.Add(string(d.memoRow), d.memo, d.e.o.Memory)
}

// carryOutMemo appends a change of what is remembered, and of nothing else, to the
// journal. The stripe's mu is held.
func (d *decision) carryOutMemo() (batch journal.Seq) {
	ch := d.e.newChange()
	ch.unapplied = d.change
	a := d.e.journal.Begin()
	d.memo.Batch = a.Seq()
	d.appendMemo(a)
	return a.End(ch)
}

// settle notes that changes of memos are durable, and takes older changes out of the overlays
// that Pebble has by now. The committer calls it.
func (e *Local) settle(batch journal.Seq, changes ...unapplied.Change) {
	e.settling.Add(batch, changes...)
	e.dropApplied(settleAtOnce * len(changes))
}

// settleAtOnce is how many changes settle takes out of the overlays at most for each that comes:
// more than one, so that the overlays don't grow.
const settleAtOnce = 4

// dropApplied takes changes that Pebble has out of the overlays, oldest first, at most so many.
func (e *Local) dropApplied(most int) {
	e.settling.Drop(e.journal.Applied(), most, e.o.Memory)
}

// appendMemo appends the rows of a message that is stored, done or forgotten.
func (d *decision) appendMemo(a journal.Append) {
	m := d.memo
	d.e.tally.Add(a.Seq(), d.counts)
	if len(d.indexRow) > 0 {
		a.Delete(d.indexRow)
	}
	if m.What == nil {
		a.Delete(d.memoRow)
		return
	}
	rows.WriteMemo(a, d.memoRow, &m.Memo, d.indexMs, d.e.baseMs)
}
