package queue

import (
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// State is where one delivery stands.
type State byte

const (
	Pending  State = iota // not sent yet
	Sent                  // PUBLISH sent, PUBACK or PUBREC awaited
	Released              // PUBREC received, PUBREL sent, PUBCOMP awaited
	Done                  // acknowledged, dropped or moved elsewhere
)

// Slot is one QoS 1 or 2 message in a session's queue.
type Slot struct {
	Message *message.Message // nil: no longer needed, or on disk only
	Share   *Share           // the shared subscription by which it came; nil: it came by none
	SubIDs  []uint32         // subscription identifiers to send, of all that matched
	Seq     uint64           // in its queue
	Order   uint64           // Session.Orders when it was enqueued, by which the session merges its two queues
	Batch   journal.Seq      // the batch of its row, if it has one; Unsaved: the row is about to be journaled
	Number  uint64           // of the p row that holds the message; 0: the slot's own row holds it
	Size    uint32           // bytes of the message, in memory or not
	ID      uint16           // packet identifier; 0: none yet
	Held    bool             // counted in the session's and the broker's levels
	Saved   bool             // it has a row
	QoS     byte
	Retain  bool
	State   State
	Dup     bool // may have been sent on an earlier connection
	Counted bool // takes a place in this connection's Receive Maximum
	Notify  bool // a handler's notification: counted against its own bound
	out     bool // a stray that has been sent, or sent again, on this connection
}

// Unsaved marks a slot whose row is about to be journaled: it must not be sent.
const Unsaved = ^journal.Seq(0)

// Shared says whether the message came from the group of a shared subscription. The group
// may take it back, so it is never on disk only.
func (it *Slot) Shared() bool { return it.Share != nil }

// Share stands for a member of a shared subscription in the slots of its session, which have
// it for longer than the membership may last.
type Share struct {
	filter atomic.Pointer[string] // nil: the membership has ended
}

// NewShare is for a member with this filter: as subscribed, $share/… included.
func NewShare(filter string) *Share {
	s := new(Share)
	s.filter.Store(&filter)
	return s
}

// Filter is the filter, empty once the membership has ended.
func (s *Share) Filter() string {
	if filter := s.filter.Load(); filter != nil {
		return *filter
	}
	return ""
}

// End notes that the membership has ended, and lets go of the filter. Nil: there is none.
func (s *Share) End() {
	if s != nil {
		s.filter.Store(nil)
	}
}

// ring holds the slots of the sequence numbers from head to end.
type ring struct {
	Slots     []Slot // its length is a power of two
	head, End uint64
}

func (r *ring) At(seq uint64) *Slot { return &r.Slots[seq&uint64(len(r.Slots)-1)] }

func (r *ring) len() int { return int(r.End - r.head) }

func (r *ring) has(seq uint64) bool { return seq >= r.head && seq < r.End }

// push adds a slot for the sequence number end.
func (r *ring) push(it Slot) {
	if r.len() == len(r.Slots) {
		bigger := make([]Slot, max(4, 2*len(r.Slots)))
		for seq := r.head; seq < r.End; seq++ {
			bigger[seq&uint64(len(bigger)-1)] = *r.At(seq)
		}
		r.Slots = bigger
	}
	*r.At(r.End) = it
	r.End++
}

// Reset empties the ring. The next slot has the sequence number seq.
func (r *ring) Reset(seq uint64) {
	clear(r.Slots)
	r.head, r.End = seq, seq
	if len(r.Slots) > 64 {
		r.Slots = nil
	}
}

// AppendRow appends the slot's row. id is its packet identifier; 0: it follows from the
// sequence number. number is that of the p row that holds the message; 0: this row holds
// it.
func (it *Slot) AppendRow(dst []byte, id uint16, number uint64, wall int64) []byte {
	m := it.Message
	r := rows.Queued{
		QoS: it.QoS, Retain: it.Retain, MessageQoS: m.QoS, MessageRetain: m.Retain,
		ID: id, SubIDs: it.SubIDs, Number: number,
	}
	if it.Shared() {
		r.Shared = it.Share.Filter()
	}
	dst = r.Append(dst)
	if number != 0 {
		return dst
	}
	return m.AppendRow(dst, wall)
}

// ReleasedRow makes the row of a delivery whose PUBREC has come.
func (q *Queue) ReleasedRow(it *Slot) []byte {
	r := rows.Queued{QoS: it.QoS, Released: true}
	if it.ID != q.PacketID(it.Seq) {
		r.ID = it.ID
	}
	return r.Append(nil)
}

// SlotOf makes a slot of its row, without the message.
func SlotOf(r *rows.Queued) Slot {
	it := Slot{QoS: r.QoS, Retain: r.Retain, SubIDs: r.SubIDs, ID: r.ID, Number: r.Number}
	if r.Released {
		it.State = Released
	}
	return it
}
