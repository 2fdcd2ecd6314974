package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/acks"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// noRoom is the Reason String of a message that a subscriber's queue has no room for.
const noRoom = "no room for this message in the queue of a subscriber (--max-queued-bytes, --max-queued-messages, --max-total-queued-bytes)"

// Errors that end the connection of a client which breaks a limit that it was told.
var (
	errReceiveMaximum = &mqtt.Error{Code: mqtt.ReceiveMaximumExceeded, Reason: "four times as many QoS 2 publishes wait for their PUBREL as the server's Receive Maximum allows"}
	errResponseTopic  = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "the response topic is empty"}
	errPayloadFormat  = &mqtt.Error{Code: mqtt.PayloadFormatInvalid, Reason: "the Payload Format Indicator promises UTF-8 and the payload is not"}
	errNoRoom         = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: noRoom}
)

// handlePublish handles PUBLISH [MQTT-3.3].
func (c *Conn) handlePublish(t *session.Turn, header byte, body []byte) error {
	p := &t.Publish
	if err := p.Decode(c.Protocol, header, body); err != nil {
		return err
	}
	c.decoding = false
	if err := c.aliases.Resolve(p, c.b.Limits(), c.b.Memory); err != nil {
		return err
	}
	if p.Props.EmptyResponseTopic() && !c.b.reservedTopics.Handled(p.Topic) { // a handler has an answer of its own
		return errResponseTopic
	}
	t.In.Add(p.QoS, len(p.Payload))
	switch p.QoS {
	case 1:
		if err := c.waitForPlace(t, p.QoS); err != nil {
			return err
		}
	case 2:
		known, room := c.session.MayReceive(p.PacketID)
		switch {
		case known: // sent again although we have it: say so again [MQTT-4.3.3-10]
			c.acknowledge(t, acks.Ack{Type: mqtt.PUBREC, ID: p.PacketID})
			return nil
		case !room && c.Protocol < mqtt.V5:
			return errNoRoom
		case !room:
			c.b.Counters.Rejected.Add(1)
			c.acknowledge(t, acks.Ack{Type: mqtt.PUBREC, ID: p.PacketID, Code: mqtt.QuotaExceeded, Reason: "the server has no memory for another handshake of QoS 2 (--max-memory)"})
			return nil
		}
		if err := c.waitForPlace(t, p.QoS); err != nil {
			return err
		}
	}
	answer, batch, answered := c.accept(t, p)
	if p.QoS == 0 && answer.Code == mqtt.PayloadFormatInvalid {
		return errPayloadFormat // the only way to say so (MQTT 5, section 3.3.2.3.2)
	}
	if answered || p.QoS == 0 {
		return nil
	}
	if c.Protocol < mqtt.V5 && answer.Code == mqtt.QuotaExceeded {
		return errNoRoom // its PUBACK could not say that the message was refused
	}
	answer.Type, answer.ID = mqtt.PUBACK, p.PacketID
	if p.QoS == 2 {
		answer.Type = mqtt.PUBREC
		if !answer.Code.Failed() {
			c.session.Receive(&c.Peer, p.PacketID)
			c.receiving.Add(1)
			c.handshakes++
		}
	}
	c.acknowledgeWhenDurable(t, answer, batch)
	return nil
}

// handshakeSlack bounds, as a multiple of Receive Maximum, the QoS 2 handshakes that a
// client has begun and not ended with PUBREL.
const handshakeSlack = 4

// waitForPlace holds the reader up until there is a place in our Receive Maximum for
// the client's next QoS 1 or 2 publish. Clients do send more than they were told they
// may (MQTT.js, and Mosquitto's bridge, with every burst), and a DISCONNECT 0x93 would
// cost each of them a reconnection and as many duplicates; held up they cost nothing.
// A client of MQTT 3.1.1 can't be told a Receive Maximum: waitForRoom holds it up.
//
// A QoS 2 handshake is different: only the client's PUBREL ends it, which may come behind
// this publish in the stream. When handshakes take all places there is nothing to wait
// for, so the publish is accepted, up to handshakeSlack.
func (c *Conn) waitForPlace(t *session.Turn, qos byte) error {
	limit := c.b.Limits().ReceiveMaximum
	if int(c.receiving.Load()) < limit || c.Protocol < mqtt.V5 {
		return nil
	}
	t.Flush()
	c.Transport.Flush()
	if c.placeFreed == nil {
		c.placeFreed = make(chan struct{}, 1)
	}
	c.wantsPlace.Store(true)
	for n := int(c.receiving.Load()); n >= limit && n > int(c.handshakes); n = int(c.receiving.Load()) {
		select {
		case <-c.placeFreed: // by the acknowledgement that the disk or the handler owes
		case <-c.b.Journal.Over():
			return errEnding
		}
	}
	c.wantsPlace.Store(false)
	if c.b.may != nil {
		t.Grants = c.b.may.Grants(c.Identity()).Version
	}
	if qos == 2 && int(c.handshakes) >= handshakeSlack*limit {
		_ = c.b.WaitDurable(c.b.Journal.Last()) // what is due to the client goes before the DISCONNECT
		return errReceiveMaximum
	}
	return nil
}

