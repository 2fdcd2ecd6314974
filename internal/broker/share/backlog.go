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

// Backlog has the messages of a shared subscription that no member could take, in the order
// of sequence numbers:
//
//	head                     middle          tail
//	--|---------------------|---------------|-------------|-->  sequence
//	  the next messages,     on disk only    the newest messages,
//	  and those that were                    until they are on disk
//	  handed back
//
// A message of the tail moves to the middle as soon as its row is on disk; the middle
// takes no memory besides a count. When members have taken the head, a goroutine reads
// the next page of the middle.
//
// When memory gets tight, the end of the head moves to the middle as well. Messages that
// members handed back cannot move: between their rows there may still be rows of messages
// that other members took, so they cannot be read back as a range. They keep an entry in
// the head, and are read one by one. Their number is bounded by the number of messages
// that members have taken.
//
// The group's lock guards state; the other fields do not change.
type Backlog struct {
	env   *session.Env
	Key   string         // {name}/{filter}
	group journal.Waiter // the journal calls it when a row that Evict waits for is on disk; it then calls OnDisk
	state
}

// state has the fields of a Backlog that change.
type state struct {
	Ended bool   // the last member has left, so the backlog keeps no messages
	SID   uint64 // number of its rows on disk; 0: it has none
	front uint64 // lowest sequence number given so far; it never rises, because the row of a message that was taken may still be on disk
	back  uint64 // sequence number of the next message to come

	Head   []waiting
	Middle queue.OnDisk
	Tail   []waiting

	Messages int   // of Head, Middle and Tail
	bytes    int64 // of Messages

	HeadMessages int    // messages of Head that are in memory
	headBytes    int64  // of HeadMessages
	offeredTo    uint64 // messages from this sequence number on have not been offered to members

	rejecting int  // members whose clients have chosen that publishes be refused
	Attended  bool // a member was connected when the group last checked
	Loading   bool // a goroutine reads messages back from the disk
	awaiting  bool // the journal will call the group, which calls OnDisk
	firstHeld bool // the first message waits for a transaction's batch
	durableTo journal.Seq
}

// firstSeq is the sequence number of a backlog's first message. The numbers of new messages
// rise from it; those of messages that are handed back fall from it.
const firstSeq = 1 << 63

// Begin makes an empty backlog for a group.
func (b *Backlog) Begin(env *session.Env, key string, group journal.Waiter) {
	*b = Backlog{env: env, Key: key, group: group, state: state{front: firstSeq, back: firstSeq}}
}

// Number returns the backlog's number on disk. If it has none, Number assigns one and
// journals its row.
func (b *Backlog) Number() uint64 {
	if b.SID == 0 {
		b.SID = b.env.LastSID.Add(1)
		a := b.env.Journal.Begin()
		a.Set(rows.GroupKey(b.Key), rows.GroupRow(b.SID))
		a.End(nil)
	}
	return b.SID
}

// End releases the backlog in memory and deletes its rows.
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

// Append adds a message at the end, takes over the caller's reference to it, and returns
// its sequence number. The caller journals its row.
func (b *Backlog) Append(m *message.Message) (seq uint64) {
	w := waiting{message: m, Seq: b.back, size: uint32(m.Size())}
	b.count(&w)
	if len(b.Tail) == 0 && b.Middle.Count == 0 && b.headHasRoom() {
		b.Head = append(b.Head, w)
		b.countHead(&w, 1)
	} else {
		b.Tail = append(b.Tail, w)
	}
	b.back++
	return w.Seq
}

