package broker

import "holdfast/internal/journal"

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
	msg     *Message      // nil once it isn't needed any more
	sub     *subscription // what it was matched by; nil for a handler's message
	subIDs  []uint32      // subscription identifiers to send, of all that matched
	order   uint64        // the session's count at enqueueing: merges the two queues
	batch   journal.Seq   // that its row is in, if it has one; unsaved: it will be in the next
	number  uint64        // of the p row that holds the message; 0: the slot's own row does
	size    uint32        // bytes of the message, in memory or not
	held    bool          // counted in the session's and the broker's levels
	saved   bool          // it has a row
	qos     byte
	retain  bool
	state   slotState
	dup     bool // sent on an earlier connection
	counted bool // takes a place in this connection's Receive Maximum
	notify  bool // a handler's notification: counted against its own bound
}

// windowInMemory is how many messages a queue on disk keeps in memory at its
// head, and as many at its tail.
const windowInMemory = 1000

// unsaved marks a slot whose row is about to be journaled: it must not be sent.
const unsaved = ^journal.Seq(0)

// outqueue is one of a session's two queues of deliveries, with the window of
// those under way at its head.
//
// Every message has a sequence number, and the packet identifier follows from
// it, so that giving one out is no search and, for a queue on disk, no write:
//
//	     head          next           tail
//	------|-------------|--------------|------->  sequence
//	 done   sent, not    waiting to be   room
//	        acknowledged sent
//
// Identifiers come back in order as acknowledgements do [MQTT-4.6.0-2], so the
// window is a ring. A slot that is done behind one that isn't waits for it; when
// the window would come around to an identifier still in use, sending waits.
type outqueue struct {
	base    uint16 // first packet identifier
	span    uint64 // how many there are
	head    uint64
	next    uint64
	tail    uint64
	again   uint64 // head <= again <= next: those before it were sent, or sent again, on this connection
	evict   uint64 // messages before it, from a window behind again on, are on disk only
	dropped uint64 // those from next up to it are done
	slots   []slot // ring, its length a power of two
}

// Packet identifiers of the two queues of a session: what was routed to it, and
// what a handler sends it directly.
const (
	routedBase, routedSpan = 1, 32767
	directBase, directSpan = 32768, 32768
)

func (q *outqueue) at(seq uint64) *slot { return &q.slots[seq&uint64(len(q.slots)-1)] }

func (q *outqueue) packetID(seq uint64) uint16 { return q.base + uint16(seq%q.span) }

func (q *outqueue) len() int { return int(q.tail - q.head) }

// push adds a slot at the tail.
func (q *outqueue) push(s slot) {
	if q.len() == len(q.slots) {
		q.grow()
	}
	*q.at(q.tail) = s
	q.tail++
}

func (q *outqueue) grow() {
	bigger := make([]slot, max(4, 2*len(q.slots)))
	for seq := q.head; seq < q.tail; seq++ {
		bigger[seq&uint64(len(bigger)-1)] = *q.at(seq)
	}
	q.slots = bigger
}

// find gives the slot under way with the packet identifier and its sequence
// number, or nil.
func (q *outqueue) find(id uint16) (it *slot, seq uint64) {
	ahead := int(id) - int(q.packetID(q.head)) // of the head, around the end
	if ahead < 0 {
		ahead += int(q.span)
	}
	if seq = q.head + uint64(ahead); seq >= q.again {
		return nil, 0
	}
	if it = q.at(seq); it.state == slotSent || it.state == slotReleased {
		return it, seq
	}
	return nil, 0
}

// trim moves head past what is done, and gives memory back when the queue is empty.
func (q *outqueue) trim() {
	for q.head < q.tail && q.at(q.head).state == slotDone {
		q.head++
	}
	q.next = max(q.next, q.head)
	q.again = max(q.again, q.head)
	if q.head == q.tail && len(q.slots) > 64 {
		q.slots = nil
	}
}

// candidate gives the next slot to send on this connection, skipping what is
// done, or nil when there is none or its identifier is still in use.
func (q *outqueue) candidate() *slot {
	for q.again < q.tail {
		if q.again == q.next && q.next-q.head >= q.span {
			return nil
		}
		s := q.at(q.again)
		if s.state != slotDone {
			return s
		}
		q.advance()
	}
	return nil
}

// advance says that the candidate is dealt with.
func (q *outqueue) advance() {
	q.again++
	q.next = max(q.next, q.again)
}

// rewind begins a new connection: everything under way is to be sent again.
func (q *outqueue) rewind() {
	q.again = q.head
	for seq := q.head; seq < q.next; seq++ {
		s := q.at(seq)
		s.counted = false
		s.dup = s.dup || s.state == slotSent
	}
}
