package subscribe

import (
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/autosub"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

// Automatic has the rules of automatic subscriptions, which may change at any time. The zero
// value has none.
type Automatic struct{ rules atomic.Pointer[autosub.Rules] }

// Set sets the rules for clients that connect from now on; nil: none.
func (a *Automatic) Set(r *autosub.Rules) { a.rules.Store(r) }

// Made are subscriptions that are to be saved, and what they bring of retained messages.
type Made struct {
	Fresh   []*session.Subscription
	Replays []*session.Replay
}

// Automatic makes the automatic subscriptions of a client, before it gets its CONNACK. A
// subscription that the session has already, with the options of the rule, is left alone,
// unless it is to bring retained messages each time. The Subscription Identifier that the client
// has given it stays. What the client may not have is counted and in the log. c.Session.Mu is
// held.
func (m *Maker) Automatic(c *Client) (made Made) {
	s, user := c.Session, ""
	if c.Identity != nil {
		user = c.Identity.Username
	}
	subs, unfit := m.Rules.rules.Load().Of(s.ID, user)
	for _, filter := range unfit {
		m.refused(s, filter, "the client has no name that can be a level of it")
	}
	for i := range subs {
		o, id := &subs[i], uint32(0)
		if had := s.Subs[string(o.Filter)]; had != nil {
			id = had.ID
			if o.RetainHandling != 0 && had.QoS == o.QoS && had.NoLocal == o.NoLocal && had.RetainAsPublished == o.RetainAsPublished {
				continue
			}
		}
		sub, replay, code, reason := m.Make(c, o, id)
		if code.Failed() {
			m.refused(s, string(o.Filter), reason)
			continue
		}
		made.Fresh = append(made.Fresh, sub)
		if replay != nil {
			made.Replays = append(made.Replays, replay)
		}
	}
	return made
}

func (m *Maker) refused(s *session.Session, filter, reason string) {
	m.Counters.AutomaticRefused.Add(1)
	m.Log.Info("an automatic subscription was not made", "client", s.ID, "filter", filter, "reason", reason)
}

// Begin saves what Automatic has made, waits for the disk, and sends the retained messages. No
// lock is held.
func (m *Maker) Begin(t *session.Turn, s *session.Session, made Made) {
	made.Replays = m.Owed(s, made.Replays)
	if seq := m.SaveSubscriptions(s, made.Fresh, made.Replays); seq != 0 {
		t.Flush()
		if !m.WaitDurable(seq) {
			return
		}
	}
	m.StartReplays(t, s, made.Replays)
	for _, sub := range made.Fresh {
		if sub.Group != nil {
			sub.Group.Dispatch(t)
		}
	}
}
