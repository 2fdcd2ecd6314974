package txn

import (
	"bytes"
	"slices"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Cell is what the rules may look at for one key of a transaction.
type Cell struct {
	Entry *statestore.Entry // nil: no such key
	Room  statestore.Room   // for a write of this key alone
}

// World is what a transaction is judged on.
type World struct {
	Env        statestore.Env     // Room is not looked at
	Cells      []Cell             // one for each of Transaction.Keys
	Once       []*statestore.Memo // one for each of Transaction.Once: what is remembered of it
	Made       []*statestore.Memo // one for each condition: what is remembered of a MadeBy's message
	RecordCost int64              // bytes of memory that a new key takes besides its own and its value's
}

// Outcome is what was decided. It may be reused for the next transaction, when what it refers to, but
// for the memos, is not needed any more.
type Outcome struct {
	Reply   statestore.Reply
	Results []statestore.Result // if Committed: one for each write. Good until the Outcome is used again
	Last    hlc.Timestamp       // the last version issued, now
	Memos   []*statestore.Memo  // if Committed: what is remembered now, one for each Once; nil: as before. They are immutable, and may be kept

	values []statestore.PageValue // for Reply
	known  []bool                 // for Reply: of each DONE
	wrote  []int32                // for each key the number of its write, from 1; 0: none
}

// Committed says whether the transaction is to be carried out: all of Results, and Memos.
func (out *Outcome) Committed() bool {
	return out.Reply.Kind == statestore.Transacted && out.Reply.Count == statestore.Committed
}

// Judge decides a transaction. It fills out and changes nothing else; out refers to bytes
// of the transaction and of the cells.
//
// The first of these that speaks against it makes the reply: the timestamp of the request;
// ONCE in their order, if a message is remembered already; the conditions in their order; the writes
// in their order, each as a single command would be refused.
func Judge(t *Transaction, w *World, out *Outcome) {
	out.Reply, out.Memos, out.known, out.Last = statestore.Reply{}, out.Memos[:0], out.known[:0], w.Env.Last
	several := false // ONCE
	if first := t.firstOnce(); first >= 0 {
		if f := statestore.JudgeTime(t.Time, &w.Env); f != statestore.None {
			out.refuse(t.Once[first].Op, f, statestore.NoBound)
			if f == statestore.TimestampAhead {
				out.Reply.TimeMs = w.Env.WallMs
			}
			return
		}
		several = slices.ContainsFunc(t.Once[first+1:], func(o Once) bool { return !o.Done })
	}
	for i := range t.Once {
		if t.Once[i].Done {
			continue
		}
		if memo := w.Once[i].Live(w.Env.NowMs); memo != nil {
			if t.Once[i].isOther(memo) {
				out.refuse(t.Once[i].Op, statestore.OtherDigest, statestore.NoBound)
				return
			}
			out.Reply = statestore.Reply{Kind: statestore.Transacted, Count: statestore.AlreadyDone, Version: memo.Version}
			if several {
				out.Reply.Op = t.Once[i].Op
			}
			return
		}
	}
	for i := range t.Conditions {
		c := &t.Conditions[i]
		live := w.Cells[c.Key].Entry.Live(w.Env.NowMs)
		if c.holds(live, w.Made[i].Live(w.Env.NowMs)) {
			continue
		}
		out.Reply = statestore.Reply{Kind: statestore.Transacted, Count: statestore.ConditionFailed, Op: c.Op}
		if live != nil {
			out.Reply.Value, out.Reply.Version = present(live.Value), live.Version
		}
		return
	}
	if out.write(t, w) && out.remember(t, w) {
		out.commit(t, w)
	}
}

// firstOnce is the number of the first ONCE, from 0; -1: there is none.
func (t *Transaction) firstOnce() int {
	return slices.IndexFunc(t.Once, func(o Once) bool { return !o.Done })
}

// Reset drops what it refers to. What it has in memory is used again.
func (out *Outcome) Reset() {
	clear(out.Results)
	clear(out.Memos)
	out.Reply, out.Results, out.Memos = statestore.Reply{}, out.Results[:0], out.Memos[:0]
}

// refuse makes the reply an error about one operation.
func (out *Outcome) refuse(op int, f statestore.Fault, b statestore.Bound) {
	out.Reply = statestore.Reply{Kind: statestore.Error, Op: op, Fault: f, Bound: b}
}

func (c *Condition) holds(live *statestore.Entry, made *statestore.Memo) bool {
	switch {
	case c.Check == Absent:
		return live == nil
	case live == nil:
		return false
	case c.Check == HasValue:
		return bytes.Equal(live.Value, c.Operand)
	case c.Check == AtVersion:
		return live.Version == c.Version
	case c.Check == MadeBy:
		return made != nil && live.Version == made.Version
	}
	return c.Check == Exists
}

// write decides all writes, or says false and which of them is refused, and why.
func (out *Outcome) write(t *Transaction, w *World) bool {
	if cap(out.Results) < len(t.Writes) {
		out.Results = make([]statestore.Result, len(t.Writes)) // never copied: a Result refers to itself
	}
	out.Results = out.Results[:len(t.Writes)]
	env := w.Env
	var taken room
	for i := range t.Writes {
		write, res := &t.Writes[i], &out.Results[i]
		cell := &w.Cells[write.Key]
		env.Room = taken.left(&cell.Room)
		statestore.Apply(&write.Command, statestore.Cell{Entry: cell.Entry}, &env, res)
		if res.Reply.Kind == statestore.Error {
			out.refuse(write.Op, res.Reply.Fault, res.Reply.Bound)
			out.Reply.TimeMs = res.Reply.TimeMs
			return false
		}
		env.Last = res.Last
		if res.Changed {
			taken.take(t.Keys[write.Key], cell, res.Entry, w.RecordCost)
		}
	}
	out.Last = env.Last
	return true
}

// remember decides what is remembered of the messages of ONCE: that they are done, or open, with the
// version that the transaction has made of their key, or if it writes other keys only, with a
// version that no key has; and of those of DONE that they are confirmed, if they were remembered
// before. False: there is no room.
func (out *Outcome) remember(t *Transaction, w *World) bool {
	if len(t.Once) == 0 {
		return true
	}
	taken := int64(0)
	out.wrote = append(out.wrote[:0], make([]int32, len(t.Keys))...)
	for i := range t.Writes {
		out.wrote[t.Writes[i].Key] = int32(i + 1)
	}
	memos := make([]statestore.Memo, len(t.Once)) // together: they are forgotten together
	for i := range t.Once {
		o, memo := &t.Once[i], &memos[i]
		room := &w.Cells[o.Key].Room
		if o.Done {
			confirmed, known := w.Once[i].Live(w.Env.NowMs).Confirm(o.Version, o.Context)
			if out.known = append(out.known, known); confirmed == nil {
				out.Memos = append(out.Memos, nil)
				continue
			}
			*memo = *confirmed
		} else {
			*memo = statestore.Memo{Done: !o.Open, Context: o.Context, DeadlineMs: w.Env.MemoDeadline(o.KeepMs)}
			if live := w.Cells[o.Key].Entry.Live(w.Env.NowMs); o.Open && live != nil {
				memo.State = present(live.Value)
			}
		}
		name := len(t.Keys[o.Key]) + len(o.Message)
		grown := memo.Size(name) - w.Once[i].Size(name) // one whose time has come counts until it is gone
		taken += grown
		switch {
		case o.Done && grown <= 0:
		case room.Disk != statestore.DiskFree:
			out.refuse(o.Op, statestore.QuotaExceeded, statestore.DiskReserve)
			return false
		case grown > 0 && room.Memos < taken:
			out.refuse(o.Op, statestore.QuotaExceeded, statestore.MaxRemembered)
			return false
		}
		if n := out.wrote[o.Key]; !o.Done && n > 0 && out.Results[n-1].Changed {
			memo.Version = made(&out.Results[n-1])
		}
		if memo.Version.IsZero() {
			out.Last = hlc.Next(uint64(max(0, w.Env.WallMs)), out.Last, t.Time.At, w.Env.Node)
			memo.Version = out.Last
		}
		out.Memos = append(out.Memos, memo)
	}
	return true
}

// made is the version that a write has made: of a deletion its own.
func made(res *statestore.Result) hlc.Timestamp { return res.Events[res.NumEvents-1].Version }

// commit makes the reply that says that all is done.
func (out *Outcome) commit(t *Transaction, w *World) {
	out.Reply = statestore.Reply{Kind: statestore.Transacted, Count: statestore.Committed}
	for i := range t.Once { // the shortest, if it is not what was asked for
		if ms := w.Env.Granted(t.Once[i].KeepMs); !t.Once[i].Done && ms != 0 && (out.Reply.KeepMs == 0 || ms < out.Reply.KeepMs) {
			out.Reply.KeepMs = ms
		}
	}
	out.values = append(out.values[:0], make([]statestore.PageValue, len(t.Writes))...)
	out.Reply.Values = out.values
	for i := range out.Results {
		if res := &out.Results[i]; res.Changed {
			out.Reply.Values[i].Version = made(res)
			out.Reply.Version = made(res)
		}
	}
	for i, memo := range out.Memos {
		if !t.Once[i].Done && memo.Version.Compare(out.Reply.Version) > 0 {
			out.Reply.Version = memo.Version
		}
	}
	if len(out.known) > 0 {
		out.Reply.Ended = out.known
	}
}

// room is what the writes of a transaction have taken so far.
type room struct {
	keys, bytes, memory int64
	own                 struct{ keys, bytes int64 } // of the client's
}

// left is what they leave of the room that one write alone would have.
func (t *room) left(of *statestore.Room) statestore.Room {
	left := *of
	left.Keys -= t.keys
	left.Bytes -= t.bytes
	if left.BytesBy == statestore.MaxMemory {
		left.Bytes -= t.memory
	}
	left.Client.Keys -= t.own.keys
	left.Client.Bytes -= t.own.bytes
	return left
}

// take notes that a key's entry is now entry, nil: it is gone.
func (t *room) take(key []byte, cell *Cell, entry *statestore.Entry, recordCost int64) {
	own := cell.Room.Client.Own
	if old := cell.Entry; old != nil {
		size := int64(len(key)) + int64(len(old.Value))
		t.keys--
		t.bytes -= size
		if own {
			t.own.keys--
			t.own.bytes -= size
		}
	}
	if entry == nil {
		return
	}
	size := int64(len(key)) + int64(len(entry.Value))
	t.keys++
	t.bytes += size
	t.own.keys++
	t.own.bytes += size
	if cell.Entry == nil {
		t.memory += recordCost
	}
}

// present returns an empty slice for nil, since nil stands for no value.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
