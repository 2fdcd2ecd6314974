package share

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Backlog is what waits in a shared subscription, in the order of sequence numbers:
//
//	head                     middle          tail
//	--|---------------------|---------------|-------------|-->  sequence
//	  what goes next, and    on disk only    what came last,
//	  what was handed back                   until it is on disk
//
// A message of the tail moves to the middle as soon as its row is on disk; the middle
// costs nothing but a count. When the head has been passed on, a goroutine reads the
// next page of the middle.
//
// When memory gets tight, the end of the head moves to the middle, too. Messages that
// were handed back can't: the rows of messages that members took may still be on disk
// between theirs, so they can't be read back as a range. They keep an entry in the head,
// and are read one by one. There are never more of them than members have taken.
//
// Its group locks state; the other fields do not change.
type Backlog struct {
	env   *session.Env
	Key   string         // {name}/{filter}
	group journal.Waiter // called when a row is on disk that Evict waits for: it calls OnDisk
	state
}

// state is what changes of a Backlog.
type state struct {
	Ended bool   // the last member has left: nothing is kept any more
	SID   uint64 // number of its rows on disk; 0: it has none
	front uint64 // lowest sequence number ever given: a message that was taken may still have its row
	back  uint64 // sequence number of the next message to come

	Head   []waiting
	Middle queue.OnDisk
	Tail   []waiting

	Messages int   // of head, middle and tail
	bytes    int64 // of them

	HeadMessages int    // of head, those in memory
	headBytes    int64  // of them
	goneTo       uint64 // messages from this sequence number on have not been offered to members

	Attended  bool // a member was connected when that was last looked at
	Loading   bool // a goroutine reads messages back from the disk
	awaiting  bool // the journal will call the group, which evicts
	durableTo journal.Seq
}

// middle is where a backlog's sequence numbers begin: they grow both ways.
const middle = 1 << 63

// Begin makes the backlog ready, empty, for a group.
func (b *Backlog) Begin(env *session.Env, key string, group journal.Waiter) {
	*b = Backlog{env: env, Key: key, group: group, state: state{front: middle, back: middle}}
}

// Number gives the backlog's number on disk. It gets one, with its row, when it has none.
func (b *Backlog) Number() uint64 {
	if b.SID == 0 {
		b.SID = b.env.LastSID.Add(1)
		a := b.env.Journal.Begin()
		a.Set(rows.GroupKey(b.Key), rows.GroupRow(b.SID))
		a.End(nil)
	}
	return b.SID
}

// End lets go of the backlog, in memory and on disk.
func (b *Backlog) End() {
	b.clear()
	if b.SID != 0 {
		a := b.env.Journal.Begin()
		a.Delete(rows.GroupKey(b.Key))
		a.DeleteRange(rows.QueuedKind.Of(b.SID))
		a.End(nil)
	}
	b.state = state{front: b.front, back: b.back, Ended: true}
}

// Append puts a message, of which it takes over the reference, at the end, and gives its
// sequence number. Its row is still to be journaled.
func (b *Backlog) Append(m *message.Message) (seq uint64) {
	w := waiting{message: m, Seq: b.back, size: uint32(m.Size())}
	b.count(&w)
	if len(b.Tail) == 0 && b.Middle.Count == 0 && b.headHasRoom() {
		b.Head = append(b.Head, w)
		b.headHolds(&w, 1)
	} else {
		b.Tail = append(b.Tail, w)
	}
	b.back++
	return w.Seq
}

// Prepend puts messages, whose references it takes over, before all others, in order,
// and gives the sequence number of the first. Their rows are still to be journaled.
func (b *Backlog) Prepend(messages []*message.Message) (first uint64) {
	head := make([]waiting, 0, len(messages)+len(b.Head))
	b.front -= uint64(len(messages))
	for i, m := range messages {
		w := waiting{message: m, Seq: b.front + uint64(i), size: uint32(m.Size())}
		b.count(&w)
		b.headHolds(&w, 1)
		head = append(head, w)
	}
	b.Head = append(head, b.Head...)
	return b.front
}

// Saved notes that a message's row is in the batch.
func (b *Backlog) Saved(seq uint64, batch journal.Seq) {
	if w := b.Find(seq); w != nil {
		w.saved, w.batch = true, batch
	}
}

// Restore adds a message that is on disk, in the order of sequence numbers, while the
// server starts.
func (b *Backlog) Restore(seq uint64, size int) {
	if b.Messages == 0 {
		b.front = seq
	}
	b.back = seq + 1
	b.count(&waiting{size: uint32(size)})
	b.Middle.Add(seq, int64(size))
}

// Peek gives the first message with a reference, if it is saved and in memory.
func (b *Backlog) Peek() (seq uint64, m *message.Message) {
	if !b.Ready() {
		return 0, nil
	}
	w := &b.Head[0]
	w.message.Keep()
	b.goneTo = max(b.goneTo, w.Seq+1) // it keeps its entry, for Take
	return w.Seq, w.message
}

