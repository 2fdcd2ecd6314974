package share

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

// By the strategies other than round-robin, a message has one member that gets it, chosen of
// those that are connected. If its queue has no room, the message waits in the backlog for it,
// and others behind it: the order would otherwise be lost that the strategy is for. When the
// member goes, what it has not acknowledged is handed back as by round-robin, and another one
// is chosen for that and for what waits. While no member is connected everything waits.
//
// The member of a hash is the one whose own hash together with that of the message is highest
// (rendezvous hashing): when a member comes or goes, only messages move that go to it, or went
// to it. The hash depends on nothing but the texts, so it is the same after a restart.

// chosen gives the member that is to get the message; nil: none is connected.
func (g *Group) chosen(o *message.Outgoing) *session.Subscription {
	if g.strategy == limits.Sticky {
		return g.stuckTo()
	}
	key := o.Topic
	seed := uint64(hashBasis)
	if g.strategy == limits.HashClient && o.Publisher != "" { // of one that was read back from disk it is not known
		key = nil
		seed = hashText(seed, o.Publisher)
	}
	seed = hashText(seed, key)
	var best *session.Subscription
	var highest uint64
	for _, m := range *g.members.Load() {
		// The lock is taken for a member that would be chosen only.
		if weight := mix(hashText(seed, m.Session.ID)); (best == nil || weight > highest) && attends(m) {
			best, highest = m, weight
		}
	}
	return best
}

// stuckTo gives the member that gets all messages, and chooses another one if it has gone.
func (g *Group) stuckTo() *session.Subscription {
	for {
		members := *g.members.Load()
		stuck := g.stuck.Load()
		if stuck != nil && slices.Contains(members, stuck) && attends(stuck) {
			return stuck
		}
		i := slices.IndexFunc(members, attends)
		if i < 0 {
			return nil
		}
		if g.stuck.CompareAndSwap(stuck, members[i]) {
			return members[i]
		}
	}
}

// attends says whether the client of a member is connected.
func attends(m *session.Subscription) bool {
	m.Session.Mu.Lock()
	defer m.Session.Mu.Unlock()
	return m.Session.Peer != nil && !m.Gone
}

// offered notes whether the member that was chosen took a message.
func (g *Group) offered(m *session.Subscription, taken bool) bool {
	if taken {
		m = nil
	}
	if g.waitsFor.Load() != m {
		g.waitsFor.Store(m)
	}
	return taken
}

// anyWithRoom says whether a connected member has room that may get the next message. A member
// without room calls Dispatch when it has some again (session.Env.DispatchTo).
func (g *Group) anyWithRoom(t *session.Turn) bool {
	if m := g.waitsFor.Load(); m != nil && attends(m) {
		return m.Session.HasRoom(t, m)
	}
	return slices.ContainsFunc(*g.members.Load(), func(m *session.Subscription) bool { return m.Session.HasRoom(t, m) })
}

// FNV-1a, 64 bits.
const (
	hashBasis = 14695981039346656037
	hashPrime = 1099511628211
)

// hashText goes on with a hash; texts behind each other are told apart.
func hashText[T string | []byte](h uint64, text T) uint64 {
	for i := 0; i < len(text); i++ {
		h = (h ^ uint64(text[i])) * hashPrime
	}
	return (h ^ 0xFF) * hashPrime // no byte of UTF-8
}

// mix makes each bit depend on all others (the end of MurmurHash3): FNV-1a leaves the high bits
// of short texts alike.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
