package messages

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Publisher sends numbered messages at QoS 1 or 2 and owns them until they are
// acknowledged: after a reconnect it sends again, in their order, what is open,
// a PUBLISH with DUP and its packet identifier [MQTT-4.4.0-1], or the PUBREL.
type Publisher struct {
	name   string
	number int
	topic  string
	qos    byte
	retain bool
	rng    *rand.Rand
	window int // messages under way at a time, at most; fewer if the broker's Receive Maximum is

	session bool // the broker has confirmed a session
	next    uint64
	open    []*outgoing // in the order sent

	sent         uint64          // the last message that was sent before this life
	unsafe       map[uint64]bool // those up to sent that the broker had not acknowledged
	settledAt    uint64          // the last message of the last settlement
	Highest      uint64          // of the sequence numbers acknowledged
	Acknowledged int             // messages, by PUBACK or PUBREC
	SessionsLost int
}

// dropRarity is after how many packets, on average, a client closes a connection and makes
// a new one, although the broker is running.
const dropRarity = 400

// outgoing is a message under way.
type outgoing struct {
	message
	id       uint16
	payload  []byte
	received bool // PUBREC has come: only PUBCOMP is awaited
}

// NewPublisher makes a publisher with a window of messages under way.
func NewPublisher(number int, rng *rand.Rand, window int) *Publisher {
	return &Publisher{name: fmt.Sprintf("publisher%d", number), number: number, topic: messageTopic(number), qos: byte(1 + number%2), rng: rng, window: window}
}

// Prepare notes, between two lives, which messages the broker has acknowledged.
func (p *Publisher) Prepare() {
	p.sent, p.unsafe = p.next, map[uint64]bool{}
	for _, o := range p.open {
		if !o.received {
			p.unsafe[o.seq] = true
		}
	}
}

// wasSafe says whether the broker had acknowledged the message in an earlier
// life. It reads only what Prepare wrote, so subscribers may call it during a life.
func (p *Publisher) wasSafe(seq uint64) bool { return seq <= p.sent && !p.unsafe[seq] }

// Settle sets the last message that the publisher sends when the run settles.
func (p *Publisher) Settle() { p.settledAt = p.next + 1 }

// Live implements lives.Actor.
func (p *Publisher) Live(l *lives.Life) error {
	last := uint64(1<<63 - 1)
	if l.Settle {
		last = p.settledAt
		select {
		case <-l.Attended.Fired: // every subscriber is there to receive the last messages
		case <-l.Dead:
			return nil
		}
	}
	for {
		again, err := p.work(l, last)
		if err != nil {
			return l.Ended(p.name, err)
		}
		if !again {
			return nil
		}
	}
}

// work is one connection. again is true if the publisher has closed it to make another.
func (p *Publisher) work(l *lives.Life, last uint64) (again bool, err error) {
	k, err := p.connect(l)
	if err != nil {
		return false, err
	}
	defer k.Close()
	for p.rng.IntN(dropRarity) > 0 {
		for len(p.open) < p.window && p.next < last {
			p.send(k)
		}
		if len(p.open) == 0 && p.next == last {
			return false, k.Disconnect(mqtt.Disconnect{})
		}
		in, err := k.Exchange()
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
func (p *Publisher) connect(l *lives.Life) (*lives.Link, error) {
	k, ack, err := lives.Dial(l, mqtt.Connect{ClientID: []byte(p.name), SessionExpiry: lives.SessionExpiry, KeepAlive: 60})
	if err != nil {
		return nil, err
	}
	l.Arrivals.Count()
	if p.session && !ack.SessionPresent {
		p.SessionsLost++
		// Messages with a PUBREC were acknowledged; the others are sent as new ones.
		p.open = slices.DeleteFunc(p.open, func(o *outgoing) bool { return o.received })
	}
	p.session = true
	if most := int(ack.ReceiveMaximum); most > 0 {
		p.window = min(p.window, most)
	}
	for _, o := range p.open {
		if o.received {
			k.Ack(mqtt.PUBREL, o.id, mqtt.Success)
		} else {
			p.publish(k, o, ack.SessionPresent)
		}
	}
	return k, nil
}

// send begins the next message.
func (p *Publisher) send(k *lives.Link) {
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

func (p *Publisher) publish(k *lives.Link, o *outgoing, dup bool) {
	k.Out = mqtt.AppendPublish(k.Out, mqtt.V5, &mqtt.Publish{
		Dup: dup, Retain: p.retain, QoS: p.qos, PacketID: o.id, Topic: []byte(p.topic), Payload: o.payload,
	})
}

// freeID is the lowest free packet identifier. Reusing identifiers soon shows whether the
// broker mistakes a new message for the one that had the identifier before.
func (p *Publisher) freeID() uint16 {
	for id := uint16(1); ; id++ {
		if p.find(id) < 0 {
			return id
		}
	}
}

func (p *Publisher) find(id uint16) int {
	return slices.IndexFunc(p.open, func(o *outgoing) bool { return o.id == id })
}

func (p *Publisher) handle(l *lives.Life, k *lives.Link, in lives.Packet) error {
	var a mqtt.Ack
	if err := a.Decode(mqtt.V5, in.Type, in.Body); err != nil {
		return fmt.Errorf("%w: %v: %w", lives.ErrBroken, in.Type, err)
	}
	i := p.find(a.PacketID)
	if i < 0 {
		return fmt.Errorf("%w: %v for packet identifier %d, which is not under way", lives.ErrBroken, in.Type, a.PacketID)
	}
	o := p.open[i]
	switch {
	case in.Type == mqtt.PUBCOMP && o.received:
		// Any code will do: 0x92 says that an earlier PUBREL was processed.
		p.open = slices.Delete(p.open, i, i+1)
		l.Acks.Count()
		return nil
	case a.Code.Failed():
		return fmt.Errorf("%w: %v was refused: %v %s", lives.ErrBroken, o.message, a.Code, a.ReasonString)
	case in.Type == mqtt.PUBACK && p.qos == 1:
		p.tookOver(o)
		p.open = slices.Delete(p.open, i, i+1)
		l.Acks.Count()
		return nil
	case in.Type == mqtt.PUBREC && p.qos == 2:
		if !o.received {
			p.tookOver(o)
		}
		o.received = true
		k.Ack(mqtt.PUBREL, o.id, mqtt.Success)
		l.Acks.Count()
		return nil
	}
	return fmt.Errorf("%w: %v for a message at QoS %d", lives.ErrBroken, in.Type, p.qos)
}

// tookOver counts a message that the broker has acknowledged.
func (p *Publisher) tookOver(o *outgoing) {
	p.Acknowledged++
	p.Highest = max(p.Highest, o.seq)
}
