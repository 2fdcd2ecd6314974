package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/acks"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/subscribe"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// subscribe handles SUBSCRIBE [MQTT-3.8.4].
func (c *Conn) subscribe(t *session.Turn, body []byte) error {
	p := mqtt.Subscribe{Bounds: c.b.Limits().Packet()}
	if err := p.Decode(c.Protocol, body); err != nil {
		return err
	}
	c.decoding = false
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
		if i >= c.b.Limits().MaxSubscriptions {
			codes[i], reason = mqtt.QuotaExceeded, subscribe.TooMany
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
		if !c.b.WaitDurable(seq) {
			return errEnding
		}
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

// subscriber is the client as package subscribe sees it. The session is the connection's.
func (c *Conn) subscriber() *subscribe.Client {
	return &subscribe.Client{Session: c.session, Identity: c.Identity(), Bridge: c.bridge}
}

// subscribeOne makes one subscription of a SUBSCRIBE.
func (c *Conn) subscribeOne(o *mqtt.Subscription, id uint32) (sub *session.Subscription, replay *session.Replay, code mqtt.ReasonCode, reason string) {
	s := c.session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer != &c.Peer {
		return nil, nil, mqtt.UnspecifiedError, ""
	}
	return c.b.subscriptions.Make(c.subscriber(), o, id)
}

// unsubscribe handles UNSUBSCRIBE [MQTT-3.10.4].
func (c *Conn) unsubscribe(t *session.Turn, body []byte) error {
	p := mqtt.Unsubscribe{Bounds: c.b.Limits().Packet()}
	if err := p.Decode(c.Protocol, body); err != nil {
		return err
	}
	c.decoding = false
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
