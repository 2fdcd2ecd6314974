package broker

import (
	"slices"

	"holdfast/internal/journal"
)

// slotState is where one delivery stands.
type slotState byte

const (
	slotPending  slotState = iota // not sent yet
	slotSent                      // PUBLISH sent, PUBACK or PUBREC awaited
	slotReleased                  // PUBREC received, PUBREL sent, PUBCOMP awaited
	slotDone                      // acknowledged, dropped or moved elsewhere
)

// slot is one QoS 1 or 2 message in a session's queue.
type slot struct {
	msg     *Message      // nil: not needed any more, or on disk only
	sub     *subscription // what it was matched by; nil for a handler's message
	subIDs  []uint32      // subscription identifiers to send, of all that matched
	seq     uint64        // in its queue
	order   uint64        // the session's count at enqueueing: merges the two queues
	batch   journal.Seq   // that its row is in, if it has one; unsaved: it will be in the next
	number  uint64        // of the p row that holds the message; 0: the slot's own row does
	size    uint32        // bytes of the message, in memory or not
	id      uint16        // packet identifier; 0: none yet
	held    bool          // counted in the session's and the broker's levels
	saved   bool          // it has a row
	qos     byte
	retain  bool
	state   slotState
	dup     bool // may have been sent on an earlier connection
	counted bool // takes a place in this connection's Receive Maximum
	notify  bool // a handler's notification: counted against its own bound
	out     bool // a stray that has been sent, or sent again, on this connection
}

// unsaved marks a slot whose row is about to be journaled: it must not be sent.
const unsaved = ^journal.Seq(0)

// shared says whether the message belongs to a shared subscription's group, which
// may take it back: it is never on disk only.
func (it *slot) shared() bool { return it.sub != nil && it.sub.group != nil }

// ring holds the slots of the sequence numbers from head to end.
type ring struct {
	slots     []slot // its length is a power of two
	head, end uint64
}

func (r *ring) at(seq uint64) *slot { return &r.slots[seq&uint64(len(r.slots)-1)] }

func (r *ring) len() int { return int(r.end - r.head) }

func (r *ring) has(seq uint64) bool { return seq >= r.head && seq < r.end }

// push adds a slot for the sequence number end.
func (r *ring) push(it slot) {
	if r.len() == len(r.slots) {
		bigger := make([]slot, max(4, 2*len(r.slots)))
		for seq := r.head; seq < r.end; seq++ {
			bigger[seq&uint64(len(bigger)-1)] = *r.at(seq)
		}
		r.slots = bigger
	}
	*r.at(r.end) = it
	r.end++
}

// reset empties the ring, to go on with seq.
func (r *ring) reset(seq uint64) {
	clear(r.slots)
	r.head, r.end = seq, seq
	if len(r.slots) > 64 {
		r.slots = nil
	}
}

// outqueue is one of a session's two queues of deliveries.
//
// Every message has a sequence number, under which its row is on disk, and the
// packet identifier follows from that: giving one out is no search and no write,
// and a message that is sent again, maybe after a restart, has the same.
//
//	strays      front                      middle          back
//	·   · ·   --|------------|---------|---------------|----------|-->  sequence
//	          head         next      end                         tail
//	 sent, not acknowledged    waiting,   waiting,        waiting,
//	 (those of the ring on     in memory  on disk only    in memory
//	 this connection)
//
// The front is a ring, since acknowledgements come in the order of deliveries
// [MQTT-4.6.0-2]. A delivery whose acknowledgement stays out while those behind it
// come in is moved out of the ring, to the strays, so that the ring holds no more
// than twice what is under way. So are all deliveries under way when their
// connection ends. There are never more strays than a client's Receive Maximum
// lets through.
//
// When the sequence comes around to the identifier of a stray, the message gets
// another one, which isn't in use; that one is written to its row, and on disk
// before the message is sent. It is a stray from the beginning.
//
// A long queue has in memory what is sent next, and what has just come; the
// middle costs nothing but a count. Only a session's queue on disk has a middle
// and a back.
type outqueue struct {
	base uint16 // first packet identifier
	span uint64 // how many there are

	front  ring
	next   uint64           // head <= next <= end: those before it were sent on this connection
	live   int              // slots before next that aren't done
	strays map[uint16]*slot // by packet identifier
	resend []*slot          // strays to be sent again on this connection, oldest first; may have become done
	tail   uint64           // sequence number of the next message to come
	*deep                   // shallow, if the queue is in memory only

	messages int   // held: those under way or waiting, in memory or not
	bytes    int64 // of them
	inMemory int64 // bytes of messages in memory, those under way included
	small    int64 // of those, the small ones, with their slots
	charged  int64 // of small
}

