package queue

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Queue is one of a session's two queues of deliveries.
//
// Every message has a sequence number, under which its row is on disk. The packet
// identifier is computed from it, without a search or a write, and a message that is sent
// again, also after a restart, has the same identifier.
//
//	strays      front                      middle          back
//	·   · ·   --|------------|---------|---------------|----------|-->  sequence
//	          head         next      end                         tail
//	 sent, not acknowledged    waiting,   waiting,        waiting,
//	 (those of the ring on     in memory  on disk only    in memory
//	 this connection)
//
// The front is a ring, since acknowledgements come in the order of deliveries
// [MQTT-4.6.0-2]. A delivery that stays unacknowledged while later ones are acknowledged
// is moved from the ring to the strays (Trim), so that the ring holds little more than
// twice what is under way. When a connection ends, all deliveries under way become
// strays (Rewind). The client's Receive Maximum bounds the number of strays.
//
// When the sequence comes around to the identifier of a stray, the message gets
// another identifier, which isn't in use. That identifier is written to the message's row,
// and on disk before the message is sent. The message is a stray as soon as it is sent.
//
// A long queue has in memory what is sent next, and what has just come; the
// middle costs nothing but a count. Only a session's queue on disk has a middle
// and a back.
type Queue struct {
	base, Span  uint16 // first packet identifier, and how many there are
	*deliveries        // noDeliveries until the first message comes
}

// deliveries is what a queue has from its first message on: idle clients are many,
// and never get one.
type deliveries struct {
	Front  ring
	Next   uint64           // head <= next <= end: those before it were sent on this connection
	Live   int              // slots before next that aren't done
	Strays map[uint16]*Slot // by packet identifier
	Resend []*Slot          // strays to be sent again on this connection, oldest first; may have become done
	Tail   uint64           // sequence number of the next message to come
	*deep                   // shallow, if the queue is in memory only

	Messages int   // held: those under way or waiting, in memory or not
	Bytes    int64 // of them
	InMemory int64 // bytes of messages in memory, those under way included
	small    int64 // of those, the small ones, with their slots
	charged  int64 // of small
}

// noDeliveries is the deliveries of queues that have had no message. It is never
// written to.
var noDeliveries = &deliveries{deep: shallow}

// deep is what only a queue on disk has.
type deep struct {
	Middle      OnDisk
	Back        ring
	Unevictable int64 // of InMemory, what had to stay when that was last looked at

	SentTo    uint64 // messages before it may have been sent by an earlier run
	Marked    uint64 // messages before it may be sent: that they may have been is on disk
	Mark      uint64 // the same, once MarkBatch is on disk
	MarkBatch journal.Seq

	// Packet identifiers of strays that are done, while a crash would bring them
	// back: the deletion of their rows is not on disk. Another message that had one
	// of them would be taken for the stray, or the stray for it.
	Cooling []Cooling
}

type Cooling struct {
	ID    uint16
	Batch journal.Seq // in which the row was deleted
}

// shallow is the deep of queues that are in memory only. It is never written to.
var shallow = new(deep)

// OnDisk stands for messages that are on disk only: some of the sequence numbers
// from from to to.
type OnDisk struct {
	From, To uint64
	Count    int
	Bytes    int64
	Order    uint64 // Slot.Order of the newest
	Expires  int64  // when the first of them expires, or earlier, on the broker's clock in ms; 0: never
}

// ExpiresAt notes when a message expires that is added, 0: never.
func (m *OnDisk) ExpiresAt(ms int64) {
	if ms != 0 && (m.Expires == 0 || ms < m.Expires) {
		m.Expires = ms
	}
}

// Add adds a message, with a higher sequence number than those there.
func (m *OnDisk) Add(seq uint64, size int64) {
	if m.Count == 0 {
		m.From = seq
	}
	m.To = seq + 1
	m.Count++
	m.Bytes += size
}

// AddBefore adds a message, with a lower sequence number than those there.
func (m *OnDisk) AddBefore(seq uint64, size int64) {
	if m.Count == 0 {
		m.To = seq + 1
	}
	m.From = seq
	m.Count++
	m.Bytes += size
}

// Packet identifiers of the two queues of a session: what was routed to it, and
// what a handler sends it directly.
const (
	RoutedBase, RoutedSpan = 1, 32767
	DirectBase, DirectSpan = 32768, 32768
)

