package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Saves says whether the session has a place on disk for what it gets by a
// subscription of its own.
func (s *Session) Saves(sub *Subscription) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.SID != 0 && sub.QoS > 0
}

// Deliver writes a QoS 0 message to the connection, if there is one with room,
// and enqueues others; t.SubIDs holds the identifiers to send. s.Mu is held.
func (s *Session) Deliver(t *Turn, sub *Subscription, o *message.Outgoing, qos byte, retain bool) {
	if qos == 0 {
		s.deliverAtMostOnce(t, o, retain)
		return
	}
	if s.Peer == nil && !s.Persistent() {
		return
	}
	it := queue.Slot{Message: t.MessageOf(o), QoS: qos, Retain: retain}
	if len(t.SubIDs) > 0 {
		it.SubIDs = append([]uint32(nil), t.SubIDs...)
	}
	if o.Direct {
		s.enqueue(t, &s.Direct, it, nil)
	} else {
		if sub.Group != nil {
			it.Share = sub.Share
		}
		s.enqueue(t, &s.Routed, it, sub.Group)
	}
	if s.Peer != nil {
		t.MarkDirty(s.Peer)
	}
}

func (s *Session) deliverAtMostOnce(t *Turn, o *message.Outgoing, retain bool) {
	c := s.Peer
	if c == nil {
		return
	}
	if c.Transport.Full() {
		s.Env.Counters.Dropped.Add(1)
		return
	}
	d := &t.delivery
	*d = mqtt.Delivery{Retain: retain, Topic: o.Topic, Props: o.Forwardable(&t.props), Payload: o.Payload, SubscriptionIDs: t.SubIDs}
	if o.ExpiresAt != 0 {
		left := message.SecondsLeft(o.ExpiresAt, s.Env.Now())
		if left == 0 {
			s.Env.Counters.Expired.Add(1)
			return
		}
		d.HasExpiry, d.Expiry = true, left
	}
	m := o.Msg
	if m == nil && len(o.Payload) >= peer.ShareFrom && (len(t.Matches) > 1 || len(o.Payload) > maxCopied) {
		m = t.MessageOf(o)
		defer m.Release()
	}
	if m != nil { // o.Payload may be a view of a buffer into which a reader will read
		d.Payload = m.Payload()
	}
	if c.Deliver(d, m) {
		t.out.Add(d.QoS, len(d.Payload))
		t.MarkDirty(c)
	}
}

// maxCopied is up to which size a payload at QoS 0 is copied to the output of its
// only subscriber, where a message to refer to would have to be made first.
const maxCopied = 1 << 20
