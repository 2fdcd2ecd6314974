// Package settle has deliveries that a transaction of their client acknowledges, in place of
// PUBACKs. Package routing calls it, with the rest of the transaction.
package settle

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Deliveries are QoS 1 deliveries that a transaction of the session's client acknowledges: the
// deletions of their rows go in the batch of the transaction. The deliveries end with Commit,
// as by PUBACKs. Their places in the client's Receive Maximum are free later: when the batch is
// durable, and the client has been sent the reply to the transaction (ReturnPlaces), since
// until then the client cannot know that it may be sent more messages. The zero value has none.
type Deliveries struct {
	session *session.Session
	peer    *peer.Peer
	each    []delivery
	rows    bool  // one of them has a row
	places  int32 // that ReturnPlaces returns
}

type delivery struct {
	seq uint64
	sid uint64 // of the session, in the key of the row; 0: there is no row
	id  uint16
}

// Find finds the deliveries that connection c has been sent with these packet identifiers and
// has not acknowledged. ok is false if there is none at QoS 1 for one of them, from 0. The caller is
// the connection's reader, so no PUBACK, and no other transaction, ends a delivery before Commit.
func Find(s *session.Session, c *peer.Peer, ids []uint16) (d Deliveries, missing int, ok bool) {
	d = Deliveries{session: s, peer: c, each: make([]delivery, 0, len(ids))}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for i, id := range ids {
		if s.Peer != c || id == 0 || id >= queue.DirectBase {
			return Deliveries{}, i, false
		}
		it := s.Routed.Find(id)
		if it == nil || it.QoS != 1 || it.State != queue.Sent {
			return Deliveries{}, i, false
		}
		one := delivery{seq: it.Seq, id: id}
		if it.Saved && s.SID != 0 {
			one.sid, d.rows = s.SID, true
		}
		d.each = append(d.each, one)
	}
	return d, 0, true
}

// Len is how many there are.
func (d *Deliveries) Len() int { return len(d.each) }

// HaveRows says whether there are rows to delete.
func (d *Deliveries) HaveRows() bool { return d.rows }

// Append appends the deletions of the rows.
func (d *Deliveries) Append(a journal.Append) {
	var key []byte
	for i := range d.each {
		if one := &d.each[i]; one.sid != 0 {
			key = rows.AppendQueueKey(key[:0], one.sid, one.seq)
			a.Delete(key)
		}
	}
}

// Commit ends the deliveries; the deletions of their rows are in the batch. No lock of a session is
// held.
func (d *Deliveries) Commit(batch journal.Seq) {
	if len(d.each) == 0 {
		return
	}
	s := d.session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	q := &s.Routed
	for i := range d.each {
		one := &d.each[i]
		it := q.Strays[one.id]
		switch {
		case it == nil || it.Seq != one.seq:
			it = q.SlotAt(one.seq)
		case one.sid != 0:
			q.Cooling = append(q.Cooling, queue.Cooling{ID: one.id, Batch: batch})
		}
		if s.Ended || it == nil || it.Seq != one.seq || it.State != queue.Sent {
			continue // the session has ended, or the client come back, and acknowledged it
		}
		if it.Counted && s.Peer == d.peer {
			it.Counted = false // ReturnPlaces uncounts it
			d.places++
		}
		s.Remove(q, it)
	}
	q.Trim()
}

// ReturnPlaces lets the client be sent as many messages more. It is to be called when a turn is
// flushed (Turn.WhenFlushed). No lock of a session is held.
func (d *Deliveries) ReturnPlaces(t *session.Turn) {
	if d.places == 0 {
		return
	}
	s := d.session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer != d.peer {
		return // another connection begins with none counted
	}
	s.Inflight -= d.places
	s.Pump(t)
	t.MarkDirty(s.Peer)
	t.Feed = append(t.Feed, s) // there is room for what waits elsewhere
}
