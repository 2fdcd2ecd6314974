package engine

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/engine/recall"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/engine/unapplied"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// Transactions
//
// A TXN is one append to the journal: the rows of all keys that it writes, what it
// remembers of its message, and the rows of its Companion, if it has one. It locks, each
// in the order of their places in the array:
//
//   - the stripes of the keys whose messages it looks up, and if it publishes, of all: with
//     a key in common, transactions queue their messages in the order of its versions;
//   - the shards of all its keys, from the judging of the conditions until the rows are
//     appended. Nothing is read from the disk meanwhile, and no message is routed: that
//     may mean thousands of queues, and GETs and SETs of these shards wait.
//
// So the Companion prepares what it has before the shards are locked, and takes it back if
// the conditions don't hold then. As most of those that fail do so at once, the conditions
// are judged before as well, without effect.

// Companion is what a transaction changes besides keys, in the same batch. Transact calls its
// methods, in this order and with no lock of a shard held but by Append.
type Companion interface {
	// Prepare puts everything in place, as yet without effect, and says whether it has rows
	// to append. An error refuses the transaction; then nothing more is called.
	Prepare() (rows bool, refused statestore.Reply)
	// Append appends the rows, and may do nothing else.
	Append(a journal.Append)
	// Commit makes it effective once batch is durable, which is that of the rows if there
	// are any, and returns a later batch for which the reply must wait, too; 0: none.
	Commit(batch journal.Seq) (later journal.Seq)
	// Withdraw takes back what Prepare has done, in the place of Append and Commit.
	Withdraw()
}

// Txn is one transaction and the reply to it. The zero value is ready to be filled, run
// once, and read, by one goroutine at a time; after Reset, again.
type Txn struct {
	txn.Transaction
	Companion Companion // nil: none

	d       decision // for its clocks, and of one write after the other
	world   txn.World
	out     txn.Outcome
	keys    []txnKey // one for each of Keys
	shards  []uint32 // of them, each once, in order
	stripes []uint32
	once    recall.Messages
	seen    journal.Seq // the last batch of what was looked at
}

// txnKey is where a key is, and what there is of it.
type txnKey struct {
	sh      *shard
	hash    uint64
	stored  statestore.Entry
	owner   uint32
	looksUp bool // what is remembered of its messages
}

// maxKeptTxn is how many operations of one kind a Txn may have had that is used again.
const maxKeptTxn = 256

// Reset empties it, and keeps what it has in memory, so that it can be used again. It returns false
// if that is not worth it.
func (x *Txn) Reset() bool {
	if max(cap(x.Keys), cap(x.Once), cap(x.Publishes), cap(x.Settles), cap(x.Cancels)) > maxKeptTxn {
		return false
	}
	x.Transaction.Reset()
	x.out.Reset()
	x.d.clear()
	x.once.Reset()
	clear(x.keys)
	clear(x.world.Cells)
	clear(x.world.Once)
	clear(x.world.Made)
	x.Companion, x.seen = nil, 0
	x.keys, x.shards, x.stripes = x.keys[:0], x.shards[:0], x.stripes[:0]
	return true
}

// again returns a slice of n zero elements, in the memory of s if that is enough.
func again[T any](s []T, n int) []T { return append(s[:0], make([]T, n)...) }

// Reply is what Transact has left.
func (x *Txn) Reply() *statestore.Reply { return &x.out.Reply }

// Transact runs x, leaves the reply in it, and says what that waits for; see Session.
func (s *session) Transact(x *Txn) Wait {
	e := s.e
	e.journal.Admit()
	x.d.e = e
	x.find(e)
	for _, i := range x.stripes {
		e.stripes[i].mu.Lock()
	}
	wait := s.transact(x)
	for _, i := range x.stripes {
		e.stripes[i].mu.Unlock()
	}
	switch {
	case x.out.Committed() && wait.Batch != 0 || x.seen <= e.journal.Complete():
		return wait
	case s.watchesAny():
		return s.ask() // after the notifications of what the reply shows, and of wait.Then
	}
	return Wait{Batch: max(x.seen, wait.Then)}
}

// find finds the places of the keys.
func (x *Txn) find(e *Local) {
	x.keys = again(x.keys, len(x.Keys))
	for i := range x.Once {
		x.keys[x.Once[i].Key].looksUp = true
	}
	for i := range x.Conditions {
		if c := &x.Conditions[i]; c.Check == txn.MadeBy {
			x.keys[c.Key].looksUp = true
		}
	}
	for i, key := range x.Keys {
		k := &x.keys[i]
		k.sh, k.hash = e.shard(key)
		x.shards = append(x.shards, uint32(k.hash%shardCount))
		if len(x.Publishes) > 0 || k.looksUp {
			x.stripes = append(x.stripes, uint32(k.hash%stripeCount))
		}
	}
	slices.Sort(x.shards)
	slices.Sort(x.stripes)
	x.shards, x.stripes = slices.Compact(x.shards), slices.Compact(x.stripes)
}

