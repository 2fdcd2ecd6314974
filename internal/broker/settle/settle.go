// Package settle has deliveries that a transaction of their client acknowledges, in place of
// a PUBACK. Package routing calls it, with the rest of the transaction.
package settle

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Delivery is a QoS 1 delivery that a transaction of the session's client acknowledges: the
// deletion of its row goes in the batch of the transaction. The delivery ends with Commit,
// as by a PUBACK. Its place in the client's Receive Maximum is free later: when the batch is
// durable, and the client has been sent the reply to the transaction (ReturnPlace), since
// until then the client cannot know that it may be sent one message more.
type Delivery struct {
	session *session.Session
	peer    *peer.Peer
	seq     uint64
	id      uint16
	row     []byte // its key; nil: it has none
}

// Find finds the delivery that connection c has been sent with a packet identifier and
// has not acknowledged. ok is false if there is none at QoS 1. The caller is the connection's
// reader, so no PUBACK, and no other transaction, ends the delivery before Commit.
func Find(s *session.Session, c *peer.Peer, id uint16) (d Delivery, ok bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer != c || id == 0 || id >= queue.DirectBase {
		return d, false
	}
	it := s.Routed.Find(id)
	if it == nil || it.QoS != 1 || it.State != queue.Sent {
		return d, false
	}
	d = Delivery{session: s, peer: c, seq: it.Seq, id: id}
	if it.Saved && s.SID != 0 {
		d.row = rows.QueueKey(s.SID, it.Seq)
	}
	return d, true
}

// Append appends the deletion of the row.
func (d *Delivery) Append(a journal.Append) {
	if d.row != nil {
		a.Delete(d.row)
	}
}

// HasRow says whether there is a row to delete.
func (d *Delivery) HasRow() bool { return d.row != nil }

// Commit ends the delivery; the deletion of its row is in the batch. No lock of a session is
// held.
func (d *Delivery) Commit(t *session.Turn, batch journal.Seq) {
	s := d.session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	q := &s.Routed
	it := q.Strays[d.id]
	switch {
	case it == nil || it.Seq != d.seq:
		it = q.SlotAt(d.seq)
	case d.row != nil:
		q.Cooling = append(q.Cooling, queue.Cooling{ID: d.id, Batch: batch})
	}
	if s.Ended || it == nil || it.Seq != d.seq || it.State != queue.Sent {
		return // the session has ended, or the client come back, and acknowledged it
	}
	if it.Counted && s.Peer == d.peer {
		it.Counted = false // ReturnPlace uncounts it
	} else {
		d.peer = nil
	}
	s.Remove(q, it)
	q.Trim()
}

// ReturnPlace lets the client be sent one message more. It is to be called when a turn is
// flushed (Turn.WhenFlushed). No lock of a session is held.
func (d *Delivery) ReturnPlace(t *session.Turn) {
	s := d.session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if d.peer == nil || s.Peer != d.peer {
		return // another connection begins with none counted
	}
	s.Inflight--
	s.Pump(t)
	t.MarkDirty(s.Peer)
	t.Feed = append(t.Feed, s) // there is room for what waits elsewhere
}
