package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/acks"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// subscribe handles SUBSCRIBE [MQTT-3.8.4].
func (c *Conn) subscribe(t *session.Turn, p *mqtt.Subscribe) error {
	if c.ackTooLarge(len(p.Subscriptions)) {
		return errAckTooLarge
	}
	codes := make([]mqtt.ReasonCode, len(p.Subscriptions))
	var reason string
	var fresh []*session.Subscription
	var replays []*session.Replay
	s := c.session
	c.b.Journal.Admit()
	t.Worked += len(p.Subscriptions)
	for i := range p.Subscriptions {
		o := &p.Subscriptions[i]
		if i >= c.b.Limits.MaxSubscriptions {
			codes[i], reason = mqtt.QuotaExceeded, "too many subscriptions"
			continue
		}
		sub, replay, code, why := c.subscribeOne(o, p.SubscriptionID)
		codes[i] = code
		if why != "" {
			reason = why
		}
		if sub == nil {
			continue
		}
		fresh = append(fresh, sub)
		if replay != nil {
			replays = append(replays, replay)
		}
	}
	answer := acks.Ack{Type: mqtt.SUBACK, ID: p.PacketID, Codes: codes, Reason: reason}
	replays = c.b.Owed(s, replays)
	if seq := c.b.SaveSubscriptions(s, fresh, replays); seq == 0 {
		c.acknowledge(t, answer)
	} else if len(replays) > 0 {
		// Retained messages follow the SUBACK, which waits for the disk.
		t.Flush()
		c.b.WaitDurable(seq)
		c.acknowledge(t, answer)
	} else {
		c.acknowledgeWhenDurable(t, answer, seq)
	}
	c.b.StartReplays(t, s, replays)
	for _, sub := range fresh {
		if sub.Group != nil {
			sub.Group.Dispatch(t)
		}
	}
	return nil
}

// subscribeOne judges one filter of a SUBSCRIBE and inserts it. replay is not nil
// if retained messages are wanted.
func (c *Conn) subscribeOne(o *mqtt.Subscription, id uint32) (sub *session.Subscription, replay *session.Replay, code mqtt.ReasonCode, reason string) {
	filter := string(o.Filter)
	if !topic.ValidSubscription(filter) {
		return nil, nil, mqtt.TopicFilterInvalid, "the topic filter is malformed"
	}
	filter, ok := c.b.rewrites.Subscribe(filter)
	group, rest := topic.GroupOf(filter)
	switch {
	case !ok:
		return nil, nil, mqtt.TopicFilterInvalid, "the server rewrites this topic filter to one that is invalid or reserved"
	case topic.Levels(rest) > c.b.Limits.MaxTopicLevels:
		return nil, nil, mqtt.TopicFilterInvalid, "the topic filter has too many levels"
	case c.b.reservedTopics.Handled(viewOf(rest)):
		return nil, nil, mqtt.NotAuthorized, "this topic is served by the broker itself"
	}
	s := c.session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer != &c.Peer {
		return nil, nil, mqtt.UnspecifiedError, ""
	}
	// Under the lock: either Recheck finds the subscription, or this asks the new policy.
	if !c.b.mayFilter(c, rest) {
		return nil, nil, mqtt.NotAuthorized, "not authorized for this topic filter"
	}
	sub = s.Subs[filter]
	isNew := sub == nil
	if isNew {
		switch {
		case len(s.Subs) >= c.b.Limits.MaxSubscriptions:
			return nil, nil, mqtt.QuotaExceeded, "too many subscriptions"
		case int(s.FilterBytes)+len(filter) > c.b.Limits.MaxFilterBytes:
			return nil, nil, mqtt.QuotaExceeded, "the filters of this session take more bytes than they may"
		case !s.Place.TakeSubscription(access.QuotaOf(c.b.may, c.Identity()).Subscriptions):
			return nil, nil, mqtt.QuotaExceeded, "this client's principal has as many subscriptions as it may"
		}
		sub = &session.Subscription{Session: s, Filter: filter}
		if !c.b.Memory.Take(memory.Subscriptions, sub.Memory()) {
			s.Place.ReturnSubscriptions(1)
			return nil, nil, mqtt.QuotaExceeded, "the server has no memory for another subscription"
		}
	}
	sub.QoS, sub.NoLocal, sub.RetainAsPublished, sub.ID = o.QoS, o.NoLocal, o.RetainAsPublished, id
	if c.bridge {
		// A bridge must not get back what it brings, or the two brokers pass a message
		// to and fro for ever; and it keeps RETAIN, to retain what the other retains.
		sub.NoLocal, sub.RetainAsPublished = group == "", true
	}
	if isNew {
		s.Subscribe(sub)
		c.b.Insert(sub, group, rest)
	}
	if sub.Group == nil && (o.RetainHandling == 0 || o.RetainHandling == 1 && isNew) {
		if r := sub.Replay; r != nil && r.Fresh {
			r.Owed.Again++ // the same filter twice: as two SUBSCRIBEs would have it [MQTT-3.8.4-5]
		} else {
			replay = c.b.NewReplay(sub)
		}
	}
	return sub, replay, mqtt.ReasonCode(o.QoS), ""
}

// unsubscribe handles UNSUBSCRIBE [MQTT-3.10.4].
func (c *Conn) unsubscribe(t *session.Turn, p *mqtt.Unsubscribe) error {
	if c.ackTooLarge(len(p.Filters)) {
		return errAckTooLarge
	}
	s := c.session
	codes := make([]mqtt.ReasonCode, len(p.Filters))
	var gone []*session.Subscription
	c.b.Journal.Admit()
	t.Worked += len(p.Filters)
	s.Mu.Lock()
	for i, filter := range p.Filters {
		sub := s.Subs[string(filter)]
		if c.b.rewrites != nil {
			if to, ok := c.b.rewrites.Subscribe(string(filter)); ok && s.Subs[to] != nil {
				sub = s.Subs[to]
			}
		}
		switch {
		case sub == nil && !topic.ValidSubscription(string(filter)):
			codes[i] = mqtt.TopicFilterInvalid
			continue
		case sub == nil || s.Peer != &c.Peer:
			codes[i] = mqtt.NoSubscriptionExisted
			continue
		}
		s.Unsubscribe(sub)
		gone = append(gone, sub)
	}
	s.Mu.Unlock()
	c.b.RemoveAll(t, s, gone)
	answer := acks.Ack{Type: mqtt.UNSUBACK, ID: p.PacketID, Codes: codes}
	if seq := c.b.DeleteSubscriptions(s, gone); seq != 0 {
		c.acknowledgeWhenDurable(t, answer, seq)
		return nil
	}
	c.acknowledge(t, answer)
	return nil
}

// errAckTooLarge ends the connection of a client that asks for more at once than it
// lets itself be answered. Its own packet was larger.
var errAckTooLarge = &mqtt.Error{Code: mqtt.PacketTooLarge, Reason: "the acknowledgement would be larger than the client's Maximum Packet Size"}

// ackTooLarge says whether a SUBACK or UNSUBACK with so many codes and nothing else is
// larger than the client takes [MQTT-3.1.2-24].
func (c *Conn) ackTooLarge(codes int) bool {
	const fixed = 1 + 4 + 2 + 1 // header, remaining length at its longest, packet identifier, no properties
	return c.MaxPacket > 0 && fixed+codes > int(c.MaxPacket) && len(mqtt.AppendSuback(nil, c.Protocol, 1, make([]mqtt.ReasonCode, codes), "")) > int(c.MaxPacket)
}
