package broker

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync/atomic"

	"holdfast/internal/lockrank"
	"holdfast/internal/memory"
)

// shareGroup is a shared subscription, $share/{name}/{filter}: each message goes
// to one member [MQTT-4.8.2-4].
//
// A message goes to the next member in turn that is connected and whose queue has
// room. When there is none it waits in the group's own backlog, once, for the
// first that comes back or has acknowledged something. What
// a member had not been sent when it left goes back to the group, and so does
// what it had been sent at QoS 1 and not acknowledged, if somebody else can take it.
type shareGroup struct {
	b      *Broker
	key    string // {name}/{filter}
	filter string
	proxy  *subscription // stands for the group in the index of filters

	members atomic.Pointer[[]*subscription] // replaced under mu
	turn    atomic.Uint64

	mu          lockrank.Mutex[lockrank.Group]
	ended       bool   // the last member has left: nothing is kept any more
	gid         uint64 // number of its rows on disk; 0: it has none
	backlog     []waiting
	front       uint64 // lowest sequence number ever given: one that went may still have its row
	back        uint64 // sequence number of the next message to come
	bytes       int64
	dispatching bool // a goroutine empties the backlog
	again       bool // and is to look once more before it stops
}

// waiting is a message in a group's backlog.
type waiting struct {
	message *Message // with a reference
	seq     uint64   // on disk; rising, maybe with gaps
	saved   bool     // its row is journaled; before that it must not be passed on
}

// middle is where a group's sequence numbers begin: they grow both ways.
const middle = 1 << 63

// joinGroup makes sub a member. The session's lock is held.
func (b *Broker) joinGroup(sub *subscription, name, filter string) {
	key := name + "/" + filter
	b.groupsMu.Lock()
	defer b.groupsMu.Unlock()
	g := b.groups[key]
	if g == nil {
		g = &shareGroup{b: b, key: key, filter: filter, front: middle, back: middle}
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
		g.discard() // before there may be a new group of this name, which would share its row
	}
	b.groupsMu.Unlock()
	if len(members) > 0 {
		g.takeBack(t, sub)
	}
}

// deliver gives the message to one member, or keeps it until one is there.
func (g *shareGroup) deliver(t *Turn, o *outgoing) {
	g.mu.Lock()
	waiting := len(g.backlog) > 0 || g.dispatching
	g.mu.Unlock()
	if !waiting && g.offer(t, o) {
		return
	}
	if o.qos == 0 || !g.anyTaker() {
		g.b.stats.Dropped.Add(1)
		return
	}
	g.add(t, o.message(t)) // dispatched when it is saved
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

// offerShared delivers to a member if it is connected and has room: others may.
func (s *Session) offerShared(t *Turn, sub *subscription, o *outgoing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || sub.gone {
		return false
	}
	if min(o.qos, sub.qos) > 0 && (s.full(t, &s.routed) || !s.sharedHasRoom()) {
		s.passedOver = true
		return false
	}
	t.subIDs = t.subIDs[:0]
	if sub.id != 0 {
		t.subIDs = append(t.subIDs, sub.id)
	}
	s.deliver(t, sub, o, min(o.qos, sub.qos), o.retain && sub.retainAsPublished)
	return true
}

// A member takes a group's messages only as far ahead of what it has been sent:
// what waits in its queue can't go to another one quickly, and stays in memory.
const (
	sharedAhead      = 128
	sharedAheadBytes = 16 << 20 // what it hasn't acknowledged included
)

// sharedHasRoom says whether the session may take a message more of a shared
// subscription; s.mu is held.
func (s *Session) sharedHasRoom() bool {
	q := &s.routed
	return !q.long() && q.waiting() < sharedAhead && q.inMemory < sharedAheadBytes
}

// anyTaker says whether a message may wait for somebody: a member that comes
// back, or has no room just now.
func (g *shareGroup) anyTaker() bool {
	return g.any(func(s *Session) bool { return !s.ended && (s.durable() || s.conn != nil) })
}

func (g *shareGroup) anyDurable() bool {
	return g.any(func(s *Session) bool { return !s.ended && s.durable() })
}

// any says whether a member's session is as is asks, with its lock held.
func (g *shareGroup) any(is func(*Session) bool) bool {
	for _, m := range *g.members.Load() {
		m.session.mu.Lock()
		yes := is(m.session)
		m.session.mu.Unlock()
		if yes {
			return true
		}
	}
	return false
}

// hasMembers says whether there is anybody to hand a message back for.
func (g *shareGroup) hasMembers() bool { return len(*g.members.Load()) > 0 }

func (g *shareGroup) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := &g.b.limits
	return len(g.backlog) >= l.MaxQueued || loadOf(len(g.backlog), g.bytes, rowOverhead) >= min(l.MaxQueuedBytes, maxBacklogBytes)
}

