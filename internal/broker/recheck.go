package broker

import (
	"maps"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Recheck asks again what the connected clients may do, after that has changed, and ends
// what they may do no more:
//
//   - A client that may not connect is disconnected (0x87).
//   - A subscription that is not allowed ends, and its client is disconnected (0x87): that
//     is the only way in which a broker can tell a client that it lost a subscription. Its
//     session goes on without it.
//
// Clients that have not lost anything notice nothing. The sessions of clients that are
// away are judged when these come back; whether a publish, a request, a notification or a
// will is allowed is asked each time. From any goroutine.
func (b *Broker) Recheck() {
	if b.may == nil {
		return
	}
	b.mu.Lock()
	conns := slices.Collect(maps.Keys(b.conns))
	b.mu.Unlock()
	for _, c := range conns {
		if ended := c.recheck(); len(ended) > 0 {
			b.Do(func(t *session.Turn) { c.endDenied(t, ended) })
		}
	}
	b.recheckHandler()
}

// recheckHandler has the handler ask again what its clients may do.
func (b *Broker) recheckHandler() {
	if h, ok := b.handler.(interface{ Recheck() }); ok {
		h.Recheck()
	}
}

// recheck asks again what the client may do. The caller calls endDenied with the
// subscriptions that it returns.
func (c *Conn) recheck() (ended []*session.Subscription) {
	id := c.Identity()
	if id == nil {
		return nil // it has not been judged yet
	}
	if !c.b.may.MayConnect(id) {
		c.Disconnect(mqtt.NotAuthorized, "the policy allows this client no more to connect")
		return nil
	}
	s := c.b.Sessions.Lookup(c.Client)
	if s == nil {
		return nil
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer == &c.Peer {
		ended = c.b.takeDenied(s, c)
	}
	return ended
}

// takeDenied takes out of a session the subscriptions that its client, that of connection c,
// may not have any more. Messages in its queue are judged when they are sent. The caller
// calls Conn.endDenied with the subscriptions; s.Mu is held.
func (b *Broker) takeDenied(s *session.Session, c *Conn) (ended []*session.Subscription) {
	for _, sub := range s.Subs {
		if _, rest := topic.GroupOf(sub.Filter); b.subscriptions.MayFilter(c.Identity(), rest) {
			continue
		}
		s.Unsubscribe(sub)
		ended = append(ended, sub)
	}
	if len(ended) > 0 {
		s.Judge = c.mayReceive
	}
	return ended
}

// judgeSession judges session s when its client connects again: the policy may deny what it
// allowed before the client went away. The caller calls endDenied with the subscriptions
// that judgeSession returns; s.Mu is held.
func (c *Conn) judgeSession(s *session.Session, present bool) (ended []*session.Subscription) {
	s.Judge = nil
	if c.b.may == nil || !present {
		return nil
	}
	ended = c.b.takeDenied(s, c)
	if s.Routed.Messages+s.Direct.Messages > 0 {
		s.Judge = c.mayReceive
	}
	return ended
}

// endDenied ends subscriptions that takeDenied has taken out of the client's session, and
// the connection.
func (c *Conn) endDenied(t *session.Turn, ended []*session.Subscription) {
	b, s := c.b, ended[0].Session
	for _, sub := range ended {
		b.Log.Info("ending a subscription that is allowed no more", "client", s.ID, "filter", sub.Filter)
	}
	b.RemoveAll(t, s, ended)
	b.DeleteSubscriptions(s, ended)
	b.Counters.SubscriptionsEnded.Add(int64(len(ended)))
	c.Disconnect(mqtt.NotAuthorized, "the policy allows this client no more to subscribe to "+ended[0].Filter)
}

// mayReceive says whether a message that was queued before may be sent to the client. It
// is asked with the session's lock held.
func (c *Conn) mayReceive(topic []byte, direct bool) bool {
	b := c.b
	if !direct {
		return b.may.MaySubscribe(c.Identity(), topic)
	}
	h, ok := b.handler.(interface {
		MayReceive(c *Conn, topic []byte) bool
	})
	return !ok || h.MayReceive(c, topic)
}