// deep is what only a queue on disk has: idle clients are many.
type deep struct {
	middle      onDisk
	back        ring
	unevictable int64 // of inMemory, what had to stay when that was last looked at

	// Packet identifiers of strays that are done, while a crash would bring them
	// back: the deletion of their rows is not on disk. Another message that had one
	// of them would be taken for the stray, or the stray for it.
	cooling []cooling
}

type cooling struct {
	id    uint16
	batch journal.Seq // in which the row was deleted
}

// shallow is the deep of queues that are in memory only. It is never written to.
var shallow = new(deep)

// onDisk stands for messages that are on disk only: some of the sequence numbers
// from from to to.
type onDisk struct {
	from, to uint64
	count    int
	bytes    int64
	order    uint64 // slot.order of the newest
	expires  int64  // when the first of them expires, or earlier, on the broker's clock in ms; 0: never
}

// expiresAt notes when a message expires that is added, 0: never.
func (m *onDisk) expiresAt(ms int64) {
	if ms != 0 && (m.expires == 0 || ms < m.expires) {
		m.expires = ms
	}
}

// add adds a message, with a higher sequence number than those there.
func (m *onDisk) add(seq uint64, size int64) {
	if m.count == 0 {
		m.from = seq
	}
	m.to = seq + 1
	m.count++
	m.bytes += size
}

// addBefore adds a message, with a lower sequence number than those there.
func (m *onDisk) addBefore(seq uint64, size int64) {
	if m.count == 0 {
		m.to = seq + 1
	}
	m.from = seq
	m.count++
	m.bytes += size
}

// Packet identifiers of the two queues of a session: what was routed to it, and
// what a handler sends it directly.
const (
	routedBase, routedSpan = 1, 32767
	directBase, directSpan = 32768, 32768
)

// start makes a queue on disk, still empty, begin with a sequence number.
func (q *outqueue) start(seq uint64) {
	q.deep = new(deep)
	q.front.reset(seq)
	q.next, q.tail = seq, seq
	q.middle.from, q.middle.to = seq, seq
	q.back.reset(seq)
}

func (q *outqueue) packetID(seq uint64) uint16 { return q.base + uint16(seq%q.span) }

// waiting is how many messages wait in memory.
func (q *outqueue) waiting() int { return int(q.front.end-q.next) + q.back.len() }

// empty says whether no message waits, in memory or on disk, to be sent or sent
// again.
func (q *outqueue) empty() bool {
	return q.next == q.tail && len(q.resend) == 0
}

// long says whether messages wait elsewhere than in the front.
func (q *outqueue) long() bool { return q.middle.count > 0 || q.back.len() > 0 }

// push adds a slot at the tail.
func (q *outqueue) push(it slot, inFront bool) *slot {
	it.seq = q.tail
	q.tail++
	r := &q.front
	if !inFront || q.long() || !q.skipTo(it.seq) {
		r = &q.back
		if r.len() == 0 {
			r.reset(it.seq)
			q.middle.to = it.seq
			if q.middle.count == 0 {
				q.middle.from = it.seq
			}
		}
	}
	r.push(it)
	return r.at(it.seq)
}

// slotAt gives the slot in memory that waits with a sequence number, or is under
// way in the ring; nil: there is none.
func (q *outqueue) slotAt(seq uint64) *slot {
	switch {
	case q.front.has(seq):
		return q.front.at(seq)
	case q.back.has(seq):
		return q.back.at(seq)
	}
	return nil
}

// maxGap is how many sequence numbers without a message the ring passes over by
// slots that are done.
const maxGap = 64

// skipTo makes seq the next number of the front. It says false if messages wait
// before it, and there are too many numbers in between.
func (q *outqueue) skipTo(seq uint64) bool {
	if seq-q.front.end > maxGap {
		if q.next != q.front.end {
			return false
		}
		q.clearRing()
		q.front.reset(seq)
		q.next = seq
	}
	for q.front.end < seq {
		q.front.push(slot{state: slotDone})
	}
	return true
}