// Take takes the message that Peek gave out of the backlog, if it is still there. The key
// of its row is added to deletes.
func (b *Backlog) Take(deletes *[][]byte, seq uint64) bool {
	i, found := findIn(b.Head, seq)
	if found {
		b.remove(deletes, i)
	}
	return found
}

// waiting is a message in a group's backlog.
type waiting struct {
	message *message.Message // with a reference; nil: on disk only
	Seq     uint64           // on disk; rising, maybe with gaps
	batch   journal.Seq      // that its row is in, once it is saved
	size    uint32           // bytes of the message
	saved   bool             // its row is journaled; before that it must not be passed on
}

// count adds a message to the levels, and charges what it takes in memory.
func (b *Backlog) count(w *waiting) {
	b.level(1, int64(w.size))
	b.charge(w, 1)
}

func (b *Backlog) level(messages, bytes int64) {
	b.Messages += int(messages)
	b.bytes += bytes
	b.env.Counters.Queued.Add(messages)
	b.env.Counters.QueuedBytes.Add(bytes)
}

// charge charges the pool of memory with a message that is in memory, or with a sign
// of -1 credits it.
func (b *Backlog) charge(w *waiting, sign int64) {
	switch m := w.message; {
	case m == nil || m.Stamp != 0: // the store of retained messages has it
	case w.size < queue.ChargedAlone:
		b.env.Memory.Charge(memory.Queues, sign*(queue.SlotOverhead+int64(w.size)))
	case sign > 0:
		b.env.Accounts.Charge(m, memory.Queues)
	}
}

// headHolds counts a message of the head as in memory, or with a sign of -1 as not.
func (b *Backlog) headHolds(w *waiting, sign int64) {
	b.HeadMessages += int(sign)
	b.headBytes += sign * int64(w.size)
}

// letGo releases a message that is in memory.
func (b *Backlog) letGo(w *waiting) {
	b.charge(w, -1)
	w.message.Release()
	w.message = nil
}

// remove takes a message out of the head. The key of its row is added to deletes.
func (b *Backlog) remove(deletes *[][]byte, i int) {
	w := &b.Head[i]
	*deletes = append(*deletes, rows.QueueKey(b.SID, w.Seq))
	b.goneTo = max(b.goneTo, w.Seq+1)
	b.level(-1, -int64(w.size))
	if w.message != nil {
		b.headHolds(w, -1)
		b.letGo(w)
	}
	if i == 0 {
		*w = waiting{}
		b.Head = b.Head[1:]
	} else {
		b.Head = slices.Delete(b.Head, i, i+1)
	}
}

// clear lets go of everything.
func (b *Backlog) clear() {
	for _, part := range [][]waiting{b.Head, b.Tail} {
		for i := range part {
			if part[i].message != nil {
				b.letGo(&part[i])
			}
		}
	}
	b.level(-int64(b.Messages), -b.bytes)
}

// Find gives the entry of a message, if it has one.
func (b *Backlog) Find(seq uint64) *waiting {
	for _, part := range [][]waiting{b.Head, b.Tail} {
		if i, found := findIn(part, seq); found {
			return &part[i]
		}
	}
	return nil
}

func findIn(part []waiting, seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(part, seq, func(w waiting, seq uint64) int { return cmp.Compare(w.Seq, seq) })
}

// join makes the tail the head, when nothing is left before it.
func (b *Backlog) join() {
	if len(b.Head) > 0 || b.Middle.Count > 0 || len(b.Tail) == 0 {
		return
	}
	b.Head, b.Tail = b.Tail, nil
	for i := range b.Head {
		b.headHolds(&b.Head[i], 1)
	}
}

// window gives how much of the head may be in memory.
func (b *Backlog) window() (messages int, bytes int64) {
	switch {
	case b.env.Memory.Tight():
		return 1, 0
	case !b.Attended:
		return queue.AwayWindowMessages, queue.AwayWindowBytes
	}
	return queue.WindowMessages, queue.WindowBytes
}

// headHasRoom says whether a message that comes may stay in the head.
func (b *Backlog) headHasRoom() bool {
	messages, bytes := b.window()
	return b.HeadMessages < messages && b.headBytes < bytes
}

// Evict lets go of messages that needn't be in memory and are on disk.
func (b *Backlog) Evict() {
	if b.Ended || b.Loading {
		return
	}
	b.join()
	for len(b.Tail) > 0 && b.evictable(&b.Tail[0]) {
		w := &b.Tail[0]
		b.letGo(w)
		b.Middle.Add(w.Seq, int64(w.size))
		b.Tail = b.Tail[1:]
	}
	if len(b.Tail) == 0 {
		b.Tail = nil
	}
	messages, bytes := b.window()
	for i := len(b.Head) - 1; i >= 0 && (b.HeadMessages > messages || b.headBytes > bytes); i-- {
		w := &b.Head[i]
		if w.message != nil {
			if !b.evictable(w) {
				continue
			}
			b.headHolds(w, -1)
			b.letGo(w)
		}
		if i == len(b.Head)-1 && w.Seq >= b.goneTo {
			b.Middle.AddBefore(w.Seq, int64(w.size))
			b.Head = b.Head[:i]
		}
	}
}

