package engine

import (
	"fmt"

	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
	budget "holdfast/internal/memory"
	"holdfast/internal/statestore"
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
// nobody else can remember the same message. A GET or SET never takes a stripe, and
// neither does the journal's committer, so neither waits for a read.
//
// The database does not have what was appended a moment ago. Until a change has been
// applied to it (package journal, apply.go) the change is therefore also in the stripe's
// overlay, with the batch that it rides in, for the reply of a command that finds it
// there to wait for. A look-up that had everything applied first would do so for nearly
// every message: that took 33 µs of each.
//
// A STORE is one append: the key's row, the message's, and one in the index of
// deadlines, by which the message is forgotten in time (forget.go).

// stripeCount spreads keys over stripes: more than shards, as a stripe may be held
// while the disk is read.
const stripeCount = 1024

type stripe struct {
	mu lockrank.Mutex[lockrank.KeyStripe] // held over a look-up, never by the committer

	overlayMu lockrank.Mutex[lockrank.Overlay] // held for a look at overlay only
	overlay   map[string]*memory               // guarded by overlayMu: by row, changes that the database may not have
}

// memory is what is remembered under one row: a change under way, or what the
// disk has.
type memory struct {
	memo   *statestore.Memo // nil: forgotten
	diskMs int64            // the deadline by which the index has it
	batch  journal.Seq      // where it rides; 0: long durable. Guarded by the stripe's mu
}

// lastBatch is what a reply that has seen the memory waits for; nothing is
// remembered by nil.
func (m *memory) lastBatch() journal.Seq {
	if m == nil {
		return 0
	}
	return m.batch
}

func (m *memory) known() *statestore.Memo {
	if m == nil {
		return nil
	}
	return m.memo
}

// message runs LOAD, STORE and DONE.
func (s *session) message(cmd *statestore.Command, t *turn) {
	if cmd.Denied { // which the rules say before they look at anything
		statestore.Apply(cmd, statestore.Cell{}, &t.env, &t.res)
		t.answer(0)
		return
	}
	if cmd.Verb.Writes() {
		s.e.journal.Admit()
		t.hold() // once the change is appended, the reply may come at any moment
	}
	st := s.e.stripe(cmd.Key)
	st.mu.Lock()
	batch, appended := s.withStripe(st, cmd, t)
	st.mu.Unlock()
	if !appended {
		t.answer(batch)
	}
}

// withStripe does what needs the stripe. Either the command has changed something,
// and the journal owns the turn, or its reply waits for batch.
func (s *session) withStripe(st *stripe, cmd *statestore.Command, t *turn) (batch journal.Seq, appended bool) {
	t.memoRow = appendMemoRow(t.memoRow[:0], cmd.Key, cmd.Message)
	found, err := s.e.recall(st, t.memoRow)
	if err != nil {
		s.e.o.Logger.Error("what is remembered of a message cannot be read", "key", string(cmd.Key), "error", err)
		t.res.Reply = statestore.Reply{Kind: statestore.Error, Fault: statestore.Unreadable}
		return 0, false
	}
	switch cmd.Verb {
	case statestore.Load:
		batch = t.load(cmd, found)
	case statestore.Store:
		for {
			batch, appended = s.store(st, cmd, t, found)
			if appended { // then the turn is the journal's
				break
			}
			if !s.e.makeRoom(t.res.Reply.Bound) {
				s.e.sayFull(t.res.Reply.Bound)
				break
			}
		}
	default:
		batch, appended = t.done(st, cmd, found)
	}
	return max(batch, found.lastBatch()), appended
}

func (t *turn) load(cmd *statestore.Command, found *memory) (batch journal.Seq) {
	cell := statestore.Cell{Memo: found.known()}
	sh, hash := t.e.shard(cmd.Key)
	sh.mu.Lock()
	r := sh.table.find(cmd.Key, hash)
	cell.Entry, batch = t.read(sh, r), r.lastBatch()
	sh.mu.Unlock()
	t.look()
	statestore.Apply(cmd, cell, &t.env, &t.res)
	return batch
}

func (s *session) store(st *stripe, cmd *statestore.Command, t *turn, found *memory) (batch journal.Seq, appended bool) {
	sh, hash := s.e.shard(cmd.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.find(cmd.Key, hash)
	t.found = found.known() != nil
	t.decide(sh, cmd.Key, r, s, func(t *turn, stored *statestore.Entry) {
		statestore.Apply(cmd, statestore.Cell{Entry: stored, Memo: found.known()}, &t.env, &t.res)
	})
	if !t.res.Changed {
		return r.lastBatch(), false
	}
	t.res.Memo.Own() // not under the lock of all writers, and before the entry is written over
	if t.found {
		t.indexRow = appendIndexRow(t.indexRow[:0], found.diskMs, t.memoRow)
	}
	t.remember(st, t.indexMs)
	t.commit(sh, cmd.Key, hash, r, s)
	return 0, true
}

func (t *turn) done(st *stripe, cmd *statestore.Command, found *memory) (batch journal.Seq, appended bool) {
	t.look()
	statestore.Apply(cmd, statestore.Cell{Memo: found.known()}, &t.env, &t.res)
	if !t.res.MemoChanged {
		return 0, false
	}
	t.remember(st, found.diskMs)
	a := t.e.journal.Begin()
	t.memory.batch = a.Seq()
	t.appendMemo(a)
	a.End(t)
	return 0, true
}

// recall finds what is remembered under a row. The stripe's mu is held.
func (e *Local) recall(st *stripe, row []byte) (*memory, error) {
	st.overlayMu.Lock()
	m := st.overlay[string(row)]
	st.overlayMu.Unlock()
	if m != nil {
		return m, nil
	}
	// Nothing joins the overlay while mu is held, and what has left it was applied.
	value, found, err := e.journal.Probe(nil, row)
	if err != nil || !found {
		return nil, err
	}
	m, err = decodeMemo(value, e.baseMs)
	if err != nil {
		return nil, fmt.Errorf("the record cannot be read: %w", err)
	}
	return m, nil
}

// remember puts what the turn has decided into the overlay, before the change is
// appended: it may be complete before the append returns. The stripe's mu is held.
func (t *turn) remember(st *stripe, diskMs int64) {
	row := string(t.memoRow)
	t.stripe, t.memory, t.overlayRow = st, &memory{memo: t.res.Memo, diskMs: diskMs}, row
	t.e.o.Memory.Charge(budget.Remembered, t.memoryCost())
	st.overlayMu.Lock()
	defer st.overlayMu.Unlock()
	if st.overlay == nil {
		st.overlay = map[string]*memory{}
	}
	st.overlay[row] = t.memory
}

// settleMemo notes that the change is complete, and takes those out of the overlays that
// have been applied since. The committer's.
func (t *turn) settleMemo(batch journal.Seq) {
	e := t.e
	e.settlingMu.Lock()
	e.settling = append(e.settling, settled{batch, t.stripe, t.overlayRow, t.memory, t.memoryCost()})
	e.settlingMu.Unlock()
	e.dropApplied(settleAtOnce)
}

// settled is a change that is complete, and may not have been applied.
type settled struct {
	batch  journal.Seq
	stripe *stripe
	row    string
	memory *memory
	cost   int64
}

// settleAtOnce bounds how many changes each new one takes out of the overlays: more than
// one, so that they don't grow.
const settleAtOnce = 4

// dropApplied takes changes that have been applied out of the overlays, oldest first, at
// most so many. One that a newer change has taken the place of has left already.
func (e *Local) dropApplied(most int) {
	applied := e.journal.Applied()
	for range most {
		e.settlingMu.Lock()
		if e.settledFrom == len(e.settling) || e.settling[e.settledFrom].batch > applied {
			e.settlingMu.Unlock()
			return
		}
		s := e.settling[e.settledFrom]
		e.settling[e.settledFrom] = settled{}
		e.settledFrom++
		if 2*e.settledFrom >= len(e.settling) {
			n := copy(e.settling, e.settling[e.settledFrom:])
			clear(e.settling[n:])
			e.settling, e.settledFrom = e.settling[:n], 0
		}
		e.settlingMu.Unlock()
		s.stripe.overlayMu.Lock()
		if s.stripe.overlay[s.row] == s.memory {
			delete(s.stripe.overlay, s.row)
		}
		s.stripe.overlayMu.Unlock()
		e.o.Memory.Credit(budget.Remembered, s.cost)
	}
}

// memoryCost is what the change in the overlay is charged with: its bytes, and about
// what it takes besides.
func (t *turn) memoryCost() int64 {
	cost := int64(len(t.memoRow)) + 300
	if m := t.memory.memo; m != nil {
		cost += int64(len(m.State) + len(m.Context))
	}
	return cost
}

// appendMemo appends the rows of a message that is stored, done or forgotten.
func (t *turn) appendMemo(a journal.Append) {
	m := t.memory
	if len(t.indexRow) > 0 {
		a.Delete(t.indexRow)
	}
	if m.memo == nil {
		a.Delete(t.memoRow)
		return
	}
	k, v := a.SetDeferred(len(t.memoRow), memoSize(m, t.e.baseMs))
	copy(k, t.memoRow)
	encodeMemo(v[:0], m, t.e.baseMs)
	if !m.memo.Done {
		t.indexRow = appendIndexRow(t.indexRow[:0], m.diskMs, t.memoRow)
		a.Set(t.indexRow, nil)
	}
}
