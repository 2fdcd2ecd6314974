package broker

import (
	"unicode/utf8"

	"holdfast/internal/journal"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
)

// Errors that end the connection of a client which breaks a limit that it was told.
var (
	errReceiveMaximum = &mqtt.Error{Code: mqtt.ReceiveMaximumExceeded, Reason: "four times as many QoS 2 publishes wait for their PUBREL as the server's Receive Maximum allows"}
	errAliasRange     = &mqtt.Error{Code: mqtt.TopicAliasInvalid, Reason: "the topic alias is above the server's Topic Alias Maximum"}
	errAliasUnknown   = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "the topic alias stands for no topic yet"}
	errResponseTopic  = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "the response topic is empty"}
	errPayloadFormat  = &mqtt.Error{Code: mqtt.PayloadFormatInvalid, Reason: "the Payload Format Indicator promises UTF-8 and the payload is not"}
	errAliasBytes     = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "the topics of this connection's aliases take more bytes than they may"}
	errNoRoom         = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "no room for this message"}
)

// handlePublish handles PUBLISH [MQTT-3.3].
func (c *Conn) handlePublish(t *Turn, header byte, body []byte) error {
	p := &t.publish
	if err := p.Decode(c.version, header, body); err != nil {
		return err
	}
	c.decoding = false
	if err := c.resolveAlias(p); err != nil {
		return err
	}
	if namesNoResponseTopic(&p.Props) && !c.b.handled(p.Topic) { // a handler has an answer of its own
		return errResponseTopic
	}
	t.messagesIn++
	switch p.QoS {
	case 1:
		if err := c.waitForPlace(t, p.QoS); err != nil {
			return err
		}
	case 2:
		known, room := c.session.mayReceive(p.PacketID)
		switch {
		case known: // sent again although we have it: say so again [MQTT-4.3.3-10]
			c.acknowledge(t, ack{typ: mqtt.PUBREC, id: p.PacketID})
			return nil
		case !room && c.version < mqtt.V5:
			return errNoRoom
		case !room:
			c.b.stats.Rejected.Add(1)
			c.acknowledge(t, ack{typ: mqtt.PUBREC, id: p.PacketID, code: mqtt.QuotaExceeded, reason: "the server has no memory for another handshake of QoS 2"})
			return nil
		}
		if err := c.waitForPlace(t, p.QoS); err != nil {
			return err
		}
	}
	answer, batch, answered := c.accept(t, p)
	if p.QoS == 0 && answer.code == mqtt.PayloadFormatInvalid {
		return errPayloadFormat // the only way to say so (MQTT 5, section 3.3.2.3.2)
	}
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
			c.handshakes++
		}
	}
	c.acknowledgeWhenDurable(t, answer, batch)
	return nil
}

// handshakeSlack is how many times Receive Maximum the QoS 2 handshakes of a client
// may be that it has begun and only it can end.
const handshakeSlack = 4

// waitForPlace holds the reader up until there is a place in our Receive Maximum for
// the client's next QoS 1 or 2 publish. Clients do send more than they were told they
// may (MQTT.js, and Mosquitto's bridge, with every burst), and a DISCONNECT 0x93 would
// cost each of them a reconnection and as many duplicates; held up they cost nothing.
// A client of before MQTT 5 hasn't been told: waitForRoom holds it up.
//
// A QoS 2 handshake is different: to end it takes the client's PUBREL, which may stand
// in the stream behind this publish. When all places are taken by handshakes there is
// nothing to wait for, so the publish is let through, up to handshakeSlack.
func (c *Conn) waitForPlace(t *Turn, qos byte) error {
	limit := c.b.limits.ReceiveMaximum
	if int(c.receiving.Load()) < limit || c.version < mqtt.V5 {
		return nil
	}
	t.flush()
	c.tr.Flush()
	if c.placeFreed == nil {
		c.placeFreed = make(chan struct{}, 1)
	}
	c.wantsPlace.Store(true)
	for n := int(c.receiving.Load()); n >= limit && n > c.handshakes; n = int(c.receiving.Load()) {
		<-c.placeFreed // by the acknowledgement that the disk or the handler owes
	}
	c.wantsPlace.Store(false)
	if qos == 2 && c.handshakes >= handshakeSlack*limit {
		c.b.waitDurable(c.b.journal.Last()) // what is due to the client goes before the DISCONNECT
		return errReceiveMaximum
	}
	return nil
}

