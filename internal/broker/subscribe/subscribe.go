package subscribe

import (
	"unsafe"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rewrite"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// TooMany is the Reason String of a subscription beyond the bound of a session.
const TooMany = "too many subscriptions (--max-subscriptions)"

// Maker makes the subscriptions of a broker. Its methods are safe for concurrent use.
type Maker struct {
	*routing.Router
	Rewrites *rewrite.Rules // nil: none
	Reserved *reserved.Topics
	May      access.Permissions // nil: every client may do everything
	Rules    Automatic
}

// Client is a client that subscribes.
type Client struct {
	Session  *session.Session
	Identity *access.Identity // nil: it has none
	Bridge   bool             // it has introduced itself as a bridge
}

// MayFilter says whether the client may subscribe, with the part of the filter behind the
// group if it is shared. Every client may subscribe to a protected topic: nothing is ever
// routed there.
func (m *Maker) MayFilter(id *access.Identity, filter string) bool {
	return m.May == nil || m.May.MaySubscribe(id, viewOf(filter)) || m.Reserved.Below(filter)
}

// viewOf gives the bytes of a string, not to be written to.
func viewOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Make judges one filter, and makes the subscription with the Subscription Identifier id, or
// changes the one that there is. replay is not nil if retained messages are wanted. The code and
// the reason are for the client; a failure has made nothing. c.Session.Mu is held.
func (m *Maker) Make(c *Client, o *mqtt.Subscription, id uint32) (sub *session.Subscription, replay *session.Replay, code mqtt.ReasonCode, reason string) {
	filter := string(o.Filter)
	if !topic.ValidSubscription(filter) {
		return nil, nil, mqtt.TopicFilterInvalid, "the topic filter is malformed"
	}
	filter, ok := m.Rewrites.Subscribe(filter)
	group, rest := topic.GroupOf(filter)
	switch {
	case !ok:
		return nil, nil, mqtt.TopicFilterInvalid, "the server rewrites this topic filter to one that is invalid or reserved"
	case topic.Levels(rest) > m.Limits().MaxTopicLevels:
		return nil, nil, mqtt.TopicFilterInvalid, "the topic filter has too many levels"
	case m.Reserved.Handled(viewOf(rest)):
		return nil, nil, mqtt.NotAuthorized, "this topic is served by the broker itself"
	}
	s := c.Session
	// Under the lock: either Recheck finds the subscription, or this asks the new policy.
	if !m.MayFilter(c.Identity, rest) {
		return nil, nil, mqtt.NotAuthorized, "not authorized for this topic filter"
	}
	sub = s.Subs[filter]
	isNew := sub == nil
	if isNew {
		switch {
		case len(s.Subs) >= m.Limits().MaxSubscriptions:
			return nil, nil, mqtt.QuotaExceeded, TooMany
		case int(s.FilterBytes)+len(filter) > m.Limits().MaxFilterBytes:
			return nil, nil, mqtt.QuotaExceeded, "the filters of this session take more bytes than they may (--max-filter-bytes)"
		case !s.Place.TakeSubscription(access.QuotaOf(m.May, c.Identity).Subscriptions):
			return nil, nil, mqtt.QuotaExceeded, "this client's principal has as many subscriptions as it may (subscriptions of the policy's quotas)"
		}
		sub = &session.Subscription{Session: s, Filter: filter}
		if !m.Memory.Take(memory.Subscriptions, sub.Memory()) {
			s.Place.ReturnSubscriptions(1)
			return nil, nil, mqtt.QuotaExceeded, "the server has no memory for another subscription (--max-memory)"
		}
	}
	sub.QoS, sub.NoLocal, sub.RetainAsPublished, sub.ID = o.QoS, o.NoLocal, o.RetainAsPublished, id
	if c.Bridge {
		// A bridge must not get back what it brings, or the two brokers pass a message
		// to and fro for ever; and it keeps RETAIN, to retain what the other retains.
		sub.NoLocal, sub.RetainAsPublished = group == "", true
	}
	if isNew {
		s.Subscribe(sub)
		m.Insert(sub, group, rest)
	}
	if sub.Group == nil && (o.RetainHandling == 0 || o.RetainHandling == 1 && isNew) {
		if r := sub.Replay; r != nil && r.Fresh {
			r.Owed.Again++ // the same filter twice: as two SUBSCRIBEs would have it [MQTT-3.8.4-5]
		} else {
			replay = m.NewReplay(sub)
		}
	}
	return sub, replay, mqtt.ReasonCode(o.QoS), ""
}
