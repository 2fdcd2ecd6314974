package queue

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Queue is one of a session's two queues of deliveries.
//
// Every message has a sequence number, which is part of the key of its row. Its packet
// identifier is computed from the sequence number. So the broker neither searches for a
// free identifier nor writes it to disk, and a message that is sent again has the same
// identifier, also after a restart.
//
//	strays              front                         middle         back
//	·   · ·           --|----------------|-----------|--------------|-----------|-->  sequence
//	                    head             next        end                        tail
//	sent on this or      sent on this     waiting,    waiting,       waiting,
//	an earlier           connection, not  in memory   on disk only   in memory
//	connection, not      acknowledged
//	acknowledged
//
// The front is a ring, since acknowledgements come in the order of deliveries
// [MQTT-4.6.0-2]. A delivery that stays unacknowledged while later ones are acknowledged
// is moved from the ring to the strays (Trim), so that the ring holds little more than
// twice the inflight deliveries. When a connection ends, all inflight deliveries become
// strays (Rewind). The client's Receive Maximum bounds the number of strays.
//
// If a stray has the computed identifier, or the identifier is in Cooling, because its last
// use may still be on disk, the message gets a free one. In a queue on disk, that identifier
// is written to the message's row, and the message is sent when the row is on disk. When the
// message is sent, it becomes a stray.
//
// Of a long queue, the messages that are sent next and the newest ones are in memory; the
// middle takes no memory besides a count. Only a session's queue on disk has a middle
// and a back.
type Queue struct {
	base, Span  uint16 // first packet identifier, and how many there are
	*deliveries        // noDeliveries until the first message comes
}

// deliveries is the part of a queue that exists from its first message on. Most clients
// are idle and never get a message.
type deliveries struct {
	Front     ring
	Next      uint64           // head <= next <= end: those before it were sent on this connection
	Live      int              // slots before next that aren't done
	Strays    map[uint16]*Slot // by packet identifier
	Resend    []*Slot          // strays to be sent again on this connection, oldest first; some may be done by now
	Tail      uint64           // sequence number of the next message to come
	*diskPart                  // noDiskPart, if the queue is in memory only

	Messages int   // inflight or waiting, in memory or not
	Bytes    int64 // of Messages
	InMemory int64 // bytes of messages in memory, inflight ones included
	small    int64 // the part of InMemory that is small messages, and their slots
	charged  int64 // the part of small that is charged to the pool
}

// noDeliveries is the deliveries of queues that have had no message. It is never
// written to.
var noDeliveries = &deliveries{diskPart: noDiskPart}

// diskPart is the part of a queue that only a queue on disk has.
type diskPart struct {
	Middle      OnDisk
	Back        ring
	Unevictable int64 // how much of InMemory the last eviction could not release

	SentTo    uint64 // messages before it may have been sent by an earlier process
	Marked    uint64 // the mark on disk: a message is sent only if its sequence number is below it
	Mark      uint64 // the mark to be on disk with MarkBatch
	MarkBatch journal.Seq

	// Packet identifiers of strays that are done, but whose rows would still be there after
	// a crash, because the deletion is not on disk yet. If another message got such an
	// identifier, the client could take one of the two for the other.
	Cooling []Cooling
}

// Cooling is a packet identifier that must not be used again until a batch is on disk.
type Cooling struct {
	ID    uint16
	Batch journal.Seq // in which the row was deleted
}

// noDiskPart is the diskPart of queues that are in memory only. It is never written to.
var noDiskPart = new(diskPart)

// OnDisk stands for messages that are on disk only. Their sequence numbers are in
// From <= seq < To; not each number in that range has a message.
type OnDisk struct {
	From, To uint64
	Count    int
	Bytes    int64
	Order    uint64 // Slot.Order of the newest
	Expires  int64  // no message expires before this, on the broker's clock in ms; 0: none ever expires
}

// ExpiresAt notes when a message that is added expires; 0: never.
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

// Packet identifiers of the two queues of a session: Routed, for messages that were
// published to topics, and Direct, for messages that a handler sends to this client.
const (
	RoutedBase, RoutedSpan = 1, 32767
	DirectBase, DirectSpan = 32768, 32768
)

// New makes an empty queue in memory, with span packet identifiers from base on.
func New(base, span uint16) Queue {
	return Queue{base: base, Span: span, deliveries: noDeliveries}
}

// Unused says whether the queue has had no message since New or Clear. The caller then calls
// Open before it writes to a field.
func (q *Queue) Unused() bool { return q.deliveries == noDeliveries }

// Clear empties the queue. The caller has released the messages.
func (q *Queue) Clear() { q.deliveries = noDeliveries }

// Open allocates the queue's deliveries, if it has none yet.
func (q *Queue) Open() {
	if q.Unused() {
		q.deliveries = &deliveries{diskPart: noDiskPart}
	}
}

