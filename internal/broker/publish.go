package broker

import (
	"holdfast/internal/journal"
	"holdfast/internal/mqtt"
)

// Errors that end the connection of a client which breaks a limit that it was told.
var (
	errReceiveMaximum = &mqtt.Error{Code: mqtt.ReceiveMaximumExceeded, Reason: "more QoS 1 and 2 publishes are under way than the server's Receive Maximum"}
	errAliasRange     = &mqtt.Error{Code: mqtt.TopicAliasInvalid, Reason: "the topic alias is above the server's Topic Alias Maximum"}
	errAliasUnknown   = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "the topic alias stands for no topic yet"}
	errNoRoom         = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "no room for this message"}
)

// handlePublish handles PUBLISH [MQTT-3.3].
func (c *Conn) handlePublish(t *Turn, header byte, body []byte) error {
	p := &t.publish
	if err := p.Decode(c.version, header, body); err != nil {
		return err
	}
	if err := c.resolveAlias(p); err != nil {
		return err
	}
	t.messagesIn++
	switch p.QoS {
	case 1:
		if c.receivesTooMuch() {
			return errReceiveMaximum
		}
	case 2:
		if c.session.isReceived(p.PacketID) {
			// Sent again although we have it: say so again [MQTT-4.3.3-10].
			c.acknowledge(t, ack{typ: mqtt.PUBREC, id: p.PacketID})
			return nil
		}
		if c.receivesTooMuch() {
			return errReceiveMaximum
		}
	}
	answer, batch, answered := c.accept(t, p)
	if answered || p.QoS == 0 {
		return nil
	}
	if c.version < mqtt.V5 && answer.code == mqtt.QuotaExceeded {
		return errNoRoom // its PUBACK could not say that the message was refused
	}
	answer.typ, answer.id = mqtt.PUBACK, p.PacketID
	if p.QoS == 2 {
		answer.typ = mqtt.PUBREC
		if !answer.code.Failed() {
			c.session.receive(c, p.PacketID)
			c.receiving.Add(1)
		}
	}
	c.acknowledgeWhenDurable(t, answer, batch)
	return nil
}

// receivesTooMuch says whether the client has no place left in our Receive Maximum
// for the QoS 1 or 2 publish that it has sent. A client of MQTT 3.1.1 hasn't been
// told of one: it is only held up, by waitForRoom.
func (c *Conn) receivesTooMuch() bool {
	return int(c.receiving.Load()) >= c.b.limits.ReceiveMaximum && c.version == mqtt.V5
}

// accept gives the publish to its handler, or routes it. The answer must wait
// for batch; answered: the handler gives it.
func (c *Conn) accept(t *Turn, p *mqtt.Publish) (answer ack, batch journal.Seq, answered bool) {
	b := c.b
	if b.handled(p.Topic) && b.mayPublish(c, p.Topic) {
		if c.endpoint == nil {
			c.endpoint = b.handler.Open(c)
		}
		c.endpoint.Handle(t, p)
		return ack{}, 0, true
	}
	switch {
	case topicLevels(p.Topic) > b.limits.MaxTopicLevels:
		return ack{code: mqtt.TopicNameInvalid, reason: "the topic name has too many levels"}, 0, false
	case b.protected(p.Topic) || !b.mayPublish(c, p.Topic):
		b.stats.Unauthorized.Add(1)
		return ack{code: mqtt.NotAuthorized, reason: "not authorized for this topic"}, 0, false
	}
	o := &t.out
	*o = outgoing{topic: p.Topic, payload: p.Payload, rawProps: p.Props.Raw, qos: p.QoS, retain: p.Retain, from: c.session}
	if p.Props.HasMessageExpiry {
		o.expiresAt = b.Now() + int64(p.Props.MessageExpiry)*1000
	}
	defer func() { o.done(); *o = outgoing{} }()
	with := alongside{}
	if p.QoS == 2 {
		with.received, with.id = c.session.onDisk(), p.PacketID
	}
	if p.QoS > 0 || p.Retain {
		b.journal.Admit()
		if b.journal.Low() && b.needsDisk(t, o, &with) {
			b.stats.Rejected.Add(1)
			return ack{code: mqtt.QuotaExceeded, reason: "the server's disk is nearly full"}, 0, false
		}
	}
	matched, batch, code := b.publishAny(t, o, &with)
	switch {
	case code == mqtt.QuotaExceeded:
		b.stats.Rejected.Add(1)
		return ack{code: code, reason: "no room for this message"}, 0, false
	case matched == 0 && p.QoS > 0:
		return ack{code: mqtt.NoMatchingSubscribers}, batch, false
	}
	return ack{}, batch, false
}

// resolveAlias learns a topic alias, or puts the topic that it stands for in its
// place [MQTT-3.3.2-7 and following].
func (c *Conn) resolveAlias(p *mqtt.Publish) error {
	if !p.Props.HasTopicAlias {
		return nil
	}
	a := int(p.Props.TopicAlias)
	if a > c.b.limits.TopicAliasMaximum {
		return errAliasRange
	}
	if len(p.Topic) > 0 {
		for len(c.aliasIn) < a {
			c.aliasIn = append(c.aliasIn, "")
		}
		if c.aliasIn[a-1] != string(p.Topic) {
			c.aliasIn[a-1] = string(p.Topic)
		}
		return nil
	}
	if a > len(c.aliasIn) || c.aliasIn[a-1] == "" {
		return errAliasUnknown
	}
	p.Topic = viewOf(c.aliasIn[a-1])
	return nil
}

// onDisk gives the number of the session on disk, 0 if it isn't there.
func (s *Session) onDisk() (sid uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sid
}

func (s *Session) isReceived(id uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.received[id]
	return is
}

// receive notes a QoS 2 publish until its PUBREL.
func (s *Session) receive(c *Conn, id uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.received == nil {
		s.received = make(map[uint16]*Conn)
	}
	s.received[id] = c
}

// pubrel ends a QoS 2 publish of the client's.
func (c *Conn) pubrel(t *Turn, id uint16) {
	s := c.session
	s.mu.Lock()
	on, known := s.received[id]
	delete(s.received, id)
	var batch journal.Seq
	if known && s.sid != 0 {
		a := c.b.journal.Begin()
		a.Delete(receivedKey(s.sid, id))
		batch = a.End(nil)
	}
	s.mu.Unlock()
	if !known {
		c.writeAck(t, mqtt.PUBCOMP, id, mqtt.PacketIdentifierNotFound, "")
		return
	}
	// Only when that is on disk: the client may use the identifier again, and
	// after a crash we would take its next publish for this one.
	c.acknowledgeWhenDurable(t, ack{typ: mqtt.PUBCOMP, id: id, counted: on == c}, batch)
}