// join moves the back to the front, when nothing is left between.
func (q *outqueue) join() {
	q.skipDone()
	if q.next != q.front.end || q.middle.count > 0 || q.back.len() == 0 {
		return
	}
	q.skipTo(q.back.head)
	for seq := q.back.head; seq < q.back.end; seq++ {
		q.front.push(*q.back.at(seq))
	}
	q.back.reset(q.tail)
	q.middle.from, q.middle.to = q.tail, q.tail
}

// find gives the delivery under way with the packet identifier, if it has been
// sent on this connection, or nil.
func (q *outqueue) find(id uint16) *slot {
	ahead := int(id) - int(q.packetID(q.front.head)) // of the head, around the end
	if ahead < 0 {
		ahead += int(q.span)
	}
	if seq := q.front.head + uint64(ahead); seq < q.next {
		if it := q.front.at(seq); it.state == slotSent || it.state == slotReleased {
			return it
		}
	}
	if it := q.strays[id]; it != nil && it.out {
		return it
	}
	return nil
}

// settle takes a slot, with whose message the caller is done, out of the queue. It
// moves no other; trim is to follow.
func (q *outqueue) settle(it *slot) {
	seq, id := it.seq, it.id
	stray := id != 0 && q.strays[id] == it
	*it = slot{state: slotDone}
	switch {
	case stray:
		delete(q.strays, id)
	case q.front.has(seq) && seq < q.next:
		q.live--
	}
}

// trim moves the head past what is done, and past deliveries that have been left
// behind by those sent after them.
func (q *outqueue) trim() {
	q.skipDone()
	for q.front.head < q.next {
		switch {
		case q.front.at(q.front.head).state == slotDone:
		case q.next-q.front.head > uint64(2*q.live+maxGap) || q.next-q.front.head >= q.span:
			q.stray(q.front.at(q.front.head))
		default:
			return
		}
		q.front.head++
	}
	if q.front.len() == 0 {
		q.front.reset(q.front.end)
	}
}

// skipDone moves next past what is done.
func (q *outqueue) skipDone() {
	for q.next < q.front.end && q.front.at(q.next).state == slotDone {
		q.next++
	}
}

// stray moves a delivery under way out of the ring.
func (q *outqueue) stray(it *slot) *slot {
	moved := new(slot)
	*moved = *it
	moved.out = true
	if q.strays == nil {
		q.strays = make(map[uint16]*slot)
	}
	q.strays[it.id] = moved
	*it = slot{state: slotDone}
	q.live--
	return moved
}

// clearRing moves every delivery under way out of the ring.
func (q *outqueue) clearRing() {
	for ; q.front.head < q.next; q.front.head++ {
		if it := q.front.at(q.front.head); it.state != slotDone {
			q.stray(it)
		}
	}
}

// candidate gives the next slot to send on this connection, or nil when there is
// none in memory, or no packet identifier is free.
func (q *outqueue) candidate() *slot {
	for len(q.resend) > 0 && q.resend[0].state == slotDone {
		q.resend = q.resend[1:]
	}
	q.join()
	q.trim()
	if len(q.resend) > 0 && q.resend[0].seq < q.firstWaiting() {
		return q.resend[0]
	}
	if q.next == q.front.end || q.live+len(q.strays)+len(q.cooling) >= int(q.span) {
		return nil
	}
	return q.front.at(q.next)
}

// firstWaiting gives the sequence number from which on messages wait that are not
// strays.
func (q *outqueue) firstWaiting() uint64 {
	switch {
	case q.next < q.front.end:
		return q.next
	case q.middle.count > 0:
		return q.middle.from
	}
	return q.tail
}

// lacksMessage says whether the next to be sent is on disk only.
func (q *outqueue) lacksMessage() bool {
	if it := q.candidate(); it != nil {
		return it.msg == nil && it.state != slotReleased
	}
	return q.next == q.front.end && q.middle.count > 0
}

// identify gives the candidate its packet identifier. changed: it isn't the one
// that follows from the sequence number.
func (q *outqueue) identify(it *slot) (changed bool) {
	if it.id != 0 {
		return false
	}
	it.id = q.packetID(it.seq)
	if !q.inUse(it.id) {
		return false
	}
	// The one that is needed last, of those not in use.
	for seq := q.front.head + q.span - 1; ; seq-- {
		if id := q.packetID(seq); !q.inUse(id) && (seq >= q.next || q.front.at(seq).state == slotDone) {
			it.id = id
			return true
		}
	}
}

