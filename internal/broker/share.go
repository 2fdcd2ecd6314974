package broker

import (
	"sync"
	"sync/atomic"
)

// shareGroup is a shared subscription, $share/{name}/{filter}: each message goes
// to one member [MQTT-4.8.2-4].
//
// A message goes to the next member in turn that is connected. When all are away
// it waits in the group's own backlog, once, for the first that comes back. What
// a member had not been sent when it left goes back to the group, and so does
// what it had been sent at QoS 1 and not acknowledged, if somebody else can take it.
//
// The group's lock is innermost: no session's lock is taken under it.
type shareGroup struct {
	b      *Broker
	key    string // {name}/{filter}
	filter string
	proxy  *subscription // stands for the group in the index of filters

	members atomic.Pointer[[]*subscription] // replaced under mu
	turn    atomic.Uint64

	mu          sync.Mutex
	backlog     []*Message // each with a reference
	bytes       int64
	dispatching bool
}

// joinGroup makes sub a member. The session's lock is held.
func (b *Broker) joinGroup(sub *subscription, name, filter string) {
	key := name + "/" + filter
	b.groupsMu.Lock()
	defer b.groupsMu.Unlock()
	g := b.groups[key]
	if g == nil {
		g = &shareGroup{b: b, key: key, filter: filter}
		g.proxy = &subscription{group: g, filter: filter}
		g.members.Store(&[]*subscription{})
		b.groups[key] = g
		b.filters.Insert(filter, g.proxy)
	}
	sub.group = g
	old := *g.members.Load()
	members := append(append(make([]*subscription, 0, len(old)+1), old...), sub)
	g.members.Store(&members)
}

// leaveGroup ends a membership; the last one ends the group.
func (b *Broker) leaveGroup(t *Turn, sub *subscription) {
	g := sub.group
	b.groupsMu.Lock()
	old := *g.members.Load()
	members := make([]*subscription, 0, len(old))
	for _, m := range old {
		if m != sub {
			members = append(members, m)
		}
	}
	g.members.Store(&members)
	if len(members) == 0 {
		delete(b.groups, g.key)
		b.filters.Remove(g.filter, g.proxy)
	}
	b.groupsMu.Unlock()
	if len(members) == 0 {
		g.discard()
		return
	}
	g.takeBack(t, sub)
}

// deliver gives the message to one member, or keeps it until one is there.
func (g *shareGroup) deliver(t *Turn, o *outgoing) {
	g.mu.Lock()
	waiting := len(g.backlog) > 0 || g.dispatching
	g.mu.Unlock()
	if !waiting && g.offer(t, o) {
		return
	}
	if o.qos == 0 || !g.anyDurable() {
		g.b.stats.Dropped.Add(1)
		return
	}
	if g.add(t, o.message(t)) {
		g.dispatch(t)
	}
}

// offer tries the members in turn until one that is connected takes it.
func (g *shareGroup) offer(t *Turn, o *outgoing) bool {
	members := *g.members.Load()
	if len(members) == 0 {
		return false
	}
	first := g.turn.Add(1)
	for i := range members {
		m := members[(first+uint64(i))%uint64(len(members))]
		if m.session.offerShared(t, m, o) {
			return true
		}
	}
	return false
}

// offerShared delivers to a member if it is connected.
func (s *Session) offerShared(t *Turn, sub *subscription, o *outgoing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || sub.gone {
		return false
	}
	t.subIDs = t.subIDs[:0]
	if sub.id != 0 {
		t.subIDs = append(t.subIDs, sub.id)
	}
	s.deliver(t, sub, o, min(o.qos, sub.qos), o.retain && sub.retainAsPublished)
	return true
}

func (g *shareGroup) anyDurable() bool {
	for _, m := range *g.members.Load() {
		m.session.mu.Lock()
		durable := m.session.durable() && !m.session.ended
		m.session.mu.Unlock()
		if durable {
			return true
		}
	}
	return false
}

func (g *shareGroup) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.backlog) >= g.b.limits.MaxQueued || g.bytes >= g.b.limits.MaxQueuedBytes
}

// add puts a message, of which it takes over the reference, behind the backlog.
func (g *shareGroup) add(t *Turn, m *Message) bool {
	if g.full() {
		if g.b.limits.QueueFull != DropOldest {
			m.release()
			for _, member := range *g.members.Load() {
				t.ending = append(t.ending, member.session)
			}
			return false
		}
		if oldest := g.pop(); oldest != nil {
			oldest.release()
			g.b.stats.Dropped.Add(1)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.backlog = append(g.backlog, m)
	g.bytes += m.size()
	return true
}

func (g *shareGroup) pop() *Message {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.backlog) == 0 {
		return nil
	}
	m := g.backlog[0]
	g.backlog[0] = nil
	g.backlog = g.backlog[1:]
	g.bytes -= m.size()
	return m
}

// requeue puts messages before the backlog, in order.
func (g *shareGroup) requeue(messages []*Message) {
	if len(messages) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range messages {
		g.bytes += m.size()
	}
	g.backlog = append(append(make([]*Message, 0, len(messages)+len(g.backlog)), messages...), g.backlog...)
}

// dispatch empties the backlog as long as somebody takes it. One goroutine does
// it at a time, so that the order holds; what is added meanwhile it finds.
func (g *shareGroup) dispatch(t *Turn) {
	for {
		g.mu.Lock()
		if g.dispatching || len(g.backlog) == 0 {
			g.mu.Unlock()
			return
		}
		g.dispatching = true
		g.mu.Unlock()

		taken := g.dispatchOne(t)

		g.mu.Lock()
		g.dispatching = false
		g.mu.Unlock()
		if !taken {
			return
		}
	}
}

func (g *shareGroup) dispatchOne(t *Turn) bool {
	m := g.pop()
	if m == nil {
		return false
	}
	if m.expiresAt != 0 && secondsLeft(m.expiresAt, g.b.Now()) == 0 {
		m.release()
		return true
	}
	o := m.routed()
	defer o.done()
	if g.offer(t, &o) {
		return true
	}
	m.keep()
	g.requeue([]*Message{m})
	return false
}

// takeBack collects what a member that left, or lost its connection, was not
// sent, and gives it to the others.
func (g *shareGroup) takeBack(t *Turn, sub *subscription) {
	s := sub.session
	others := g.anyConnectedBut(s)
	var messages []*Message
	s.mu.Lock()
	for seq := s.routed.head; seq < s.routed.tail; seq++ {
		it := s.routed.at(seq)
		if it.sub != sub || it.msg == nil {
			continue
		}
		unsent := it.state == slotPending
		unacknowledged := it.state == slotSent && it.qos == 1 && s.conn == nil && others
		if unsent || unacknowledged {
			it.msg.keep()
			messages = append(messages, it.msg)
			s.drop(it)
		}
	}
	s.routed.trim()
	s.mu.Unlock()
	g.requeue(messages)
	g.dispatch(t)
}

func (g *shareGroup) anyConnectedBut(s *Session) bool {
	for _, m := range *g.members.Load() {
		if m.session == s {
			continue
		}
		m.session.mu.Lock()
		connected := m.session.conn != nil
		m.session.mu.Unlock()
		if connected {
			return true
		}
	}
	return false
}

// discard lets go of the backlog.
func (g *shareGroup) discard() {
	for m := g.pop(); m != nil; m = g.pop() {
		m.release()
	}
}
