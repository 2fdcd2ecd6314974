package crashtest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"holdfast/internal/mqtt"
)

// publisher sends numbered messages at QoS 1 or 2 and owns them until they are
// acknowledged: after a reconnect it sends again, in their order, what is open,
// a PUBLISH with DUP and its packet identifier [MQTT-4.4.0-1], or the PUBREL.
type publisher struct {
	name   string
	number int
	topic  string
	qos    byte
	retain bool
	rng    *rand.Rand
	window int // messages under way at a time, at most

	session bool // the broker has confirmed one
	next    uint64
	open    []*outgoing // in the order sent

	sent         uint64          // when the life began: the last message that had been sent,
	unsafe       map[uint64]bool // and those of them that the broker had not taken over
	settledAt    uint64          // the last message of the last settlement
	highest      uint64          // of the sequence numbers acknowledged
	acknowledged int             // by PUBACK or PUBREC: the broker has taken them over
	sessionsLost int
}

// dropRarity is after how many packets, on the average, a client drops a
// connection that was good, and makes another.
const dropRarity = 400

// outgoing is a message under way.
type outgoing struct {
	message
	id       uint16
	payload  []byte
	received bool // PUBREC has come: only PUBCOMP is awaited
}

// prepare remembers, between two lives, what is safe on the broker's disk.
func (p *publisher) prepare() {
	p.sent, p.unsafe = p.next, map[uint64]bool{}
	for _, o := range p.open {
		if !o.received {
			p.unsafe[o.seq] = true
		}
	}
}

// wasSafe says whether the broker had acknowledged the message in an earlier
// life. It reads only what prepare wrote: subscribers may ask during a life.
func (p *publisher) wasSafe(seq uint64) bool { return seq <= p.sent && !p.unsafe[seq] }

// settle sets the last message that the publisher sends when the run settles.
func (p *publisher) settle() { p.settledAt = p.next + 1 }

func (p *publisher) live(l *life) error {
	last := uint64(1<<63 - 1)
	if l.settle {
		last = p.settledAt
		select {
		case <-l.attended.fired: // nobody may miss the last messages
		case <-l.dead:
			return nil
		}
	}
	for {
		again, err := p.work(l, last)
		if err != nil {
			return l.ended(p.name, err)
		}
		if !again {
			return nil
		}
	}
}

// work is one connection. again: the publisher has dropped it and wants another.
func (p *publisher) work(l *life, last uint64) (again bool, err error) {
	k, err := p.connect(l)
	if err != nil {
		return false, err
	}
	defer k.close()
	for p.rng.IntN(dropRarity) > 0 {
		for len(p.open) < p.window && p.next < last {
			p.send(k)
		}
		if len(p.open) == 0 && p.next == last {
			return false, k.goodbye(mqtt.Disconnect{})
		}
		in, err := k.exchange()
		if err != nil {
			return false, err
		}
		if err := p.handle(l, k, in); err != nil {
			return false, err
		}
	}
	return true, nil
}

// connect resumes the session and sends again what is open.
func (p *publisher) connect(l *life) (*link, error) {
	k, ack, err := dial(l.addr, mqtt.Connect{ClientID: []byte(p.name), SessionExpiry: sessionExpiry, KeepAlive: 60})
	if err != nil {
		return nil, err
	}
	l.news.count()
	if p.session && !ack.SessionPresent {
		p.sessionsLost++
		// What was taken over is the broker's; the rest is sent as if for the first time.
		p.open = slices.DeleteFunc(p.open, func(o *outgoing) bool { return o.received })
	}
	p.session = true
	for _, o := range p.open {
		if o.received {
			k.ack(mqtt.PUBREL, o.id, mqtt.Success)
		} else {
			p.publish(k, o, ack.SessionPresent)
		}
	}
	return k, nil
}

// send begins the next message.
func (p *publisher) send(k *link) {
	p.next++
	o := &outgoing{message: message{p.number, p.next}, id: p.freeID()}
	padding := p.rng.IntN(100)
	if p.rng.IntN(50) == 0 {
		padding = p.rng.IntN(20_000)
	}
	o.payload = o.message.payload(p.rng, padding)
	p.open = append(p.open, o)
	p.publish(k, o, false)
}

func (p *publisher) publish(k *link, o *outgoing, dup bool) {
	k.out = mqtt.AppendPublish(k.out, mqtt.V5, &mqtt.Publish{
		Dup: dup, Retain: p.retain, QoS: p.qos, PacketID: o.id, Topic: []byte(p.topic), Payload: o.payload,
	})
}

// freeID is the lowest packet identifier that is free: the sooner one is used
// again, the sooner it shows if the broker takes it for the one before.
func (p *publisher) freeID() uint16 {
	for id := uint16(1); ; id++ {
		if p.find(id) < 0 {
			return id
		}
	}
}

func (p *publisher) find(id uint16) int {
	return slices.IndexFunc(p.open, func(o *outgoing) bool { return o.id == id })
}

func (p *publisher) handle(l *life, k *link, in packet) error {
	var a mqtt.Ack
	if err := a.Decode(mqtt.V5, in.Type, in.Body); err != nil {
		return fmt.Errorf("%w: %v: %w", errBroken, in.Type, err)
	}
	i := p.find(a.PacketID)
	if i < 0 {
		return fmt.Errorf("%w: %v for packet identifier %d, which is not under way", errBroken, in.Type, a.PacketID)
	}
	o := p.open[i]
	switch {
	case in.Type == mqtt.PUBCOMP && o.received:
		// Whatever the code: 0x92 says that the PUBREL had been taken before.
		p.open = slices.Delete(p.open, i, i+1)
		l.work.count()
		return nil
	case a.Code.Failed():
		return fmt.Errorf("%w: %v was refused: %v %s", errBroken, o.message, a.Code, a.ReasonString)
	case in.Type == mqtt.PUBACK && p.qos == 1:
		p.tookOver(o)
		p.open = slices.Delete(p.open, i, i+1)
		l.work.count()
		return nil
	case in.Type == mqtt.PUBREC && p.qos == 2:
		if !o.received {
			p.tookOver(o)
		}
		o.received = true
		k.ack(mqtt.PUBREL, o.id, mqtt.Success)
		l.work.count()
		return nil
	}
	return fmt.Errorf("%w: %v for a message at QoS %d", errBroken, in.Type, p.qos)
}

// tookOver counts a message that the broker answers for from now on.
func (p *publisher) tookOver(o *outgoing) {
	p.acknowledged++
	p.highest = max(p.highest, o.seq)
}
