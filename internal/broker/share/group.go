package share

import (
	"strings"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Group is a shared subscription, $share/{name}/{filter}: each message goes
// to one member [MQTT-4.8.2-4].
//
// A message goes to the next member in turn that is connected and whose queue has room, unless
// another strategy chooses one (strategy.go). If
// no member has, the message waits in the group's own backlog for the first member that
// connects again or has acknowledged something. The backlog is a queue on disk, of which
// hardly more than the ends are in memory (Backlog). When a member leaves, the messages that
// it had not been sent go back to the group, and so do those that it had been sent at QoS 1
// and not acknowledged, if another member can take them.
type Group struct {
	Filter string
	Proxy  *session.Subscription // stands for the group in the index of filters

	members atomic.Pointer[[]*session.Subscription] // replaced under mu
	turn    atomic.Uint64

	strategy limits.Strategy
	stuck    atomic.Pointer[session.Subscription] // by Sticky: the member that gets all messages
	waitsFor atomic.Pointer[session.Subscription] // not by RoundRobin: the member that had no room for the message that was offered last

	Mu lockrank.Mutex[lockrank.Group]
	Backlog
	promised    queue.Promised // of the backlog, where publishes are rejected when it is full
	Dispatching bool           // a goroutine passes on the messages of the backlog
	again       bool           // that goroutine is to look once more before it stops
}

// New is a shared subscription without members; key is {name}/{filter}.
func New(env *session.Env, key, filter string) *Group {
	name, _, _ := strings.Cut(key, "/")
	g := &Group{Filter: filter, strategy: env.Limits().StrategyOf(name)}
	g.Begin(env, key, g)
	g.Proxy = &session.Subscription{Group: g, Filter: filter}
	g.members.Store(&[]*session.Subscription{})
	return g
}

// groupMemory is about what a group takes of memory besides the texts: itself, what stands for it in
// the index of filters, and its place among the groups.
const groupMemory = 600

// MemoryBytes is what the group is charged with, besides the subscriptions of its members and its
// messages.
func (g *Group) MemoryBytes() int64 { return int64(len(g.Key)+len(g.Filter)) + groupMemory }

// Join makes sub a member. The caller lets one goroutine at a time join or leave, and holds the lock
// of the session.
func (g *Group) Join(sub *session.Subscription) {
	sub.Group, sub.Share = g, queue.NewShare(sub.Filter)
	g.NoteRejects(sub, sub.Session.HasChosenReject())
	members := append(*g.members.Load(), sub) // behind those that readers of the former list see
	g.members.Store(&members)
}

// Leave ends a membership, and says how many members are left.
func (g *Group) Leave(sub *session.Subscription) (left int) {
	old := *g.members.Load()
	members := make([]*session.Subscription, 0, len(old))
	for _, m := range old {
		if m != sub {
			members = append(members, m)
		}
	}
	g.members.Store(&members)
	g.NoteRejects(sub, false)
	return len(members)
}

// NoteRejects is for the member's session. Each change is counted once.
func (g *Group) NoteRejects(sub *session.Subscription, rejects bool) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if sub.Rejects == rejects {
		return
	}
	if sub.Rejects = rejects; rejects {
		g.rejecting++
	} else {
		g.rejecting--
	}
}

// Deliver gives the message to one member, or keeps it in the backlog until a member takes
// it. At QoS 0 a message that no member takes is dropped.
func (g *Group) Deliver(t *session.Turn, o *message.Outgoing) {
	g.Mu.Lock()
	waiting := g.Messages > 0 || g.Dispatching
	g.Mu.Unlock()
	if !waiting && g.Offer(t, o) {
		return
	}
	if o.QoS == 0 || !g.anyTaker() {
		g.env.Counters.Dropped.Add(1)
		return
	}
	g.Add(t, t.MessageOf(o)) // Committed passes it on
}

