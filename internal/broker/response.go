package broker

import (
	"bytes"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

// routeResponse publishes a handler's response to a request of c. If the
// requester may publish to its topic, it is routed like a publish of the requester's, but
// No Local does not apply; otherwise only the requester's own subscriptions see it.
// It takes over the reference.
func (b *Broker) routeResponse(t *session.Turn, c *Conn, m *message.Message) {
	if c.responses == nil {
		c.responses = new(responseRoute)
	}
	sub, allowed := c.responses.find(t, c, m.Topic())
	if sub != nil && (allowed || sub.Session == c.session) && sub.Session.Respond(t, sub, m) {
		return
	}
	o := m.Outgoing()
	o.Direct = true
	defer o.Done()
	if allowed && !b.reservedTopics.Protected(o.Topic) {
		if sub != nil {
			b.DeliverOne(t, sub, &o)
		} else {
			b.Route(t, &o)
		}
		return
	}
	s := c.session
	matches := slices.DeleteFunc(b.Match(t, o.Topic), func(sub *session.Subscription) bool { return sub.Session != s })
	if len(matches) > 0 {
		routing.ChainMatches(t, matches)
		b.DeliverTo(t, matches, 0, &o)
	}
}

// responseRoute remembers where the responses to a connection's requests go, and whether the
// client may publish there, as nearly all of them go to the same topic, which one session
// subscribes to. It belongs to the goroutine that writes the connection's acknowledgements
// at the moment.
type responseRoute struct {
	topic   []byte
	sub     *session.Subscription // the only one that matches topic; nil: there are none, or several, or the topic is protected
	filters uint64                // generation of the index in which that was found
	grants  uint64                // version of the access.Grants by which allowed was decided; 0: it wasn't
	allowed bool                  // the client may publish to topic
}

// maxRouteTopic is how long a topic may be to be remembered.
const maxRouteTopic = 512

// find gives the one subscription that matches the topic, or nil, and says whether the
// client may publish to the topic.
func (r *responseRoute) find(t *session.Turn, c *Conn, topic []byte) (sub *session.Subscription, allowed bool) {
	b := c.b
	if len(topic) > maxRouteTopic {
		return nil, b.mayPublish(c, topic)
	}
	if filters := b.Filters.Generation(); r.filters != filters || !bytes.Equal(r.topic, topic) {
		r.filters, r.topic, r.sub, r.grants = filters, append(r.topic[:0], topic...), nil, 0
		if matches := b.Match(t, topic); len(matches) == 1 && matches[0].Session != nil && !b.reservedTopics.Protected(topic) {
			r.sub = matches[0]
		}
	}
	if b.may == nil {
		return r.sub, true
	}
	if version := b.may.Grants(c.Identity()).Version; r.grants != version || version == 0 {
		r.grants, r.allowed = version, b.mayPublish(c, topic)
	}
	return r.sub, r.allowed
}
