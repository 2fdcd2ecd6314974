package broker

import (
	"bytes"
	"slices"

	"holdfast/internal/mqtt"
)

// route delivers o to everybody whose subscriptions match, and says how many
// there were.
func (b *Broker) route(t *Turn, o *outgoing) (matched int) {
	matches := b.filters.Match(o.topic, t.matches[:0])
	t.matches = matches
	t.work += len(matches) / matchesPerUnit
	if len(matches) == 0 {
		return 0
	}
	if sameFilter(matches) { // nobody can be in it twice
		t.chain = t.chain[:0]
		for i := range matches {
			b.deliverTo(t, matches, i, o)
		}
		return len(matches)
	}
	// A client whose subscriptions overlap gets one copy, at the highest QoS and
	// with the identifiers of all of them [MQTT-3.3.4-2, 3.3.4-3].
	chain := t.chainMatches(matches)
	for i := range matches {
		if !chain[i].follows {
			b.deliverTo(t, matches, i, o)
		}
	}
	return len(matches)
}

// link leads from one match to the next of the same session.
type link struct {
	next    int  // 0: there is none
	follows bool // another match leads here
}

// chainMatches links the matches of each session.
func (t *Turn) chainMatches(matches []*subscription) []link {
	if t.seen == nil {
		t.seen = make(map[*Session]int)
	}
	clear(t.seen)
	t.chain = slices.Grow(t.chain[:0], len(matches))[:len(matches)]
	clear(t.chain)
	for i, sub := range matches {
		if sub.session == nil {
			continue
		}
		if last, again := t.seen[sub.session]; again {
			t.chain[last].next, t.chain[i].follows = i, true
		}
		t.seen[sub.session] = i
	}
	return t.chain
}

func sameFilter(matches []*subscription) bool {
	for _, sub := range matches[1:] {
		if sub.filter != matches[0].filter {
			return false
		}
	}
	return true
}

// needsDisk says whether o, a client's publish, would be journaled: for the sake
// of QoS 2, as a retained message, or in the queue of a session on disk.
func (b *Broker) needsDisk(t *Turn, o *outgoing, with *alongside) bool {
	if with.received != 0 || o.retain && len(o.payload) > 0 {
		return true
	}
	if o.qos == 0 {
		return false
	}
	t.matches = b.filters.Match(o.topic, t.matches[:0])
	for _, sub := range t.matches {
		if sub.session == nil && sub.group.anyDurable() || sub.session != nil && sub.session.saves(sub) {
			return true
		}
	}
	return false
}

// saves says whether the session has a place on disk for what it gets by a
// subscription of its own.
func (s *Session) saves(sub *subscription) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sid != 0 && sub.qos > 0
}

// deliverTo delivers to the session, or group, of match i, on behalf of all
// subscriptions that t.chain leads to from there.
func (b *Broker) deliverTo(t *Turn, matches []*subscription, i int, o *outgoing) {
	first := matches[i]
	if first.session == nil {
		first.group.deliver(t, o)
		return
	}
	s := first.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	qos, retain, any := byte(0), false, false
	t.subIDs = t.subIDs[:0]
	for more := true; more; {
		if sub := matches[i]; !sub.gone && !(sub.noLocal && o.publisher == s.id) {
			any = true
			if r := sub.replay; r != nil && o.stamp != 0 && o.stamp <= r.since {
				r.routed = append(r.routed, o.stamp)
			}
			qos = max(qos, sub.qos)
			retain = retain || sub.retainAsPublished
			if sub.id != 0 {
				t.subIDs = append(t.subIDs, sub.id)
			}
		}
		if more = i < len(t.chain) && t.chain[i].next != 0; more {
			i = t.chain[i].next
		}
	}
	if any {
		s.deliver(t, first, o, min(o.qos, qos), o.retain && retain)
	}
}