// maxBacklogBytes bounds a backlog besides Limits.MaxQueuedBytes: all of it is in memory.
const maxBacklogBytes = 256 << 20

// count adds a message to the levels, or with a sign of -1 takes it out; g.mu is held.
func (g *shareGroup) count(m *Message, sign int64) {
	g.bytes += sign * m.size()
	if sign > 0 && m.size() >= chargedAlone {
		g.b.charge(m, memory.Queues)
	} else if m.size() < chargedAlone && m.stamp == 0 {
		g.b.memory.Charge(memory.Queues, sign*(slotOverhead+m.size()))
	}
	g.b.stats.Queued.Add(sign)
	g.b.stats.QueuedBytes.Add(sign * m.size())
}

// add puts a message, of which it takes over the reference, behind the backlog.
func (g *shareGroup) add(t *Turn, m *Message) {
	if g.full() {
		if g.b.limits.QueueFull != DropOldest {
			m.release()
			for _, member := range *g.members.Load() {
				t.ending = append(t.ending, member.session)
			}
			return
		}
		if seq, oldest := g.first(); oldest != nil {
			oldest.release()
			if g.pop(t, seq) {
				g.b.stats.Dropped.Add(1)
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		m.release()
		return
	}
	g.backlog = append(g.backlog, waiting{message: m, seq: g.back})
	g.count(m, 1)
	g.save(t, g.back, m)
	g.back++
}

// save notes that a message of the backlog is to be journaled; g.mu is held.
func (g *shareGroup) save(t *Turn, seq uint64, m *Message) {
	if g.gid == 0 {
		g.gid = g.b.lastSID.Add(1)
		row := binary.BigEndian.AppendUint64([]byte{rowVersion}, g.gid)
		a := g.b.journal.Begin()
		a.Set(topicKey(groupPrefix, []byte(g.key)), row)
		a.End(nil)
	}
	m.keep()
	t.saves = append(t.saves, save{group: g, sid: g.gid, seq: seq, it: slot{msg: m, qos: m.qos}})
}

// saved notes that a message's row is journaled, and passes on what can be.
func (g *shareGroup) saved(t *Turn, seq uint64) {
	g.mu.Lock()
	if i, found := g.find(seq); found {
		g.backlog[i].saved = true
	}
	g.mu.Unlock()
	g.dispatch(t)
}

// first gives the first message of the backlog with a reference, if it is saved.
func (g *shareGroup) first() (seq uint64, m *Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.backlog) == 0 || !g.backlog[0].saved {
		return 0, nil
	}
	g.backlog[0].message.keep()
	return g.backlog[0].seq, g.backlog[0].message
}

// pop takes a message out of the backlog, if it is still there: the first, unless
// others were handed back meanwhile. Its row goes with the turn's next commit.
func (g *shareGroup) pop(t *Turn, seq uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, found := g.find(seq)
	if !found {
		return false
	}
	t.deletes = append(t.deletes, queueKey(g.gid, seq))
	m := g.backlog[i].message
	if g.backlog[i] = (waiting{}); i == 0 {
		g.backlog = g.backlog[1:]
	} else {
		g.backlog = slices.Delete(g.backlog, i, i+1)
	}
	g.count(m, -1)
	m.release()
	return true
}

// find gives the place of a message in the backlog; g.mu is held.
func (g *shareGroup) find(seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(g.backlog, seq, func(w waiting, seq uint64) int { return cmp.Compare(w.seq, seq) })
}

// requeue puts messages, whose references it takes over, before the backlog, in
// order, to be journaled.
func (g *shareGroup) requeue(t *Turn, messages ...*Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		for _, m := range messages {
			m.release()
		}
		return
	}
	backlog := make([]waiting, 0, len(messages)+len(g.backlog))
	g.front -= uint64(len(messages))
	for i, m := range messages {
		seq := g.front + uint64(i)
		backlog = append(backlog, waiting{message: m, seq: seq})
		g.count(m, 1)
		g.save(t, seq, m)
	}
	g.backlog = append(backlog, g.backlog...)
}

