package broker

import (
	"holdfast/internal/journal"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
)

// will is what a client left to be published if it goes without saying so.
type will struct {
	message *Message // one reference
	delay   uint32   // seconds
	due     int64    // on the wall clock in ms, while the client is away; 0: it is connected
	number  uint64   // of its row: the session's, or its own if the session is not on disk; 0: it has none
	charged int64    // bytes that the pool of memory is charged with for it
}

// willOverhead is about what a will takes of memory besides its bytes: itself, its
// Message and a timer.
const willOverhead = 300

// willMemory is what a will of so many bytes is charged with.
func willMemory(topic, props, payload []byte) int64 {
	return int64(len(topic)+len(props)+len(payload)) + willOverhead
}

// changeWill puts the will of the client's CONNECT, if it has one, in place of the one
// that the session has: the client is back in time [MQTT-3.1.3-9]. It says false, and
// changes nothing, if there is no memory for it; one that takes no more than the old one
// always has its place. s.mu is held.
func (b *Broker) changeWill(s *Session, p *mqtt.Connect) bool {
	var size, old int64
	if s.will != nil {
		old = s.will.charged
	}
	if p.HasWill {
		size = willMemory(p.Will.Topic, p.Will.Props.Raw, p.Will.Payload)
	}
	if more := size - old; more > 0 && !b.memory.Take(memory.Sessions, more) {
		return false
	} else if more < 0 {
		b.memory.Charge(memory.Sessions, more)
	}
	if s.will != nil {
		s.will.message.release()
		s.will = nil
	}
	if p.HasWill {
		s.will = newWill(&p.Will, s.id)
		s.will.charged = size
	}
	return true
}

// newWill copies the will out of the client's CONNECT. Its expiry counts from its publication.
func newWill(w *mqtt.Will, client string) *will {
	props := mqtt.AppendForwardProps(nil, w.Props.Raw)
	m := newKeptMessage(len(w.Topic) + len(props) + len(w.Payload))
	o := outgoing{topic: w.Topic, props: props, propsReady: true, payload: w.Payload, qos: w.QoS, retain: w.Retain, publisher: client}
	o.fill(m, props)
	if w.Props.HasMessageExpiry {
		m.expiresAt = max(1, int64(w.Props.MessageExpiry)*1000) // an interval until it is published; 0 would be never
	}
	return &will{message: m, delay: w.DelayInterval}
}

// publishWill publishes a will whose time has come; its row goes with that. No lock
// is held.
func (b *Broker) publishWill(t *Turn, w *will) {
	if w.message.expiresAt != 0 {
		w.message.expiresAt += b.Now() // it was an interval until now
	}
	o := w.message.routed()
	defer func() { // from here on, those that have it to deliver or to retain are charged
		o.done()
		b.memory.Credit(memory.Sessions, w.charged)
	}()
	b.stats.Wills.Add(1)
	with := alongside{will: w.number}
	if _, _, code := b.publishAny(t, &o, &with); code.Failed() {
		b.stats.Rejected.Add(1)
		b.log.Warn("a will found no room", "topic", string(o.topic), "delivered", with.unretained)
		b.commit(t, &alongside{will: w.number}) // or it would be published after the next start
	}
}

// publishAny routes a message, stores it if it is to be retained, and journals
// both with what goes alongside. It says how many subscriptions matched, which
// batch an acknowledgement must wait for, and, if no subscriber got it, why.
//
// A message that can't be retained for lack of room goes to its subscribers all the
// same, and with.unretained says so: that others fill the store of retained messages
// must not keep a device from telling what it has to tell. What was retained before it
// stays.
func (b *Broker) publishAny(t *Turn, o *outgoing, with *alongside) (matched int, batch journal.Seq, code mqtt.ReasonCode) {
	if o.qos > 0 && b.refuses(t, o) {
		return 0, 0, mqtt.QuotaExceeded
	}
	if o.retain {
		stripe := b.retained.stripe(o.topic)
		stripe.Lock()
		stored := b.store(o)
		if !stored && b.retained.deadlines.due(b.Now()) != nil {
			stripe.Unlock()
			b.expireRetained(b.Now(), expiredPerPublish)
			stripe.Lock()
			stored = b.store(o)
		}
		defer stripe.Unlock()
		switch {
		case !stored:
			with.unretained, code = true, mqtt.QuotaExceeded
			if !with.mute {
				with.received = 0 // a failure in PUBREC ends the handshake [MQTT-4.3.3-9]
			}
		case counts(o.topic):
			with.retained = o.kept()
		}
	}
	matched = b.route(t, o)
	return matched, b.commit(t, with), code
}