// transact does what needs the stripes.
func (s *session) transact(x *Txn) (wait Wait) {
	if op := x.recall(s.e); op != 0 {
		x.out.Reply = statestore.Reply{Kind: statestore.Error, Op: op, Fault: statestore.Unreadable}
		return Wait{}
	}
	prepared, hasRows := x.Companion == nil, false
	for {
		for _, i := range x.shards {
			s.e.shards[i].mu.Lock()
		}
		s.judge(x, prepared)
		committed := x.out.Committed()
		if committed && prepared {
			wait = s.carryOutAll(x, hasRows)
		}
		for _, i := range x.shards {
			s.e.shards[i].mu.Unlock()
		}
		switch {
		case committed && prepared:
			if x.Companion != nil {
				wait.Then = x.Companion.Commit(max(wait.Batch, x.seen))
			}
			return wait
		case committed:
			var refused statestore.Reply
			if hasRows, refused = x.Companion.Prepare(); refused.Kind == statestore.Error {
				x.out.Reply = refused
				return Wait{}
			}
			prepared = true
		case !s.e.makeRoom(x.out.Reply.Bound):
			s.e.sayFull(x.out.Reply.Bound)
			if x.Companion != nil && prepared {
				x.Companion.Withdraw()
			}
			return Wait{}
		}
	}
}

// recall looks up the messages that the transaction names. It returns the operation whose
// message cannot be read, 0 if there is none. The stripes are held.
func (x *Txn) recall(e *Local) (failed int) {
	x.world.Made = again(x.world.Made, len(x.Conditions))
	find := func(d *decision, key int, message []byte) (*unapplied.Memo, bool) {
		d.memoRow = rows.AppendMemoRow(d.memoRow[:0], x.Keys[key], message)
		found, err := e.recall(&e.stripes[x.keys[key].hash%stripeCount], d.memoRow)
		if err != nil {
			e.o.Logger.Error("what is remembered of a message cannot be read", "key", string(x.Keys[key]), "error", err)
			return nil, false
		}
		x.seen = max(x.seen, found.LastBatch())
		return found, true
	}
	for i := range x.Conditions {
		if c := &x.Conditions[i]; c.Check == txn.MadeBy {
			found, ok := find(&x.d, c.Key, c.Operand)
			if !ok {
				return c.Op
			}
			x.world.Made[i] = found.Known()
		}
	}
	x.world.Once = again(x.world.Once, len(x.Once))
	failed, err := x.once.Find(&x.Transaction, x.overlays(e), e.journal, e.baseMs, func(i int, m *unapplied.Memo) {
		x.seen = max(x.seen, m.LastBatch())
		x.world.Once[i] = m.Known()
	})
	if err != nil {
		e.o.Logger.Error("what is remembered of a message cannot be read", "operation", failed, "error", err)
	}
	return failed
}

// overlays finds the overlay of a key.
func (x *Txn) overlays(e *Local) func(key int) *unapplied.Overlay {
	return func(key int) *unapplied.Overlay { return &e.stripes[x.keys[key].hash%stripeCount].overlay }
}

// judge runs the rules. If they say that all is to be done, and it is to take effect, the
// last version and the quota include it from here on. The shards are locked.
func (s *session) judge(x *Txn, takeEffect bool) {
	e, d := s.e, &x.d
	d.look()
	x.world.Cells = again(x.world.Cells, len(x.keys))
	x.world.RecordCost = table.Cost
	own := d.boundsOf(s)
	e.mu.Lock()
	d.env.Last = e.last
	x.world.Env = d.env
	for i := range x.keys {
		k, cell := &x.keys[i], &x.world.Cells[i]
		r := k.sh.table.Get(x.Keys[i], k.hash)
		x.seen = max(x.seen, journal.Seq(r.Batch()))
		k.stored = statestore.Entry{}
		if r.Live() {
			k.sh.table.FencedEntry(r, &k.stored)
			k.owner, cell.Entry = r.Owner(), &k.stored
		}
		e.findRoom(&cell.Room, r, s, own)
	}
	txn.Judge(&x.Transaction, &x.world, &x.out)
	if takeEffect && x.out.Committed() {
		d.res.Last = x.out.Last
		e.issued(d, s)
		for i := range x.Writes {
			if w, res := &x.Writes[i], &x.out.Results[i]; res.Changed {
				d.count(s, x.Keys[w.Key], res.Entry, x.world.Cells[w.Key].Entry, x.keys[w.Key].owner)
			}
		}
		for i, memo := range x.out.Memos {
			if memo != nil {
				e.quota.Remembered.Add(x.once.Place(i, memo, max(d.indexDeadline(memo), e.sweptMs)))
			}
		}
	}
	e.mu.Unlock()
	if v := x.out.Reply.Value; v != nil { // the record's, which changes once the shard is unlocked
		x.out.Reply.Value = append([]byte{}, v...)
	}
}