// dispatch empties the backlog as long as somebody takes it. One goroutine does
// it at a time, so that the order holds; it looks once more if somebody came
// while it found no taker.
func (g *shareGroup) dispatch(t *Turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dispatching {
		g.again = true
		return
	}
	g.dispatching = true
	for more := true; more && len(g.backlog) > 0 && g.backlog[0].saved; {
		g.again = false
		g.mu.Unlock()
		taken := g.dispatchOne(t)
		g.mu.Lock()
		more = taken || g.again
	}
	g.dispatching = false
}

// dispatchOne passes the first message on: its row in the member's queue and the
// end of the one that it had are in the same batch.
func (g *shareGroup) dispatchOne(t *Turn) bool {
	seq, m := g.first()
	if m == nil {
		return false
	}
	expired := m.expiresAt != 0 && secondsLeft(m.expiresAt, g.b.Now()) == 0
	o := m.routed()
	defer o.done()
	if !expired && !g.offer(t, &o) {
		return false
	}
	g.pop(t, seq)
	g.b.commit(t, nil)
	return true
}

// takeBack collects what a member that left, or lost its connection, was not
// sent, and gives it to the others: also what it was sent at QoS 1 and hasn't
// acknowledged, if it won't come back for it or somebody else is there now. At
// QoS 2 nobody else may get that [MQTT-4.8.2-5].
func (g *shareGroup) takeBack(t *Turn, sub *subscription) {
	s := sub.session
	others := g.anyConnectedBut(s)
	var back []*slot
	var messages []*Message
	s.mu.Lock()
	s.routed.each(func(it *slot) {
		if it.sub != sub || it.msg == nil || it.batch == unsaved {
			return
		}
		unsent := it.state == slotPending && !it.dup
		unacknowledged := it.state <= slotSent && it.qos == 1 && s.conn == nil && (others || s.ended)
		if unsent || unacknowledged {
			back = append(back, it)
		}
	})
	slices.SortFunc(back, bySeq)
	for _, it := range back {
		messages = append(messages, s.handBack(t, it))
	}
	s.routed.trim()
	s.mu.Unlock()
	if len(messages) > 0 {
		g.requeue(t, messages...)
		g.b.commit(t, nil)
	}
}

// handBack finishes a slot of the routed queue and gives its message, with a
// reference. Its rows go with the next commit of the turn: the batch that has
// them elsewhere. trim is to follow. s.mu is held.
func (s *Session) handBack(t *Turn, it *slot) *Message {
	m := it.msg
	m.keep()
	if it.saved {
		t.deletes = append(t.deletes, queueKey(s.sid, it.seq))
	}
	if it.number != 0 {
		if s.b.payloads.drop(it.number) {
			t.deletes = append(t.deletes, numberedKey(payloadPrefix, it.number))
		}
		it.number = 0
	}
	s.remove(&s.routed, it)
	return m
}

func (g *shareGroup) anyConnectedBut(s *Session) bool {
	return g.any(func(other *Session) bool { return other != s && other.conn != nil })
}

// dispatchTo goes on with the backlogs that found the session full, when it has
// room again. No lock is held.
func (b *Broker) dispatchTo(t *Turn, s *Session) {
	var shared []*subscription
	s.mu.Lock()
	if s.passedOver && !s.full(t, &s.routed) && s.sharedHasRoom() {
		s.passedOver = false
		shared = s.sharedSubscriptions()
	}
	s.mu.Unlock()
	for _, sub := range shared {
		sub.group.dispatch(t)
	}
}

// discard ends the group: it lets go of the backlog, in memory and on disk.
func (g *shareGroup) discard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	for _, w := range g.backlog {
		g.count(w.message, -1)
		w.message.release()
	}
	g.backlog = nil
	if g.gid != 0 {
		a := g.b.journal.Begin()
		a.Delete(topicKey(groupPrefix, []byte(g.key)))
		a.DeleteRange(numberedKey(queuePrefix, g.gid), afterNumber(queuePrefix, g.gid))
		a.End(nil)
		g.gid = 0
	}
}