// deliver writes a QoS 0 message to the connection, if there is one with room,
// and enqueues others; t.subIDs holds the identifiers to send. s.mu is held.
func (s *Session) deliver(t *Turn, sub *subscription, o *outgoing, qos byte, retain bool) {
	if qos == 0 {
		s.deliverAtMostOnce(t, o, retain)
		return
	}
	if s.conn == nil && !s.durable() {
		return
	}
	it := slot{msg: o.message(t), qos: qos, retain: retain}
	if len(t.subIDs) > 0 {
		it.subIDs = append([]uint32(nil), t.subIDs...)
	}
	if o.direct {
		s.enqueue(t, &s.direct, it)
	} else {
		it.sub = sub
		s.enqueue(t, &s.routed, it)
	}
	if s.conn != nil {
		t.touch(s.conn)
	}
}

func (s *Session) deliverAtMostOnce(t *Turn, o *outgoing, retain bool) {
	c := s.conn
	if c == nil {
		return
	}
	if c.tr.Full() {
		s.b.stats.Dropped.Add(1)
		return
	}
	d := &t.delivery
	*d = mqtt.Delivery{Retain: retain, Topic: o.topic, Props: o.forwardable(t), Payload: o.payload, SubscriptionIDs: t.subIDs}
	if o.expiresAt != 0 {
		left := secondsLeft(o.expiresAt, s.b.Now())
		if left == 0 {
			s.b.stats.Expired.Add(1)
			return
		}
		d.HasExpiry, d.Expiry = true, left
	}
	m := o.msg
	if m == nil && len(o.payload) >= shareFrom && (len(t.matches) > 1 || len(o.payload) > maxCopied) {
		m = o.message(t)
		defer m.release()
	}
	if m != nil { // o.payload may be a view of what a reader will read into
		d.Payload = m.payload()
	}
	if c.deliver(t, d, m) {
		t.touch(c)
	}
}

// maxCopied is up to which size a payload at QoS 0 is copied to the output of its
// only subscriber, where a message to refer to would have to be made first.
const maxCopied = 1 << 20

// routeResponse publishes a handler's response to a request of c. If the
// requester may publish to its topic, it is routed like a publish of theirs that
// is local to nobody; otherwise only the requester's own subscriptions see it.
// It takes over the reference.
func (b *Broker) routeResponse(t *Turn, c *Conn, m *Message) {
	allowed := b.mayPublish(c, m.topic())
	sub := c.responses.find(t, m.topic())
	if allowed && sub != nil && sub.session.respond(t, sub, m) {
		return
	}
	o := m.routed()
	o.direct = true
	defer o.done()
	if allowed && !b.protected(o.topic) {
		if sub != nil {
			b.deliverOne(t, sub, &o)
		} else {
			b.route(t, &o)
		}
		return
	}
	s := c.session
	matches := b.filters.Match(o.topic, t.matches[:0])
	t.matches = matches
	matches = slices.DeleteFunc(matches, func(sub *subscription) bool { return sub.session != s })
	if len(matches) > 0 {
		t.chainMatches(matches)
		b.deliverTo(t, matches, 0, &o)
	}
}

// responseRoute remembers where the responses to a connection's requests go, as
// nearly all of them go to the same topic, which one session subscribes to. It
// belongs to whoever writes the connection's acknowledgements at the moment.
type responseRoute struct {
	topic   []byte
	sub     *subscription // the only one that matches topic; nil: there are none, or several, or the topic is protected
	filters uint64        // generation of the index in which that was found
}

// maxRouteTopic is how long a topic may be to be remembered.
const maxRouteTopic = 512

// find gives the one subscription that matches the topic, or nil.
func (r *responseRoute) find(t *Turn, topic []byte) *subscription {
	filters := t.b.filters.Generation()
	if r.filters == filters && bytes.Equal(r.topic, topic) {
		return r.sub
	}
	if len(topic) > maxRouteTopic {
		return nil
	}
	r.filters, r.topic, r.sub = filters, append(r.topic[:0], topic...), nil
	t.matches = t.b.filters.Match(topic, t.matches[:0])
	if len(t.matches) == 1 && t.matches[0].session != nil && !t.b.protected(topic) {
		r.sub = t.matches[0]
	}
	return r.sub
}

// deliverOne delivers to the only subscription that matches.
func (b *Broker) deliverOne(t *Turn, sub *subscription, o *outgoing) {
	t.chain, t.matches = t.chain[:0], append(t.matches[:0], sub)
	b.deliverTo(t, t.matches, 0, o)
}