// Start makes a queue on disk, still empty, begin with a sequence number.
func (q *Queue) Start(seq uint64) {
	q.Open()
	q.diskPart = new(diskPart)
	q.Front.Reset(seq)
	q.Next, q.Tail = seq, seq
	q.Middle.From, q.Middle.To = seq, seq
	q.Back.Reset(seq)
}

// PacketID is the packet identifier that follows from a sequence number.
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

// Push adds a slot at the tail: to the front if inFront is true and the front can take
// it, otherwise to the back.
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

// SlotAt returns the slot with a sequence number that is in the front or in the back; nil:
// there is none.
func (q *Queue) SlotAt(seq uint64) *Slot {
	switch {
	case q.Front.has(seq):
		return q.Front.At(seq)
	case q.Back.has(seq):
		return q.Back.At(seq)
	}
	return nil
}

// MaxGap bounds the consecutive sequence numbers without a message for which the ring has
// slots in the state Done.
const MaxGap = 64

// skipTo makes seq the next sequence number of the front. It returns false if that is not
// possible: the gap is larger than MaxGap, and messages wait in the front.
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

// Join moves the back to the front, if no message of the front or the middle is still to be
// sent.
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

// Find returns the inflight delivery with the packet identifier, if it has been sent on
// this connection; otherwise nil.
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

// TakeOut removes a slot from the queue. The caller has released its message. TakeOut
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

// Trim moves the head past slots that are done. If the ring has become long because a
// delivery stays unacknowledged, Trim makes that delivery a stray.
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

// skipDone moves next past slots that are done.
func (q *Queue) skipDone() {
	for q.Next < q.Front.End && q.Front.At(q.Next).State == Done {
		q.Next++
	}
}

// stray moves an inflight delivery from the ring to the strays.
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

// clearRing moves every inflight delivery from the ring to the strays.
func (q *Queue) clearRing() {
	for ; q.Front.head < q.Next; q.Front.head++ {
		if it := q.Front.At(q.Front.head); it.State != Done {
			q.stray(it)
		}
	}
}

// Candidate returns the next slot to send on this connection; nil if none is in memory, or
// if no packet identifier is free.
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

// firstWaiting is the lowest sequence number of the messages that wait and are not strays.
func (q *Queue) firstWaiting() uint64 {
	switch {
	case q.Next < q.Front.End:
		return q.Next
	case q.Middle.Count > 0:
		return q.Middle.From
	}
	return q.Tail
}

// LacksMessage says whether the next message to send is on disk only.
func (q *Queue) LacksMessage() bool {
	if it := q.Candidate(); it != nil {
		return it.Message == nil && it.State != Released
	}
	return q.Next == q.Front.End && q.Middle.Count > 0
}

// Identify gives the candidate its packet identifier, if it has none. changed: it has got
// one that does not follow from its sequence number.
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

// inUse says whether an identifier is that of a stray, or is in Cooling.
func (q *Queue) inUse(id uint16) bool {
	return len(q.Strays) > 0 && q.Strays[id] != nil ||
		slices.ContainsFunc(q.Cooling, func(c Cooling) bool { return c.ID == id })
}

// Sent notes that the candidate has been sent.
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

// Rewind prepares the queue for a new connection: all inflight deliveries will be sent
// again.
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

// Shrink releases the memory that an empty queue keeps for its next message.
func (q *Queue) Shrink() {
	switch {
	case q.Unused() || !q.Empty() || len(q.Strays) > 0:
	case q.diskPart == noDiskPart:
		q.deliveries = noDeliveries
	default: // keep deliveries: its sequence numbers continue
		q.Front.Slots, q.Back.Slots, q.Strays, q.Resend = nil, nil, nil, nil
	}
}

// BySeq compares two slots by their sequence numbers, which differ.
func BySeq(a, b *Slot) int {
	if a.Seq < b.Seq {
		return -1
	}
	return 1
}

// Carry adds a delivery that was inflight before a restart, as a stray. It returns false if
// the packet identifier is in use.
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

// Evictable returns the slot whose message is the next to be evicted from memory; nil: no
// message waits in memory.
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

// Evict moves the message of the slot that Evictable returned to the middle. The caller
// has released the message.
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

// Load moves a message that was read from disk from the middle to the end of the front. It
// returns false if messages in the front must be sent first.
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

// OldestWaiting returns the first message in the front that certainly has not been sent,
// neither on this connection nor on an earlier one; nil: there is none.
func (q *Queue) OldestWaiting() *Slot {
	q.Join()
	for seq := q.Next; seq < q.Front.End; seq++ {
		if it := q.Front.At(seq); it.State == Pending && !it.Dup && it.Batch != Unsaved {
			return it
		}
	}
	return nil
}

// EachInflight calls visit with every delivery that was sent and whose message is in
// memory.
func (q *Queue) EachInflight(visit func(*Slot)) {
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