// Prepend adds messages before all others, in their order, takes over the caller's
// references to them, and returns the sequence number of the first. The caller journals
// their rows.
func (b *Backlog) Prepend(messages []*message.Message) (first uint64) {
	head := make([]waiting, 0, len(messages)+len(b.Head))
	b.front -= uint64(len(messages))
	for i, m := range messages {
		w := waiting{message: m, Seq: b.front + uint64(i), size: uint32(m.Size())}
		b.count(&w)
		b.countHead(&w, 1)
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

// Peek returns the first message, with a reference for the caller; nil if its row is not
// journaled yet or it is not in memory.
func (b *Backlog) Peek() (seq uint64, m *message.Message) {
	if !b.Ready() {
		return 0, nil
	}
	w := &b.Head[0]
	w.message.Keep()
	b.offeredTo = max(b.offeredTo, w.Seq+1) // so that Evict leaves its entry, for Take
	return w.Seq, w.message
}

// Drop takes out a message again whose row is not journaled, if it is still there.
func (b *Backlog) Drop(seq uint64) {
	for _, part := range []*[]waiting{&b.Head, &b.Tail} {
		i, found := findIn(*part, seq)
		if !found || (*part)[i].saved {
			continue
		}
		w := &(*part)[i]
		b.level(-1, -int64(w.size))
		if part == &b.Head {
			b.countHead(w, -1)
		}
		b.letGo(w)
		*part = slices.Delete(*part, i, i+1)
	}
}

// Take removes the message that Peek returned, and adds the key of its row to deletes. It
// returns false if the message is no longer there.
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
	Seq     uint64           // sequence number, part of the key of its row; rising, maybe with gaps
	batch   journal.Seq      // the batch of its row, once it is saved
	size    uint32           // bytes of the message
	saved   bool             // its row is journaled; before that no member may get it
}

// count counts a new message, and charges the pool with it if it is in memory.
func (b *Backlog) count(w *waiting) {
	b.level(1, int64(w.size))
	b.charge(w, 1)
}

// level adds to the number of messages and bytes in the backlog.
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
	case m == nil: // not in memory
	case w.size < queue.ChargedAlone:
		b.env.Memory.Charge(memory.Queues, sign*(queue.SlotOverhead+int64(w.size)))
	case sign > 0:
		b.env.Accounts.Charge(m, memory.Queues)
	}
}

// countHead counts a message of the head as in memory, or with a sign of -1 as not.
func (b *Backlog) countHead(w *waiting, sign int64) {
	b.HeadMessages += int(sign)
	b.headBytes += sign * int64(w.size)
}

// letGo releases a message that is in memory.
func (b *Backlog) letGo(w *waiting) {
	b.charge(w, -1)
	w.message.Release()
	w.message = nil
}

// remove removes a message from the head, and adds the key of its row to deletes.
func (b *Backlog) remove(deletes *[][]byte, i int) {
	w := &b.Head[i]
	*deletes = append(*deletes, rows.QueueKey(b.SID, w.Seq))
	b.offeredTo = max(b.offeredTo, w.Seq+1)
	b.level(-1, -int64(w.size))
	if w.message != nil {
		b.countHead(w, -1)
		b.letGo(w)
	}
	if i == 0 {
		*w = waiting{}
		b.Head = b.Head[1:]
	} else {
		b.Head = slices.Delete(b.Head, i, i+1)
	}
}

// clear releases all messages in memory.
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

// Find returns the entry of a message in the head or in the tail; nil: it has none.
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

// join makes the tail the head, if no message is before it.
func (b *Backlog) join() {
	if len(b.Head) > 0 || b.Middle.Count > 0 || len(b.Tail) == 0 {
		return
	}
	b.Head, b.Tail = b.Tail, nil
	for i := range b.Head {
		b.countHead(&b.Head[i], 1)
	}
}

// window is how much of the head may be in memory.
func (b *Backlog) window() (messages int, bytes int64) {
	switch {
	case b.env.Memory.Tight():
		return 1, 0
	case !b.Attended:
		return queue.AwayWindowMessages, queue.AwayWindowBytes
	}
	return queue.WindowMessages, queue.WindowBytes
}

// headHasRoom says whether a new message may go to the head.
func (b *Backlog) headHasRoom() bool {
	messages, bytes := b.window()
	return b.HeadMessages < messages && b.headBytes < bytes
}

// Evict releases messages that are on disk from memory: all of the tail, and of the head
// what is beyond its window.
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
			b.countHead(w, -1)
			b.letGo(w)
		}
		if i == len(b.Head)-1 && w.Seq >= b.offeredTo {
			b.Middle.AddBefore(w.Seq, int64(w.size))
			b.Head = b.Head[:i]
		}
	}
}

// evictable says whether a message is on disk. If its row is in a batch that is not on
// disk yet, the journal will call the group, which calls OnDisk.
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

// Full says whether the backlog is at its bound, the same as that of a session's queue on
// disk.
func (b *Backlog) Full() bool {
	l := b.env.Limits()
	return b.Messages >= l.MaxQueued || b.DiskBytes() >= l.MaxQueuedBytes
}

// Overfull says whether the backlog is beyond its bound.
func (b *Backlog) Overfull() bool {
	l := b.env.Limits()
	return b.Messages > l.MaxQueued || b.DiskBytes() > l.MaxQueuedBytes
}

// DiskBytes is how many bytes the backlog takes on disk.
func (b *Backlog) DiskBytes() int64 { return queue.Footprint(b.Messages, b.bytes, queue.RowOverhead) }