// Offer tries the members in turn until one that is connected takes it, or the one that the
// strategy chooses.
func (g *Group) Offer(t *session.Turn, o *message.Outgoing) bool {
	members := *g.members.Load()
	if len(members) == 0 {
		return false
	}
	if g.strategy != limits.RoundRobin {
		t.Worked += len(members) / session.MembersPerUnit
		m := g.chosen(o)
		return m != nil && g.offered(m, m.Session.Offer(t, m, o))
	}
	first := g.turn.Add(1)
	for i := range members {
		m := members[(first+uint64(i))%uint64(len(members))]
		if m.Session.Offer(t, m, o) {
			t.Worked += i / session.MembersPerUnit
			return true
		}
	}
	t.Worked += len(members) / session.MembersPerUnit
	return false
}

// anyTaker says whether a member may take a message later: when it comes back, or has
// room again.
func (g *Group) anyTaker() bool {
	return g.any(func(s *session.Session) bool { return !s.Ended && (s.Persistent() || s.Peer != nil) })
}

// AnyDurable says whether a member has a session that outlives its connection.
func (g *Group) AnyDurable() bool {
	return g.any(func(s *session.Session) bool { return !s.Ended && s.Persistent() })
}

// any says whether is returns true for a member's session, which is locked meanwhile.
func (g *Group) any(is func(*session.Session) bool) bool {
	for _, m := range *g.members.Load() {
		m.Session.Mu.Lock()
		yes := is(m.Session)
		m.Session.Mu.Unlock()
		if yes {
			return true
		}
	}
	return false
}

// Refuses is that of a session.
func (g *Group) Refuses(t *session.Turn, level int64, size int) bool {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	switch {
	case g.env.Weight(g.Messages, g.DiskBytes()) > level:
		return true
	case g.WhenFull() != limits.Reject:
		return false
	case g.fullToOthers():
		return true
	}
	t.Promises.Add(g, &g.promised, size)
	return false
}

// ReturnRoom takes back room that was promised to a message.
func (g *Group) ReturnRoom(size int) {
	g.Mu.Lock()
	g.promised.Return(size)
	g.Mu.Unlock()
}

// fullToOthers says whether the backlog is full for a message that no room is promised to.
// g.Mu is held.
func (g *Group) fullToOthers() bool {
	l := g.env.Limits()
	return g.Messages+g.promised.Messages() >= l.MaxQueued || g.DiskBytes()+g.promised.DiskBytes() >= l.MaxQueuedBytes
}

// HasMembers says whether there is a member left for messages that are handed back.
func (g *Group) HasMembers() bool { return len(*g.members.Load()) > 0 }

// admitWhenFull does what WhenFull says when the backlog is at its bound, and says whether one
// more message may come nevertheless. g.Mu is held.
func (g *Group) admitWhenFull(t *session.Turn) bool {
	if g.WhenFull() != limits.EndSession && g.belowTwice() {
		return true // Shed follows; or publishes are rejected, and members have left this one since it was not
	}
	if g.WhenFull() == limits.DropOldest {
		// Shed can't drop messages whose rows are not journaled yet, and here these come
		// first: the new message is dropped in their place.
		g.env.Counters.Dropped.Add(1)
		return false
	}
	for _, member := range *g.members.Load() {
		t.EndSession(member.Session)
	}
	return false
}

// mayDrop says whether the full backlog may go beyond its bound, to drop its oldest messages
// afterwards. g.Mu is held.
func (g *Group) mayDrop() bool {
	return g.WhenFull() == limits.DropOldest && g.belowTwice()
}

// belowTwice says whether the backlog is below twice its highest bound. g.Mu is held.
func (g *Group) belowTwice() bool {
	l := g.env.Highest()
	return g.DiskBytes() < 2*l.MaxQueuedBytes && g.Messages/2 < l.MaxQueued
}

// Add puts a message, of which it takes over the reference, behind the backlog.
func (g *Group) Add(t *session.Turn, m *message.Message) {
	attended := g.anyConnectedBut(nil)
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Attended = attended
	t.Promises.Keep(g, &g.promised)
	if g.Ended || g.Full() && !g.admitWhenFull(t) {
		m.Release()
		return
	}
	g.save(t, g.Append(m), m)
	g.Shed(&t.Deletes)
}

// save notes that a message of the backlog is to be journaled; g.Mu is held.
func (g *Group) save(t *session.Turn, seq uint64, m *message.Message) {
	t.SaveBacklog(g, g.Number(), seq, m)
}

