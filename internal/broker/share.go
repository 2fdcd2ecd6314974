package broker

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
)

// shareGroup is a shared subscription, $share/{name}/{filter}: each message goes
// to one member [MQTT-4.8.2-4].
//
// A message goes to the next member in turn that is connected and whose queue has
// room. When there is none it waits in the group's own backlog, once, for the
// first that comes back or has acknowledged something. The backlog is a queue on
// disk, of which hardly more than the ends are in memory (sharewindow.go). What
// a member had not been sent when it left goes back to the group, and so does
// what it had been sent at QoS 1 and not acknowledged, if another member can take it.
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
	backlog            // see sharewindow.go
	front       uint64 // lowest sequence number ever given: one that went may still have its row
	back        uint64 // sequence number of the next message to come
	dispatching bool   // a goroutine empties the backlog
	again       bool   // and is to look once more before it stops
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
	waiting := g.messages > 0 || g.dispatching
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
// what waits in its queue can't go to another one quickly, and stays in memory. When
// memory is tight, messages rather stay in the backlog, which is on disk.
const (
	sharedAhead           = 128
	sharedAheadBytes      = 16 << 20 // what it hasn't acknowledged included
	sharedAheadBytesTight = 64 << 10
)

// sharedHasRoom says whether the session may take a message more of a shared
// subscription; s.mu is held.
func (s *Session) sharedHasRoom() bool {
	q := &s.routed
	most := int64(sharedAheadBytes)
	if s.b.memory.Tight() {
		most = sharedAheadBytesTight
	}
	return !q.long() && q.waiting() < sharedAhead && q.inMemory < most
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

// full says whether the backlog is at its bound, which is that of a session's queue
// on disk; g.mu is held.
func (g *shareGroup) full() bool {
	l := &g.b.limits
	return g.messages >= l.MaxQueued || g.load() >= l.MaxQueuedBytes
}

// overfull says whether the backlog is beyond its bound; g.mu is held.
func (g *shareGroup) overfull() bool {
	l := &g.b.limits
	return g.messages > l.MaxQueued || g.load() > l.MaxQueuedBytes
}

// load gives the bytes that the backlog takes on disk; g.mu is held.
func (g *shareGroup) load() int64 { return loadOf(g.messages, g.bytes, rowOverhead) }

// makeRoom deals with a backlog at its bound: it says whether a message more may
// come. g.mu is held.
func (g *shareGroup) makeRoom(t *Turn) bool {
	l := &g.b.limits
	if l.QueueFull == DropOldest && g.load() < 2*l.MaxQueuedBytes && g.messages/2 < l.MaxQueued {
		return true // shed follows
	}
	for _, member := range *g.members.Load() {
		t.ending = append(t.ending, member.session)
	}
	return false
}

// shed drops the oldest messages of a backlog beyond its bound, if that is what is to
// happen. Those on disk only are read for that. g.mu is held.
func (g *shareGroup) shed(t *Turn) {
	if g.b.limits.QueueFull != DropOldest {
		return
	}
	for g.join(); g.overfull() && len(g.head) > 0 && g.head[0].saved; g.join() {
		g.remove(t, 0)
		g.b.stats.Dropped.Add(1)
	}
}

// add puts a message, of which it takes over the reference, behind the backlog.
func (g *shareGroup) add(t *Turn, m *Message) {
	attended := g.anyConnectedBut(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attended = attended
	if g.ended || g.full() && !g.makeRoom(t) {
		m.release()
		return
	}
	w := waiting{message: m, seq: g.back, size: uint32(m.size())}
	g.count(&w)
	if len(g.tail) == 0 && g.middle.count == 0 && g.headHasRoom() {
		g.head = append(g.head, w)
		g.headHolds(&w, 1)
	} else {
		g.tail = append(g.tail, w)
	}
	g.save(t, g.back, m)
	g.back++
	g.shed(t)
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

// saved notes that a message's row is in the batch, and passes on what can be.
func (g *shareGroup) saved(t *Turn, seq uint64, batch journal.Seq) {
	g.mu.Lock()
	if w := g.find(seq); w != nil {
		w.saved, w.batch = true, batch
	}
	g.mu.Unlock()
	if g.pass(t) && g.mayLoad(t) {
		g.loadInBackground() // the caller may hold locks that must not wait for the disk
	}
	g.mu.Lock()
	g.evict()
	g.mu.Unlock()
}

// first gives the first message of the backlog with a reference, if it is saved and
// in memory.
func (g *shareGroup) first() (seq uint64, m *Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ready() {
		return 0, nil
	}
	w := &g.head[0]
	w.message.keep()
	g.goneTo = max(g.goneTo, w.seq+1) // it keeps its entry, for pop
	return w.seq, w.message
}

// ready says whether first would give a message; g.mu is held.
func (g *shareGroup) ready() bool {
	g.join()
	return len(g.head) > 0 && g.head[0].saved && g.head[0].message != nil
}

// pop takes the message that first gave out of the backlog, if it is still there: it
// is the first, unless others were handed back meanwhile. Its row goes with the
// turn's next commit.
func (g *shareGroup) pop(t *Turn, seq uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, found := findIn(g.head, seq)
	if found {
		g.remove(t, i)
	}
	return found
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
	head := make([]waiting, 0, len(messages)+len(g.head))
	g.front -= uint64(len(messages))
	for i, m := range messages {
		w := waiting{message: m, seq: g.front + uint64(i), size: uint32(m.size())}
		g.count(&w)
		g.headHolds(&w, 1)
		head = append(head, w)
		g.save(t, w.seq, m)
	}
	g.head = append(head, g.head...)
}

// dispatch empties the backlog as long as a member takes it, and reads it back from
// the disk for that. No lock is held.
func (g *shareGroup) dispatch(t *Turn) {
	for g.pass(t) && g.mayLoad(t) {
		if t.hurried {
			g.loadInBackground()
			return
		}
		if !g.loadMessages(t) {
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.evict() // what has been read and no member took
}

// pass passes on what is in memory of the first messages, as long as a member takes
// them, and says whether it has come to one that is on disk only. One goroutine does
// it at a time, so that the order holds; it looks once more if another came while it
// found no taker.
func (g *shareGroup) pass(t *Turn) (lacks bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dispatching {
		g.again = true
		return false
	}
	g.dispatching = true
	for more := true; more && g.ready(); {
		g.again = false
		g.mu.Unlock()
		taken := g.dispatchOne(t)
		g.mu.Lock()
		more = taken || g.again
	}
	g.dispatching = false
	return g.lacks()
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
	}
	g.mu.Lock()
	g.attended = others
	g.evict()
	g.mu.Unlock()
	g.b.commit(t, nil)
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
	g.clear()
	if g.gid != 0 {
		a := g.b.journal.Begin()
		a.Delete(topicKey(groupPrefix, []byte(g.key)))
		a.DeleteRange(numberedKey(queuePrefix, g.gid), afterNumber(queuePrefix, g.gid))
		a.End(nil)
		g.gid = 0
	}
}