// carryOutAll puts what was decided in its place and appends it to the journal, with the
// rows of the Companion. The shards are locked.
func (s *session) carryOutAll(x *Txn, hasRows bool) (wait Wait) {
	e, d := s.e, &x.d
	all := &together{e: e}
	var memos []unapplied.Memo
	if len(x.Once) > 0 { // before they are appended: they may be complete before the append returns
		memos, all.unapplied = x.once.Remember(&x.Transaction, x.out.Memos, x.overlays(e), e.o.Memory)
	}
	changed := false
	for i := range x.Writes {
		if res := &x.out.Results[i]; res.Changed {
			s.put(x, &x.Writes[i], res, all)
			changed = true
		}
	}
	wait.Asked = all.requester != nil
	if !changed && len(all.unapplied) == 0 && !hasRows {
		return wait // nothing has changed
	}
	a := e.journal.Begin()
	wait.Batch = a.Seq()
	for i := range x.Writes {
		if res := &x.out.Results[i]; res.Changed {
			d.row = append(append(d.row[:0], rows.KeyPrefix...), x.Keys[x.Writes[i].Key]...)
			rows.Write(a, d.row, res.Entry, d.diskDeadline(res.Entry))
		}
	}
	for i := range memos {
		if memos[i].What == nil { // a DONE that changes nothing
			continue
		}
		memos[i].Batch = wait.Batch
		e.tally.Add(wait.Batch, x.once.Counts(i))
		x.once.Append(a, i, &memos[i], e.baseMs)
	}
	x.once.AppendIndex(a, memos)
	if hasRows {
		x.Companion.Append(a)
	}
	a.End(all)
	s.settleKeys(x, wait.Batch)
	return wait
}

// put puts one write in the key's place in memory.
func (s *session) put(x *Txn, w *txn.Write, res *statestore.Result, all *together) {
	e, key, k := s.e, x.Keys[w.Key], &x.keys[w.Key]
	r := k.sh.table.Get(key, k.hash)
	watchers := k.sh.watching(key)
	deletion := res.Events[res.NumEvents-1].Version
	r = k.sh.put(r, key, k.hash, res.Entry, deletion)
	if res.Entry != nil && x.d.owner != 0 {
		r.SetOwner(x.d.owner)
	}
	if res.Entry == nil || watchers != nil {
		ch := e.newChange()
		ch.key = append(ch.key[:0], key...)
		if res.Entry == nil {
			ch.tombstone, ch.hash, ch.deletion = k.sh, k.hash, deletion
		}
		if watchers != nil {
			ch.aim(watchers, s)
			ch.take(res, k.sh, r)
			all.requester = s.origin.Waiter // all of the notifications precede the one reply
		}
		all.changes = append(all.changes, ch)
	}
}

// settleKeys notes in the records in which batch they ride. It finds them again: the write
// of another key may have moved them.
func (s *session) settleKeys(x *Txn, batch journal.Seq) {
	for i := range x.Writes {
		w, res := &x.Writes[i], &x.out.Results[i]
		if !res.Changed {
			continue
		}
		key, k := x.Keys[w.Key], &x.keys[w.Key]
		r := k.sh.table.Get(key, k.hash)
		r.SetBatch(uint64(batch))
		if watchers := k.sh.watching(key); watchers != nil {
			watchers.Shared = batch
		}
		if res.Entry != nil && res.Entry.DeadlineMs != 0 {
			s.e.expiry.arm(res.Entry.DeadlineMs)
		}
	}
}

// together are the changes of one transaction, as one waiter of the journal.
type together struct {
	e         *Local
	changes   []*change
	unapplied []unapplied.Change
	requester journal.Waiter // nil: no key that was written is watched
}

// Durable implements journal.Waiter: in the order of [change.Durable], with the changes of
// all keys in each of its steps.
func (t *together) Durable(batch journal.Seq) {
	if len(t.unapplied) > 0 {
		t.e.settle(batch, t.unapplied...)
	}
	for _, ch := range t.changes {
		ch.tellOwn(batch)
	}
	if t.requester != nil {
		t.requester.Durable(batch)
	}
	for _, ch := range t.changes {
		ch.tellOthers()
		ch.release()
	}
}