// evictable says whether a message is on disk. If it soon will be, Durable is called.
func (b *Backlog) evictable(w *waiting) bool {
	if !w.saved {
		return false
	}
	if w.batch <= b.durableTo || w.batch <= b.env.Journal.Complete() {
		return true
	}
	if !b.awaiting {
		b.awaiting = b.env.Journal.Await(w.batch, b.group)
		return !b.awaiting
	}
	return false
}

// Full says whether the backlog is at its bound, which is that of a session's queue
// on disk.
func (b *Backlog) Full() bool {
	l := &b.env.Limits
	return b.Messages >= l.MaxQueued || b.Load() >= l.MaxQueuedBytes
}

// Overfull says whether the backlog is beyond its bound.
func (b *Backlog) Overfull() bool {
	l := &b.env.Limits
	return b.Messages > l.MaxQueued || b.Load() > l.MaxQueuedBytes
}

// Load gives the bytes that the backlog takes on disk.
func (b *Backlog) Load() int64 { return queue.Load(b.Messages, b.bytes, queue.RowOverhead) }

// Ready says whether Peek would give a message.
func (b *Backlog) Ready() bool {
	b.join()
	return len(b.Head) > 0 && b.Head[0].saved && b.Head[0].message != nil
}

// Shed drops the oldest messages of a backlog beyond its bound, if QueueFull is
// DropOldest. It stops at a message whose row isn't journaled yet, and where the next
// messages are on disk only: they are read first.
func (b *Backlog) Shed(deletes *[][]byte) {
	if b.env.Limits.QueueFull != limits.DropOldest {
		return
	}
	for b.join(); b.Overfull() && len(b.Head) > 0 && b.Head[0].saved; b.join() {
		b.remove(deletes, 0)
		b.env.Counters.Dropped.Add(1)
	}
}

// OnDisk says that rows up to the batch are on disk, although it isn't complete before its
// callbacks have run.
func (b *Backlog) OnDisk(batch journal.Seq) {
	b.awaiting = false
	b.durableTo = batch
	b.Evict()
}

// Lacks says whether the first message is on disk only, and no goroutine reads it.
func (b *Backlog) Lacks() bool {
	if b.Ended || b.Loading {
		return false
	}
	b.join()
	if len(b.Head) > 0 {
		return b.Head[0].saved && b.Head[0].message == nil
	}
	return b.Middle.Count > 0
}

// NextPage says which part of the backlog is to be read next, if any: the first of the
// head that are on disk only, or else what follows the head.
func (b *Backlog) NextPage() (p queue.Page, any bool) {
	p = queue.Page{Sid: b.SID, From: b.Middle.From, To: b.Middle.To, Messages: queue.PageMessages, Bytes: queue.PageBytes}
	if b.env.Memory.Tight() {
		p.Messages, p.Bytes = queue.AwayWindowMessages, queue.AwayWindowBytes
	}
	bytes := int64(0)
	for i := range b.Head {
		if bytes >= p.Bytes || len(p.Strays) == p.Messages {
			break
		}
		if w := &b.Head[i]; w.message == nil {
			p.Strays = append(p.Strays, w.Seq)
			bytes += int64(w.size)
		}
	}
	return p, !b.Ended && (len(p.Strays) > 0 || b.Middle.Count > 0)
}

// Fill takes over the messages that were found for page p. whole: the page reaches the
// end of the middle. hole says which message is missing; empty: none.
func (b *Backlog) Fill(p *queue.Page, found []queue.Loaded, whole bool) (hole string) {
	for i := range found {
		l := &found[i]
		if l.Err != nil {
			return fmt.Sprintf("message %d: %v", l.Seq, l.Err)
		}
		var w *waiting
		if len(p.Strays) == 0 {
			b.Head = append(b.Head, waiting{Seq: l.Seq, size: uint32(l.It.Message.Size()), saved: true})
			w = &b.Head[len(b.Head)-1]
			b.Middle.Count--
			b.Middle.Bytes -= int64(w.size)
			b.Middle.From = l.Seq + 1
		} else if at, there := findIn(b.Head, l.Seq); there && b.Head[at].message == nil {
			w = &b.Head[at]
		} else {
			continue // it was dropped meanwhile
		}
		w.message, l.It.Message = l.It.Message, nil
		b.charge(w, 1)
		b.headHolds(w, 1)
	}
	for _, seq := range p.Strays {
		if at, there := findIn(b.Head, seq); there && b.Head[at].message == nil {
			return fmt.Sprintf("message %d is missing", seq)
		}
	}
	if len(p.Strays) == 0 && whole && b.Middle.Count != 0 {
		return fmt.Sprintf("%d messages are missing", b.Middle.Count)
	}
	return ""
}
