package share

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

// Hold is Deliver for a transaction: it gives the message to one member, or keeps it until
// one is there, and h holds it back. It returns false if the backlog has no room.
func (g *Group) Hold(t *session.Turn, h *session.Held, o *message.Outgoing) bool {
	if o.QoS == 0 {
		h.HoldForGroup(t, g, o)
		return true
	}
	g.Mu.Lock()
	waiting := g.Messages > 0 || g.Dispatching
	g.Mu.Unlock()
	if !waiting && g.offerHeld(t, h, o) {
		return true
	}
	if !g.anyTaker() {
		g.env.Counters.Dropped.Add(1)
		return true
	}
	attended := g.anyConnectedBut(nil)
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Attended = attended
	switch {
	case g.Ended:
		return true
	case g.fullToOthers() && !g.mayDrop():
		return false
	}
	m := t.MessageOf(o)
	h.HoldBacklog(g, g.Number(), g.Append(m), m)
	return true
}

// offerHeld is Offer for a transaction.
func (g *Group) offerHeld(t *session.Turn, h *session.Held, o *message.Outgoing) bool {
	members := *g.members.Load()
	if len(members) == 0 {
		return false
	}
	if g.strategy != limits.RoundRobin {
		m := g.chosen(o)
		return m != nil && g.offered(m, m.Session.OfferHeld(t, h, m, o))
	}
	first := g.turn.Add(1)
	for i := range members {
		m := members[(first+uint64(i))%uint64(len(members))]
		if m.Session.OfferHeld(t, h, m, o) {
			return true
		}
	}
	return false
}

// Withdraw takes a message out of the backlog again whose row is in no batch, and passes on
// what waited behind it.
func (g *Group) Withdraw(t *session.Turn, seq uint64) {
	g.Mu.Lock()
	g.Drop(seq)
	g.Mu.Unlock()
	g.passOn(t)
}