// New is an empty queue in memory, with packet identifiers of its own.
func New(base, span uint16) Queue {
	return Queue{base: base, Span: span, deliveries: noDeliveries}
}

// Unused says whether the queue has had no message. Then Open must
// be called before any of its fields is written to.
func (q *Queue) Unused() bool { return q.deliveries == noDeliveries }

// Clear empties the queue. The caller has released the messages.
func (q *Queue) Clear() { q.deliveries = noDeliveries }

// Open gives the queue room for deliveries, if it has none yet.
func (q *Queue) Open() {
	if q.Unused() {
		q.deliveries = &deliveries{deep: shallow}
	}
}

// Start makes a queue on disk, still empty, begin with a sequence number.
func (q *Queue) Start(seq uint64) {
	q.Open()
	q.deep = new(deep)
	q.Front.Reset(seq)
	q.Next, q.Tail = seq, seq
	q.Middle.From, q.Middle.To = seq, seq
	q.Back.Reset(seq)
}

func (q *Queue) PacketID(seq uint64) uint16 { return q.base + uint16(seq%uint64(q.Span)) }

// Waiting is how many messages wait in memory.
func (q *Queue) Waiting() int { return int(q.Front.End-q.Next) + q.Back.len() }

// Empty says whether no message waits, in memory or on disk, to be sent or sent
// again.
func (q *Queue) Empty() bool {
	return q.Next == q.Tail && len(q.Resend) == 0
}

// Long says whether messages wait elsewhere than in the front.
func (q *Queue) Long() bool { return q.Middle.Count > 0 || q.Back.len() > 0 }

// Push adds a slot at the tail.
func (q *Queue) Push(it Slot, inFront bool) *Slot {
	q.Open()
	it.Seq = q.Tail
	q.Tail++
	r := &q.Front
	if !inFront || q.Long() || !q.skipTo(it.Seq) {
		r = &q.Back
		if r.len() == 0 {
			r.Reset(it.Seq)
			q.Middle.To = it.Seq
			if q.Middle.Count == 0 {
				q.Middle.From = it.Seq
			}
		}
	}
	r.push(it)
	return r.At(it.Seq)
}

// SlotAt gives the slot in memory that waits with a sequence number, or is under
// way in the ring; nil: there is none.
func (q *Queue) SlotAt(seq uint64) *Slot {
	switch {
	case q.Front.has(seq):
		return q.Front.At(seq)
	case q.Back.has(seq):
		return q.Back.At(seq)
	}
	return nil
}

// MaxGap is how many sequence numbers without a message the ring passes over by
// slots that are done.
const MaxGap = 64

// skipTo makes seq the next number of the front. It says false if messages wait
// before it, and there are too many numbers in between.
func (q *Queue) skipTo(seq uint64) bool {
	if seq-q.Front.End > MaxGap {
		if q.Next != q.Front.End {
			return false
		}
		q.clearRing()
		q.Front.Reset(seq)
		q.Next = seq
	}
	for q.Front.End < seq {
		q.Front.push(Slot{State: Done})
	}
	return true
}

// Join moves the back to the front, when nothing is left between.
func (q *Queue) Join() {
	q.skipDone()
	if q.Next != q.Front.End || q.Middle.Count > 0 || q.Back.len() == 0 {
		return
	}
	q.skipTo(q.Back.head)
	for seq := q.Back.head; seq < q.Back.End; seq++ {
		q.Front.push(*q.Back.At(seq))
	}
	q.Back.Reset(q.Tail)
	q.Middle.From, q.Middle.To = q.Tail, q.Tail
}

// Find gives the delivery under way with the packet identifier, if it has been
// sent on this connection, or nil.
func (q *Queue) Find(id uint16) *Slot {
	ahead := int(id) - int(q.PacketID(q.Front.head)) // of the head, around the end
	if ahead < 0 {
		ahead += int(q.Span)
	}
	if seq := q.Front.head + uint64(ahead); seq < q.Next {
		if it := q.Front.At(seq); it.State == Sent || it.State == Released {
			return it
		}
	}
	if it := q.Strays[id]; it != nil && it.out {
		return it
	}
	return nil
}

