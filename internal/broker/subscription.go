package broker

import (
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
	"holdfast/internal/topic"
)

// subscription is one filter of one session, or stands for a shared group.
// Its options are guarded by the session's lock.
type subscription struct {
	session *Session
	filter  string // as subscribed, $share/… included
	group   *shareGroup

	qos               byte
	noLocal           bool
	retainAsPublished bool
	id                uint32  // Subscription Identifier; 0: none
	gone              bool    // unsubscribed
	replay            *replay // the latest one that isn't over
}

// memory is about what the subscription takes: itself, its places in the session and
// in the index, which may have a node for each level.
func (sub *subscription) memory() int64 { return int64(3*len(sub.filter)) + 300 }

// subscribe handles SUBSCRIBE [MQTT-3.8.4].
func (c *Conn) subscribe(t *Turn, p *mqtt.Subscribe) error {
	if c.ackTooLarge(len(p.Subscriptions)) {
		return errAckTooLarge
	}
	codes := make([]mqtt.ReasonCode, len(p.Subscriptions))
	var reason string
	var fresh []*subscription
	var replays []*replay
	s := c.session
	c.b.journal.Admit()
	t.work += len(p.Subscriptions)
	for i := range p.Subscriptions {
		o := &p.Subscriptions[i]
		if i >= c.b.limits.MaxSubscriptions {
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
	answer := ack{typ: mqtt.SUBACK, id: p.PacketID, codes: codes, reason: reason}
	replays = c.b.owed(s, replays)
	if seq := c.b.saveSubscriptions(s, fresh, replays); seq == 0 {
		c.acknowledge(t, answer)
	} else if len(replays) > 0 {
		// Retained messages follow the SUBACK, which waits for the disk.
		t.flush()
		c.b.waitDurable(seq)
		c.acknowledge(t, answer)
	} else {
		c.acknowledgeWhenDurable(t, answer, seq)
	}
	c.b.startReplays(t, s, replays)
	for _, sub := range fresh {
		if sub.group != nil {
			sub.group.dispatch(t)
		}
	}
	return nil
}

// subscribeOne judges one filter of a SUBSCRIBE and inserts it. replay is not nil
// if retained messages are wanted.
func (c *Conn) subscribeOne(o *mqtt.Subscription, id uint32) (sub *subscription, replay *replay, code mqtt.ReasonCode, reason string) {
	filter := string(o.Filter)
	group, rest := splitShare(filter)
	switch {
	case !validFilter(filter):
		return nil, nil, mqtt.TopicFilterInvalid, "the topic filter is malformed"
	case topic.Levels(rest) > c.b.limits.MaxTopicLevels:
		return nil, nil, mqtt.TopicFilterInvalid, "the topic filter has too many levels"
	case c.b.handled(viewOf(rest)):
		return nil, nil, mqtt.NotAuthorized, "this topic is served by the broker itself"
	case !c.b.mayFilter(c, rest):
		return nil, nil, mqtt.NotAuthorized, "not authorized for this topic filter"
	}
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return nil, nil, mqtt.UnspecifiedError, ""
	}
	sub = s.subs[filter]
	isNew := sub == nil
	if isNew {
		switch {
		case len(s.subs) >= c.b.limits.MaxSubscriptions:
			return nil, nil, mqtt.QuotaExceeded, "too many subscriptions"
		case int(s.filterBytes)+len(filter) > c.b.limits.MaxFilterBytes:
			return nil, nil, mqtt.QuotaExceeded, "the filters of this session take more bytes than they may"
		}
		sub = &subscription{session: s, filter: filter}
		if !c.b.memory.Take(memory.Subscriptions, sub.memory()) {
			return nil, nil, mqtt.QuotaExceeded, "the server has no memory for another subscription"
		}
	}
	sub.qos, sub.noLocal, sub.retainAsPublished, sub.id = o.QoS, o.NoLocal, o.RetainAsPublished, id
	if c.bridge {
		// A bridge must not get back what it brings, or the two brokers pass a message
		// to and fro for ever; and it keeps RETAIN, to retain what the other retains.
		sub.noLocal, sub.retainAsPublished = group == "", true
	}
	if isNew {
		s.subscribe(sub)
		c.b.insert(sub, group, rest)
	}
	if sub.group == nil && (o.RetainHandling == 0 || o.RetainHandling == 1 && isNew) {
		if r := sub.replay; r != nil && r.fresh {
			r.again++ // the same filter twice: as two SUBSCRIBEs would have it [MQTT-3.8.4-5]
		} else {
			replay = c.b.newReplay(sub)
		}
	}
	return sub, replay, mqtt.ReasonCode(o.QoS), ""
}

// insert makes publishes find the subscription; its session's lock is held.
func (b *Broker) insert(sub *subscription, group, rest string) {
	b.stats.Subscriptions.Add(1)
	if group != "" {
		b.joinGroup(sub, group, rest)
		return
	}
	b.filters.Insert(rest, sub)
}

// remove makes publishes not find the subscription any more. No lock is held.
func (b *Broker) remove(t *Turn, sub *subscription) {
	b.stats.Subscriptions.Add(-1)
	b.memory.Credit(memory.Subscriptions, sub.memory())
	if sub.group != nil {
		b.leaveGroup(t, sub)
		return
	}
	b.filters.Remove(sub.filter, sub)
}

// splitShare gives the group's name, empty for a filter that isn't shared, and
// the filter that publishes are matched with.
func splitShare(filter string) (group, rest string) {
	group, rest, shared, _ := topic.SplitShare(filter)
	if !shared {
		return "", filter
	}
	return group, rest
}

func validFilter(filter string) bool {
	_, rest, shared, valid := topic.SplitShare(filter)
	if !shared {
		return topic.ValidFilter(filter)
	}
	return valid && topic.ValidFilter(rest)
}

// unsubscribe handles UNSUBSCRIBE [MQTT-3.10.4].
func (c *Conn) unsubscribe(t *Turn, p *mqtt.Unsubscribe) error {
	if c.ackTooLarge(len(p.Filters)) {
		return errAckTooLarge
	}
	s := c.session
	codes := make([]mqtt.ReasonCode, len(p.Filters))
	var gone []*subscription
	c.b.journal.Admit()
	t.work += len(p.Filters)
	s.mu.Lock()
	for i, filter := range p.Filters {
		sub := s.subs[string(filter)]
		switch {
		case sub == nil && !validFilter(string(filter)):
			codes[i] = mqtt.TopicFilterInvalid
			continue
		case sub == nil || s.conn != c:
			codes[i] = mqtt.NoSubscriptionExisted
			continue
		}
		delete(s.subs, sub.filter)
		s.filterBytes -= int32(len(sub.filter))
		sub.gone = true
		gone = append(gone, sub)
	}
	s.mu.Unlock()
	for _, sub := range gone {
		c.b.remove(t, sub)
	}
	answer := ack{typ: mqtt.UNSUBACK, id: p.PacketID, codes: codes}
	if seq := c.b.deleteSubscriptions(s, gone); seq != 0 {
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
	return c.maxPacket > 0 && fixed+codes > c.maxPacket && len(mqtt.AppendSuback(nil, c.version, 1, make([]mqtt.ReasonCode, codes), "")) > c.maxPacket
}