// inUse says whether an identifier is one of a stray, or was until a moment ago.
func (q *outqueue) inUse(id uint16) bool {
	return len(q.strays) > 0 && q.strays[id] != nil ||
		slices.ContainsFunc(q.cooling, func(c cooling) bool { return c.id == id })
}

// sent notes that the candidate is under way.
func (q *outqueue) sent(it *slot) {
	if len(q.resend) > 0 && q.resend[0] == it {
		it.out = true
		q.resend = q.resend[1:]
		return
	}
	q.next++
	q.live++
	if it.id != q.packetID(it.seq) {
		q.stray(it)
		q.trim()
	}
}

// rewind begins a new connection: everything under way is to be sent again.
func (q *outqueue) rewind() {
	q.clearRing()
	q.trim()
	q.resend = q.resend[:0]
	for _, it := range q.strays {
		it.out, it.counted = false, false
		it.dup = it.dup || it.state == slotSent
		q.resend = append(q.resend, it)
	}
	slices.SortFunc(q.resend, bySeq)
}

func bySeq(a, b *slot) int {
	if a.seq < b.seq {
		return -1
	}
	return 1
}

// carry adds a delivery that was under way before a restart. It says false if its
// packet identifier is in use.
func (q *outqueue) carry(it slot) bool {
	if it.id == 0 {
		it.id = q.packetID(it.seq)
	}
	if q.strays[it.id] != nil {
		return false
	}
	if q.strays == nil {
		q.strays = make(map[uint16]*slot)
	}
	q.strays[it.id] = &it
	q.resend = append(q.resend, &it)
	return true
}

// evictable gives the slot in memory that would be the next to be on disk only.
func (q *outqueue) evictable() *slot {
	for ; q.back.len() > 0; q.back.head++ {
		if it := q.back.at(q.back.head); it.state != slotDone {
			return it
		}
	}
	for ; q.front.end > q.next; q.front.end-- {
		if it := q.front.at(q.front.end - 1); it.state != slotDone {
			return it
		}
	}
	return nil
}

// evict makes what evictable gave a message on disk only.
func (q *outqueue) evict(it *slot) {
	m := &q.middle
	if q.back.len() > 0 {
		m.add(it.seq, int64(it.size))
		m.order = it.order
		q.back.head++
	} else {
		if m.count == 0 {
			m.order = it.order
		}
		m.from = it.seq
		m.count++
		m.bytes += int64(it.size)
		q.front.end--
	}
	m.to = q.tail
	if q.back.len() > 0 {
		m.to = q.back.head
	}
	*it = slot{state: slotDone}
}

// load puts a message that was on disk only at the end of the front. It says false
// if what is there must be sent before.
func (q *outqueue) load(it slot) bool {
	if !q.skipTo(it.seq) {
		return false
	}
	q.middle.count--
	q.middle.bytes -= int64(it.size)
	q.middle.from = it.seq + 1
	it.order = q.middle.order
	q.front.push(it)
	return true
}

// oldestWaiting gives the first message in memory that has not been sent and may
// not have been sent before, if none on disk only comes before it.
func (q *outqueue) oldestWaiting() *slot {
	q.join()
	for seq := q.next; seq < q.front.end; seq++ {
		if it := q.front.at(seq); it.state == slotPending && !it.dup && it.batch != unsaved {
			return it
		}
	}
	return nil
}

// eachUnderWay calls visit with every delivery that was sent and has its message
// in memory.
func (q *outqueue) eachUnderWay(visit func(*slot)) {
	for seq := q.front.head; seq < q.next; seq++ {
		if it := q.front.at(seq); it.state == slotSent && it.msg != nil {
			visit(it)
		}
	}
	for _, it := range q.strays {
		if it.state == slotSent && it.msg != nil {
			visit(it)
		}
	}
}

// each calls visit with every slot in memory.
func (q *outqueue) each(visit func(*slot)) {
	for _, it := range q.strays {
		visit(it)
	}
	for _, r := range []*ring{&q.front, &q.back} {
		for seq := r.head; seq < r.end; seq++ {
			if it := r.at(seq); it.state != slotDone {
				visit(it)
			}
		}
	}
}