// Committed notes that a message's row is in the batch, and passes on the messages that
// members take.
func (g *Group) Committed(t *session.Turn, seq uint64, batch journal.Seq) {
	g.Mu.Lock()
	g.Saved(seq, batch)
	g.Shed(&t.Deletes) // what a transaction adds is counted before it may drop others
	g.Mu.Unlock()
	g.passOn(t)
}

// passOn passes on the messages that members take, and leaves reading from the disk to
// another goroutine. The stripe of a key, and the turn of the journal's callbacks, may be
// locked; no group and no session is.
func (g *Group) passOn(t *session.Turn) {
	if g.pass(t) && g.mayLoad(t) {
		g.loadInBackground()
	}
	g.Mu.Lock()
	g.Evict()
	g.Mu.Unlock()
}

// First gives the first message of the backlog with a reference, if it is saved and
// in memory.
func (g *Group) First() (seq uint64, m *message.Message) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.Peek()
}

// Pop takes the message that First gave out of the backlog, if it is still there. Others may
// have been handed back before it meanwhile. The turn's next commit deletes its row.
func (g *Group) Pop(t *session.Turn, seq uint64) bool {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.Take(&t.Deletes, seq)
}

// Requeue puts messages before all others of the backlog, in their order, and takes over
// the caller's references to them. The turn's next commit journals their rows.
func (g *Group) Requeue(t *session.Turn, messages ...*message.Message) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Ended {
		for _, m := range messages {
			m.Release()
		}
		return
	}
	first := g.Prepend(messages)
	for i, m := range messages {
		g.save(t, first+uint64(i), m)
	}
}

// Dispatch passes on the messages of the backlog as long as a member takes them, and reads
// them from the disk for that. No lock is held.
func (g *Group) Dispatch(t *session.Turn) {
	for g.pass(t) && g.mayLoad(t) {
		if t.MustNotBlock {
			g.loadInBackground()
			return
		}
		if !g.loadMessages(t) {
			return
		}
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Evict() // what has been read and no member took
}

// pass passes on the first messages that are in memory, as long as a member takes them, and
// says whether it has come to one that is on disk only. One goroutine does this at a time,
// to keep the order. If another one calls pass meanwhile, the first looks once more.
func (g *Group) pass(t *session.Turn) (lacks bool) {
	g.Mu.Lock() // no Unlock is deferred: if dispatchOne panics, the lock is not held
	if g.Dispatching {
		g.again = true
		g.Mu.Unlock()
		return false
	}
	g.Dispatching = true
	for more := true; more && g.Ready(); {
		g.again = false
		g.Mu.Unlock()
		taken := g.dispatchOne(t)
		g.Mu.Lock()
		more = taken || g.again
	}
	g.Dispatching = false
	lacks = g.Lacks()
	g.Mu.Unlock()
	return lacks
}

// dispatchOne passes the first message on: one batch has its row in the member's queue and
// the deletion of its row in the backlog.
func (g *Group) dispatchOne(t *session.Turn) bool {
	seq, m := g.First()
	if m == nil {
		return false
	}
	expired := m.ExpiresAt != 0 && message.SecondsLeft(m.ExpiresAt, g.env.Now()) == 0
	o := m.Outgoing()
	defer o.Done()
	if !expired && !g.Offer(t, &o) {
		return false
	}
	g.Pop(t, seq)
	g.env.Commit(t, nil)
	return true
}

// TakeBack collects what a member that left, or lost its connection, was not
// sent, and gives it to the others.
func (g *Group) TakeBack(t *session.Turn, sub *session.Subscription) {
	others := g.anyConnectedBut(sub.Session)
	if messages := sub.Session.HandBack(t, sub, others); len(messages) > 0 {
		g.Requeue(t, messages...)
	}
	g.Mu.Lock()
	g.Attended = others
	g.Evict()
	g.Mu.Unlock()
	g.env.Commit(t, nil)
	if g.strategy != limits.RoundRobin {
		g.passOn(t) // what waited for this member alone, although others have room
	}
}

func (g *Group) anyConnectedBut(s *session.Session) bool {
	return g.any(func(other *session.Session) bool { return other != s && other.Peer != nil })
}

// Discard ends the group: it lets go of the backlog, in memory and on disk.
func (g *Group) Discard() {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.End()
}