// freePlace gives back a place in our Receive Maximum. From any goroutine.
func (c *Conn) freePlace() {
	c.receiving.Add(-1)
	if c.wantsPlace.Load() { // asked after: waitForPlace looks in the other order
		select {
		case c.placeFreed <- struct{}{}:
		default:
		}
	}
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
	case c.TooManyLevels(p.Props.ResponseTopic):
		return ack{code: mqtt.TopicNameInvalid, reason: "the response topic has too many levels"}, 0, false
	case notAsFormatted(&p.Props, p.Payload):
		return ack{code: mqtt.PayloadFormatInvalid, reason: errPayloadFormat.Reason}, 0, false
	case b.protected(p.Topic) || !b.mayPublish(c, p.Topic):
		b.stats.Unauthorized.Add(1)
		return ack{code: mqtt.NotAuthorized, reason: "not authorized for this topic"}, 0, false
	}
	o := &t.out
	*o = outgoing{topic: p.Topic, payload: p.Payload, rawProps: p.Props.Raw, qos: p.QoS, retain: p.Retain, publisher: c.clientID}
	if p.Props.HasMessageExpiry {
		o.expiresAt = max(1, b.Now()+int64(p.Props.MessageExpiry)*1000) // 0 would be never
	}
	defer func() { o.done(); *o = outgoing{} }()
	with := alongside{mute: c.version < mqtt.V5}
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
	case with.unretained:
		b.stats.Rejected.Add(1)
		if with.mute {
			return ack{}, batch, false
		}
		return ack{code: code, reason: "the message was delivered, but not retained: the server holds as many retained messages as it may"}, batch, false
	case code == mqtt.QuotaExceeded:
		b.stats.Rejected.Add(1)
		return ack{code: code, reason: "no room for this message"}, 0, false
	case matched == 0 && p.QoS > 0:
		return ack{code: mqtt.NoMatchingSubscribers}, batch, false
	}
	return ack{}, batch, false
}

// namesNoResponseTopic says whether there is a Response Topic and it is empty: a topic
// name has at least one character [MQTT-4.7.3-1].
func namesNoResponseTopic(p *mqtt.PublishProps) bool {
	return p.HasResponseTopic && len(p.ResponseTopic) == 0
}

// notAsFormatted says whether the payload isn't the UTF-8 that its Payload Format
// Indicator promises. U+0000 may be in it: it is no string of the protocol's.
func notAsFormatted(p *mqtt.PublishProps, payload []byte) bool {
	return p.PayloadFormat == 1 && !utf8.Valid(payload)
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
		if known := c.aliasIn[a-1]; known != string(p.Topic) {
			more := int32(len(p.Topic) - len(known))
			if int(c.aliasInBytes+more) > c.b.limits.MaxAliasBytes || !c.b.memory.Take(memory.Subscriptions, int64(max(0, more))) {
				return errAliasBytes
			}
			c.b.memory.Charge(memory.Subscriptions, int64(min(0, more)))
			c.aliasInBytes += more
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

// Identifiers of QoS 2 publishes whose PUBREL is awaited are charged to the pool of
// memory in steps, for the most that there have been: the map doesn't shrink before the
// client goes with none.
const (
	receivedMemory = 48
	receivedStep   = 16
)

// mayReceive says whether a QoS 2 publish with this identifier is under way, and if not,
// whether there is memory for one.
func (s *Session) mayReceive(id uint16) (known, room bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known = s.received[id]; known || s.ended || len(s.received) < int(s.receivedRoom) {
		return known, true
	}
	if !s.b.memory.Take(memory.Sessions, receivedStep*receivedMemory) {
		return false, false
	}
	s.receivedRoom += receivedStep
	return false, true
}

// creditReceived gives back what received is charged with; s.mu is held.
func (s *Session) creditReceived() {
	s.b.memory.Credit(memory.Sessions, int64(s.receivedRoom)*receivedMemory)
	s.receivedRoom = 0
}

// receive notes a QoS 2 publish until its PUBREL.
func (s *Session) receive(c *Conn, id uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.received == nil {
		s.received = make(map[uint16]*Conn)
	}
	s.received[id] = c
	if len(s.received) > int(s.receivedRoom) && !s.ended { // read from disk
		s.b.memory.Charge(memory.Sessions, receivedStep*receivedMemory)
		s.receivedRoom += receivedStep
	}
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
	if on == c {
		c.handshakes--
	}
	// Only when that is on disk: the client may use the identifier again, and
	// after a crash we would take its next publish for this one.
	c.acknowledgeWhenDurable(t, ack{typ: mqtt.PUBCOMP, id: id, counted: on == c}, batch)
}
