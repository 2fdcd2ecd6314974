package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Held is what a transaction has put into queues, where it is unsaved: no client is sent it,
// nor what comes behind it in the same queue. Then either Commit says in which batch the
// rows are, or Withdraw takes everything out again. It belongs to one goroutine at a time.
//
// From Commit on the queues deal with the messages as with any other: message.AfterBatch
// keeps them from being sent before the batch is durable. What is to be sent at QoS 0 has no
// queue to wait in; Release sends it then.
type Held struct {
	env    *Env
	rows   []save // what has a row each
	memory []save // what sessions that end with their connection have
	direct []direct
}

// direct is a message at QoS 0 for a subscriber.
type direct struct {
	sub     *Subscription // nil: it is for group
	group   DirectGroup
	message *message.Message // with a reference
	subIDs  []uint32
	retain  bool
}

// directBytes is what a direct takes of memory besides its message.
const directBytes = 80

// DirectGroup is a shared subscription that is to get a message at QoS 0.
type DirectGroup interface {
	Deliver(t *Turn, o *message.Outgoing)
}

// NewHeld begins to hold messages.
func (e *Env) NewHeld() *Held { return &Held{env: e} }

// Len is how many deliveries are held.
func (h *Held) Len() int { return len(h.rows) + len(h.memory) + len(h.direct) }

// Direct is how many of them are at QoS 0.
func (h *Held) Direct() int { return len(h.direct) }

// Hold is Deliver for a transaction. It returns false if the session's queue has no room;
// a session that chose to lose its oldest messages then takes some more than its bound.
// s.Mu is held.
func (s *Session) Hold(t *Turn, h *Held, sub *Subscription, o *message.Outgoing, qos byte, retain bool) bool {
	if s.Peer == nil && (qos == 0 || !s.Persistent()) {
		return true
	}
	var subIDs []uint32
	if len(t.SubIDs) > 0 {
		subIDs = append(subIDs, t.SubIDs...)
	}
	if qos == 0 {
		h.holdDirect(t, o, direct{sub: sub, subIDs: subIDs, retain: retain})
		return true
	}
	q := &s.Routed
	if s.fullToOthers(t) && !(s.whenFull() == limits.DropOldest && s.belowTwice(q)) {
		return false
	}
	s.Orders++
	it := queue.Slot{Message: t.MessageOf(o), QoS: qos, Retain: retain, SubIDs: subIDs, Order: s.Orders, Batch: queue.Unsaved}
	if sub.Group != nil {
		it.Share = sub.Share
	}
	it.Size = uint32(it.Message.Size())
	q.Open()
	s.Charges(q).Count(q, &it)
	s.Charges(q).Hold(q, &it)
	it.Message.Keep()
	q.Push(it, s.SID == 0 || it.Shared() || s.windowHasRoom())
	it.Seq = q.Tail - 1
	to := &h.rows
	if s.SID == 0 {
		to = &h.memory
	}
	*to = append(*to, save{Session: s, group: sub.Group, SID: s.SID, Seq: it.Seq, Slot: it, held: true})
	return true
}

// OfferHeld is Offer for a transaction.
func (s *Session) OfferHeld(t *Turn, h *Held, sub *Subscription, o *message.Outgoing) (taken bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	qos := min(o.QoS, sub.QoS)
	return s.takesAs(t, sub, qos) && s.Hold(t, h, sub, o, qos, o.Retain && sub.RetainAsPublished)
}

// HoldBacklog notes that a message of a shared subscription's backlog, of which it takes
// over no reference, is held. sid is the backlog's number.
func (h *Held) HoldBacklog(g Group, sid, seq uint64, m *message.Message) {
	m.Keep()
	h.rows = append(h.rows, save{group: g, SID: sid, Seq: seq, Slot: queue.Slot{Message: m, QoS: m.QoS}, held: true})
}

// HoldForGroup notes that a shared subscription is to get a message at QoS 0.
func (h *Held) HoldForGroup(t *Turn, g DirectGroup, o *message.Outgoing) {
	h.holdDirect(t, o, direct{group: g})
}

func (h *Held) holdDirect(t *Turn, o *message.Outgoing, d direct) {
	d.message = t.MessageOf(o)
	h.env.Accounts.Charge(d.message, memory.Queues)
	h.env.Memory.Charge(memory.Queues, directBytes)
	h.direct = append(h.direct, d)
}

// Number gives numbers to messages that go to several queues. All is held. It says whether
// there are rows to append.
func (h *Held) Number() (rows bool) {
	h.env.number(h.rows)
	return len(h.rows) > 0
}

// Append appends the rows.
func (h *Held) Append(t *Turn, a journal.Append) { t.appendSaves(a, h.rows) }

// Withdraw takes everything out again, before the rows are appended. No lock of a session
// is held.
func (h *Held) Withdraw(t *Turn) {
	for _, saves := range [][]save{h.rows, h.memory} {
		for i := range saves {
			sv := &saves[i]
			if sv.number != 0 {
				h.env.Payloads.Drop(sv.number) // whose row was never written
			}
			if sv.Session == nil {
				sv.group.Withdraw(t, sv.Seq)
			} else {
				sv.Session.withdraw(t, sv)
			}
			sv.Slot.Message.Release()
		}
	}
	for i := range h.direct {
		h.direct[i].message.Release()
	}
	h.env.Memory.Credit(memory.Queues, directBytes*int64(len(h.direct)))
	h.rows, h.memory, h.direct = nil, nil, nil
}

// withdraw takes a held message out of the queue, if it has not gone with its session.
func (s *Session) withdraw(t *Turn, sv *save) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	q := &s.Routed
	it := q.SlotAt(sv.Seq)
	if it == nil || it.Batch != queue.Unsaved || s.SID != sv.SID {
		return
	}
	s.Remove(q, it)
	q.Trim()
	s.Pump(t)
	if s.Peer != nil {
		t.MarkDirty(s.Peer)
	}
}

// Commit notes that the rows are in the batch. later is another batch for which a client
// must wait that is told so, if a session has ended meanwhile; 0: none. AfterBatch of all
// messages is set. No lock of a session is held.
func (h *Held) Commit(t *Turn, batch journal.Seq) (later journal.Seq) {
	t.saved(h.rows, batch)
	t.saved(h.memory, batch)
	h.rows, h.memory = nil, nil
	if later = h.env.Commit(t, nil); later <= batch {
		return 0
	}
	return later
}

// Release sends what is at QoS 0, now that the batch is durable. No lock of a session is
// held.
func (h *Held) Release(t *Turn) {
	for i := range h.direct {
		d := &h.direct[i]
		o := d.message.Outgoing() // which takes over the reference
		if d.group != nil {
			d.group.Deliver(t, &o)
		} else {
			d.sub.Session.deliverHeld(t, d, &o)
		}
		o.Done()
	}
	h.env.Memory.Credit(memory.Queues, directBytes*int64(len(h.direct)))
	h.direct = nil
}

func (s *Session) deliverHeld(t *Turn, d *direct, o *message.Outgoing) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended || d.sub.Gone {
		return
	}
	t.SubIDs = append(t.SubIDs[:0], d.subIDs...)
	s.Deliver(t, d.sub, o, 0, d.retain)
}