// Ready says whether Peek would return a message.
func (b *Backlog) Ready() bool {
	b.join()
	return len(b.Head) > 0 && b.Head[0].saved && b.Head[0].message != nil && !b.mustAwait(b.Head[0].message.AfterBatch)
}

// mustAwait says whether the first message may not be sent yet, because the batch after
// which it may is not durable. The journal then calls the group when that batch, or an
// earlier one, is durable.
func (b *Backlog) mustAwait(after journal.Seq) bool {
	if after <= b.durableTo || after <= b.env.Journal.Complete() {
		return false
	}
	if !b.awaiting {
		b.awaiting = b.env.Journal.Await(after, b.group)
	}
	b.firstHeld = b.awaiting
	return b.firstHeld
}

// WhenFull says what happens when the backlog is full: publishes are refused if a member's client
// has chosen that for its session; otherwise what the server's setting says.
func (b *Backlog) WhenFull() limits.QueueFull {
	if b.rejecting > 0 {
		return limits.Reject
	}
	return b.env.Limits().QueueFull
}

// Shed drops the oldest messages of a backlog that is beyond its bound, if WhenFull is
// DropOldest. It stops before a message whose row is not journaled yet, and where the next
// message is on disk only: a goroutine must read that first.
func (b *Backlog) Shed(deletes *[][]byte) {
	if b.WhenFull() != limits.DropOldest {
		return
	}
	for b.join(); b.Overfull() && len(b.Head) > 0 && b.Head[0].saved; b.join() {
		b.remove(deletes, 0)
		b.env.Counters.Dropped.Add(1)
	}
}

// OnDisk notes that rows up to the batch are on disk, and evicts. It is called within the
// batch's callbacks, when Journal.Complete does not include the batch yet. held: a
// transaction's batch held the first message back, this one or a later one.
func (b *Backlog) OnDisk(batch journal.Seq) (held bool) {
	held, b.firstHeld = b.firstHeld, false
	b.awaiting = false
	b.durableTo = batch
	b.Evict()
	return held
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

// NextPage says which part of the backlog is to be read next: the first messages of the
// head that are on disk only; if there are none, the first ones of the middle. any: there
// is something to read.
func (b *Backlog) NextPage() (p queue.Page, any bool) {
	p = queue.Page{SID: b.SID, From: b.Middle.From, To: b.Middle.To, Messages: queue.PageMessages, Bytes: queue.PageBytes}
	if b.env.Memory.Tight() {
		p.Messages, p.Bytes = queue.AwayWindowMessages, queue.AwayWindowBytes
	}
	bytes := int64(0)
	for i := range b.Head {
		if bytes >= p.Bytes || len(p.Seqs) == p.Messages {
			break
		}
		if w := &b.Head[i]; w.message == nil {
			p.Seqs = append(p.Seqs, w.Seq)
			bytes += int64(w.size)
		}
	}
	return p, !b.Ended && (len(p.Seqs) > 0 || b.Middle.Count > 0)
}

// Fill moves the messages found for page p to the head. whole: the page reaches the end of
// the middle. hole says which message is missing; empty: none.
func (b *Backlog) Fill(p *queue.Page, found []queue.Loaded, whole bool) (hole string) {
	for i := range found {
		l := &found[i]
		if l.Err != nil {
			return fmt.Sprintf("message %d: %v", l.Seq, l.Err)
		}
		var w *waiting
		if len(p.Seqs) == 0 {
			b.Head = append(b.Head, waiting{Seq: l.Seq, size: uint32(l.It.Message.Size()), saved: true})
			w = &b.Head[len(b.Head)-1]
			b.Middle.Count--
			b.Middle.Bytes -= int64(w.size)
			b.Middle.From = l.Seq + 1
		} else if at, there := findIn(b.Head, l.Seq); there && b.Head[at].message == nil {
			w = &b.Head[at]
		} else {
			continue // the message was dropped meanwhile
		}
		w.message, l.It.Message = l.It.Message, nil
		b.charge(w, 1)
		b.countHead(w, 1)
	}
	for _, seq := range p.Seqs {
		if at, there := findIn(b.Head, seq); there && b.Head[at].message == nil {
			return fmt.Sprintf("message %d is missing", seq)
		}
	}
	if len(p.Seqs) == 0 && whole && b.Middle.Count != 0 {
		return fmt.Sprintf("%d messages are missing", b.Middle.Count)
	}
	return ""
}