// TakeOut takes a slot, whose message the caller has released, out of the queue. It
// moves no other slot; the caller calls Trim afterwards.
func (q *Queue) TakeOut(it *Slot) {
	seq, id := it.Seq, it.ID
	stray := id != 0 && len(q.Strays) > 0 && q.Strays[id] == it
	*it = Slot{State: Done}
	switch {
	case stray:
		delete(q.Strays, id)
	case q.Front.has(seq) && seq < q.Next:
		q.Live--
	}
}

// Trim moves the head past what is done, and past deliveries that have been left
// behind by those sent after them.
func (q *Queue) Trim() {
	if q.Unused() {
		return
	}
	q.skipDone()
	for q.Front.head < q.Next {
		switch {
		case q.Front.At(q.Front.head).State == Done:
		case q.Next-q.Front.head > uint64(2*q.Live+MaxGap) || q.Next-q.Front.head >= uint64(q.Span):
			q.stray(q.Front.At(q.Front.head))
		default:
			return
		}
		q.Front.head++
	}
	if q.Front.len() == 0 {
		q.Front.Reset(q.Front.End)
	}
}

// skipDone moves next past what is done.
func (q *Queue) skipDone() {
	for q.Next < q.Front.End && q.Front.At(q.Next).State == Done {
		q.Next++
	}
}

// stray moves a delivery under way out of the ring.
func (q *Queue) stray(it *Slot) *Slot {
	moved := new(Slot)
	*moved = *it
	moved.out = true
	if q.Strays == nil {
		q.Strays = make(map[uint16]*Slot)
	}
	q.Strays[it.ID] = moved
	*it = Slot{State: Done}
	q.Live--
	return moved
}

// clearRing moves every delivery under way out of the ring.
func (q *Queue) clearRing() {
	for ; q.Front.head < q.Next; q.Front.head++ {
		if it := q.Front.At(q.Front.head); it.State != Done {
			q.stray(it)
		}
	}
}

// Candidate gives the next slot to send on this connection, or nil when there is
// none in memory, or no packet identifier is free.
func (q *Queue) Candidate() *Slot {
	for len(q.Resend) > 0 && q.Resend[0].State == Done {
		q.Resend = q.Resend[1:]
	}
	q.Join()
	q.Trim()
	if len(q.Resend) > 0 && q.Resend[0].Seq < q.firstWaiting() {
		return q.Resend[0]
	}
	if q.Next == q.Front.End || q.Live+len(q.Strays)+len(q.Cooling) >= int(q.Span) {
		return nil
	}
	return q.Front.At(q.Next)
}

// firstWaiting gives the sequence number from which on messages wait that are not
// strays.
func (q *Queue) firstWaiting() uint64 {
	switch {
	case q.Next < q.Front.End:
		return q.Next
	case q.Middle.Count > 0:
		return q.Middle.From
	}
	return q.Tail
}

// LacksMessage says whether the next to be sent is on disk only.
func (q *Queue) LacksMessage() bool {
	if it := q.Candidate(); it != nil {
		return it.Message == nil && it.State != Released
	}
	return q.Next == q.Front.End && q.Middle.Count > 0
}

// Identify gives the candidate its packet identifier. changed: it isn't the one
// that follows from the sequence number.
func (q *Queue) Identify(it *Slot) (changed bool) {
	if it.ID != 0 {
		return false
	}
	it.ID = q.PacketID(it.Seq)
	if !q.inUse(it.ID) {
		return false
	}
	// Of the identifiers not in use, the one that the sequence reaches last.
	for seq := q.Front.head + uint64(q.Span) - 1; ; seq-- {
		if id := q.PacketID(seq); !q.inUse(id) && (seq >= q.Next || q.Front.At(seq).State == Done) {
			it.ID = id
			return true
		}
	}
}

// inUse says whether an identifier is one of a stray, or was until a moment ago.
func (q *Queue) inUse(id uint16) bool {
	return len(q.Strays) > 0 && q.Strays[id] != nil ||
		slices.ContainsFunc(q.Cooling, func(c Cooling) bool { return c.ID == id })
}

// Sent notes that the candidate is under way.
func (q *Queue) Sent(it *Slot) {
	if len(q.Resend) > 0 && q.Resend[0] == it {
		it.out = true
		q.Resend = q.Resend[1:]
		return
	}
	q.Next++
	q.Live++
	if it.ID != q.PacketID(it.Seq) {
		q.stray(it)
		q.Trim()
	}
}

