package engine

import (
	"bytes"
	"slices"

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
// once, and read, by one goroutine at a time.
type Txn struct {
	txn.Transaction
	Companion Companion // nil: none

	d       decision   // for its clocks
	once    []decision // for what it remembers of each of Once
	world   txn.World
	out     txn.Outcome
	keys    []txnKey // one for each of Keys
	shards  []uint32 // of them, each once, in order
	stripes []uint32
	seen    journal.Seq // the last batch of what was looked at
}

// txnKey is where a key is, and what there is of it.
type txnKey struct {
	sh     *shard
	hash   uint64
	stored statestore.Entry
	owner  uint32
}

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
	x.keys = make([]txnKey, len(x.Keys))
	looksUp := make([]bool, len(x.Keys))
	for i := range x.Once {
		looksUp[x.Once[i].Key] = true
	}
	for _, c := range x.Conditions {
		looksUp[c.Key] = looksUp[c.Key] || c.Check == txn.MadeBy
	}
	for i, key := range x.Keys {
		k := &x.keys[i]
		k.sh, k.hash = e.shard(key)
		x.shards = append(x.shards, uint32(k.hash%shardCount))
		if len(x.Publishes) > 0 || looksUp[i] {
			x.stripes = append(x.stripes, uint32(k.hash%stripeCount))
		}
	}
	x.shards = slices.Compact(slices.Sorted(slices.Values(x.shards)))
	x.stripes = slices.Compact(slices.Sorted(slices.Values(x.stripes)))
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
	x.world.Made = make([]*statestore.Memo, len(x.Conditions))
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
	return x.recallOnce(e)
}

// recallOnce looks up the messages of ONCE: first in the overlays, and then those that are not
// there in the database, all of them by one iterator. In this order none is missed: nothing joins
// an overlay while the stripes are held, and what has left one was applied before.
func (x *Txn) recallOnce(e *Local) (failed int) {
	x.once, x.world.Once = make([]decision, len(x.Once)), make([]*statestore.Memo, len(x.Once))
	size := 0
	for i := range x.Once {
		size += rows.MaxMemoRow(x.Keys[x.Once[i].Key], x.Once[i].Message)
	}
	room := make([]byte, 0, size)
	probed := make([]int, 0, len(x.Once))
	for i := range x.Once {
		o, d := &x.Once[i], &x.once[i]
		start := len(room)
		room = rows.AppendMemoRow(room, x.Keys[o.Key], o.Message)
		d.e, d.memoRow = e, room[start:len(room):len(room)]
		if m := e.stripes[x.keys[o.Key].hash%stripeCount].overlay.Find(d.memoRow); m != nil {
			x.found(i, m)
		} else {
			probed = append(probed, i)
		}
	}
	if len(probed) == 0 {
		return 0
	}
	slices.SortFunc(probed, func(i, j int) int { return bytes.Compare(x.once[i].memoRow, x.once[j].memoRow) })
	wanted := make([][]byte, len(probed))
	for n, i := range probed {
		wanted[n] = x.once[i].memoRow
	}
	var unreadable error
	err := e.journal.ProbeAll(wanted, func(n int, value []byte) {
		m, err := unapplied.DecodeMemo(bytes.Clone(value), e.baseMs)
		if err != nil && unreadable == nil {
			unreadable, failed = err, x.Once[probed[n]].Op
		} else if err == nil {
			x.found(probed[n], m)
		}
	})
	if err != nil {
		unreadable, failed = err, x.Once[probed[0]].Op
	}
	if unreadable != nil {
		e.o.Logger.Error("what is remembered of a message cannot be read", "operation", failed, "error", unreadable)
	}
	return failed
}

// found notes what is remembered of the message of a ONCE.
func (x *Txn) found(i int, m *unapplied.Memo) {
	d := &x.once[i]
	x.seen = max(x.seen, m.LastBatch())
	x.world.Once[i], d.before = m.Known(), m.Known()
	if d.before != nil {
		d.indexRow = rows.AppendIndexRow(d.indexRow[:0], m.DiskMs, d.memoRow)
	}
}

// judge runs the rules. If they say that all is to be done, and it is to take effect, the
// last version and the quota include it from here on. The shards are locked.
func (s *session) judge(x *Txn, takeEffect bool) {
	e, d := s.e, &x.d
	d.look()
	x.world.Cells = make([]txn.Cell, len(x.keys))
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
			x.once[i].env, x.once[i].res.Memo = d.env, memo
			x.once[i].placeMemo()
			x.once[i].countMemo()
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
	all := &together{}
	for i := range x.once {
		once := &x.once[i]
		once.remember(&e.stripes[x.keys[x.Once[i].Key].hash%stripeCount], once.indexMs)
		ch := e.newChange()
		ch.unapplied = once.change
		all.changes = append(all.changes, ch)
	}
	changed := false
	for i := range x.Writes {
		if res := &x.out.Results[i]; res.Changed {
			s.put(x, &x.Writes[i], res, all)
			changed = true
		}
	}
	wait.Asked = all.requester != nil
	if !changed && len(x.once) == 0 && !hasRows {
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
	for i := range x.once {
		x.once[i].memo.Batch = wait.Batch
		x.once[i].appendMemo(a)
	}
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
	changes   []*change
	requester journal.Waiter // nil: no key that was written is watched
}

// Durable implements journal.Waiter: in the order of [change.Durable], with the changes of
// all keys in each of its steps.
func (t *together) Durable(batch journal.Seq) {
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