// freePlace gives back a place in our Receive Maximum. From any goroutine.
func (c *Conn) freePlace() {
	c.receiving.Add(-1)
	if c.wantsPlace.Load() { // waitForPlace sets wantsPlace before it reads receiving: one of the two sees the other
		select {
		case c.placeFreed <- struct{}{}:
		default:
		}
	}
}

// accept gives the publish to the handler of its topic, or routes it. The answer must
// wait for batch; answered: the handler acknowledges the publish.
func (c *Conn) accept(t *session.Turn, p *mqtt.Publish) (answer acks.Ack, batch journal.Seq, answered bool) {
	b := c.b
	if c.mayRequest(t, p.Topic) {
		c.requests.endpoint.Handle(t, p)
		return acks.Ack{}, 0, true
	}
	when, code, reason := c.JudgeTimed(p)
	if code != mqtt.Success {
		return acks.Ack{Code: code, Reason: reason}, 0, false
	}
	if when.Asked {
		answer, batch = c.publishLater(p, when)
		return answer, batch, false
	}
	o := &t.Out
	*o = c.outgoing(p)
	defer func() { o.Done(); *o = message.Outgoing{} }()
	with := message.PublishRows{Mute: c.Protocol < mqtt.V5}
	if p.QoS == 2 {
		with.Received, with.ID = c.session.OnDisk(), p.PacketID
	}
	if p.QoS > 0 || p.Retain {
		b.Journal.Admit()
		if b.Journal.Low() && b.NeedsDisk(t, o, &with) {
			b.Counters.Rejected.Add(1)
			return acks.Ack{Code: mqtt.QuotaExceeded, Reason: "the server's disk is nearly full (--disk-reserve)"}, 0, false
		}
	}
	matched, batch, code := b.Publish(t, o, &with)
	switch {
	case with.Unretained:
		b.Counters.Rejected.Add(1)
		if with.Mute {
			return acks.Ack{}, batch, false
		}
		return acks.Ack{Code: code, Reason: "the message was delivered, but not retained: the server holds as many retained messages as it may (--max-retained-messages, --max-retained-bytes, --max-retained-per-client)"}, batch, false
	case code == mqtt.QuotaExceeded:
		b.Counters.Rejected.Add(1)
		return acks.Ack{Code: code, Reason: noRoom}, 0, false
	case matched == 0 && p.QoS > 0:
		return acks.Ack{Code: mqtt.NoMatchingSubscribers}, batch, false
	}
	return acks.Ack{}, batch, false
}

// outgoing is a publish of the client's on its way.
func (c *Conn) outgoing(p *mqtt.Publish) message.Outgoing {
	o := message.Outgoing{Topic: p.Topic, Payload: p.Payload, RawProps: p.Props.Raw, QoS: p.QoS, Retain: p.Retain, Publisher: c.Client, Owner: c.session.OwnerRef()}
	if p.Retain {
		o.Quota = access.QuotaOf(c.b.may, c.Identity())
	}
	if p.Props.HasMessageExpiry {
		o.ExpiresAt = max(1, c.b.Now()+int64(p.Props.MessageExpiry)*1000) // 0 would be never
	}
	return o
}

// Judge says whether the client may publish this, and if not, why.
func (c *Conn) Judge(p *mqtt.Publish) (code mqtt.ReasonCode, reason string) {
	b := c.b
	switch {
	case c.TooManyLevels(p.Topic):
		return mqtt.TopicNameInvalid, "the topic name has too many levels"
	case c.TooManyLevels(p.Props.ResponseTopic):
		return mqtt.TopicNameInvalid, "the response topic has too many levels"
	case p.Props.NotAsFormatted(p.Payload):
		return mqtt.PayloadFormatInvalid, errPayloadFormat.Reason
	case b.reservedTopics.Protected(p.Topic) || !b.mayPublish(c, p.Topic):
		b.Counters.Unauthorized.Add(1)
		return mqtt.NotAuthorized, "not authorized for this topic"
	case !b.mayBeAnswered(c, p.Props.ResponseTopic):
		b.Counters.Unauthorized.Add(1)
		return mqtt.NotAuthorized, "the response topic must be one that the client may subscribe to"
	}
	return mqtt.Success, ""
}

// pubrel ends a QoS 2 publish of the client's.
func (c *Conn) pubrel(t *session.Turn, id uint16) {
	s := c.session
	s.Mu.Lock()
	on, known := s.Received[id]
	delete(s.Received, id)
	var batch journal.Seq
	if known && s.SID != 0 {
		a := c.b.Journal.Begin()
		a.Delete(rows.ReceivedKey(s.SID, id))
		batch = a.End(nil)
	}
	s.Mu.Unlock()
	if !known {
		// An earlier PUBREL, which is not on disk yet, may have ended it.
		c.acknowledgeWhenDurable(t, acks.Ack{Type: mqtt.PUBCOMP, ID: id, Code: mqtt.PacketIdentifierNotFound}, c.b.Journal.Last())
		return
	}
	if on == &c.Peer {
		c.handshakes--
	}
	// Only when that is on disk: the client may use the identifier again, and
	// after a crash we would take its next publish for this one.
	c.acknowledgeWhenDurable(t, acks.Ack{Type: mqtt.PUBCOMP, ID: id, Counted: on == &c.Peer}, batch)
}