// Rewind begins a new connection: everything under way is to be sent again.
func (q *Queue) Rewind() {
	if q.Unused() {
		return
	}
	q.clearRing()
	q.Trim()
	q.Resend = q.Resend[:0]
	for _, it := range q.Strays {
		it.out, it.Counted = false, false
		it.Dup = it.Dup || it.State == Sent
		q.Resend = append(q.Resend, it)
	}
	slices.SortFunc(q.Resend, BySeq)
}

// Shrink lets go of what an empty queue keeps for its next message.
func (q *Queue) Shrink() {
	switch {
	case q.Unused() || !q.Empty() || len(q.Strays) > 0:
	case q.deep == shallow:
		q.deliveries = noDeliveries
	default: // the sequence goes on
		q.Front.Slots, q.Back.Slots, q.Strays, q.Resend = nil, nil, nil, nil
	}
}

func BySeq(a, b *Slot) int {
	if a.Seq < b.Seq {
		return -1
	}
	return 1
}

// Carry adds a delivery that was under way before a restart. It says false if its
// packet identifier is in use.
func (q *Queue) Carry(it Slot) bool {
	if it.ID == 0 {
		it.ID = q.PacketID(it.Seq)
	}
	if q.Strays[it.ID] != nil {
		return false
	}
	if q.Strays == nil {
		q.Strays = make(map[uint16]*Slot)
	}
	q.Strays[it.ID] = &it
	q.Resend = append(q.Resend, &it)
	return true
}

// Evictable gives the slot in memory that would be the next to be on disk only.
func (q *Queue) Evictable() *Slot {
	for ; q.Back.len() > 0; q.Back.head++ {
		if it := q.Back.At(q.Back.head); it.State != Done {
			return it
		}
	}
	for ; q.Front.End > q.Next; q.Front.End-- {
		if it := q.Front.At(q.Front.End - 1); it.State != Done {
			return it
		}
	}
	return nil
}

// Evict makes the slot that Evictable gave a message on disk only.
func (q *Queue) Evict(it *Slot) {
	m := &q.Middle
	if q.Back.len() > 0 {
		m.Add(it.Seq, int64(it.Size))
		m.Order = it.Order
		q.Back.head++
	} else {
		if m.Count == 0 {
			m.Order = it.Order
		}
		m.From = it.Seq
		m.Count++
		m.Bytes += int64(it.Size)
		q.Front.End--
	}
	m.To = q.Tail
	if q.Back.len() > 0 {
		m.To = q.Back.head
	}
	*it = Slot{State: Done}
}

// Load puts a message that was on disk only at the end of the front. It says false
// if what is there must be sent before.
func (q *Queue) Load(it Slot) bool {
	if !q.skipTo(it.Seq) {
		return false
	}
	q.Middle.Count--
	q.Middle.Bytes -= int64(it.Size)
	q.Middle.From = it.Seq + 1
	it.Order = q.Middle.Order
	q.Front.push(it)
	return true
}

// OldestWaiting gives the first message in memory that has not been sent and may
// not have been sent before, if none on disk only comes before it.
func (q *Queue) OldestWaiting() *Slot {
	q.Join()
	for seq := q.Next; seq < q.Front.End; seq++ {
		if it := q.Front.At(seq); it.State == Pending && !it.Dup && it.Batch != Unsaved {
			return it
		}
	}
	return nil
}

// EachUnderWay calls visit with every delivery that was sent and has its message
// in memory.
func (q *Queue) EachUnderWay(visit func(*Slot)) {
	for seq := q.Front.head; seq < q.Next; seq++ {
		if it := q.Front.At(seq); it.State == Sent && it.Message != nil {
			visit(it)
		}
	}
	for _, it := range q.Strays {
		if it.State == Sent && it.Message != nil {
			visit(it)
		}
	}
}

// Each calls visit with every slot in memory.
func (q *Queue) Each(visit func(*Slot)) {
	for _, it := range q.Strays {
		visit(it)
	}
	for _, r := range []*ring{&q.Front, &q.Back} {
		for seq := r.head; seq < r.End; seq++ {
			if it := r.At(seq); it.State != Done {
				visit(it)
			}
		}
	}
}
