package messages

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// retainedTopic is where a retainer, a publisher with RETAIN and one message
// under way at a time, keeps its latest message.
func retainedTopic(number int) string { return fmt.Sprintf("crashtest/retained/%d", number) }

// NewRetainer makes a retainer.
func NewRetainer(number int, rng *rand.Rand) *Publisher {
	return &Publisher{name: fmt.Sprintf("retainer%d", number), number: number, topic: retainedTopic(number), qos: byte(1 + number%2), rng: rng, window: 1, retain: true}
}

const retainedFilter = "crashtest/retained/+"

// retainedPatience is how long the broker may take to send retained messages.
const retainedPatience = 5 * time.Second

// CheckRetained subscribes as a new client does, before the publishers begin this
// life, and compares: each topic must have the latest message that was acknowledged, or a
// later one that was sent. It returns the number of topics with an older message or none.
func CheckRetained(l *lives.Life, retainers []*Publisher) (lost int, err error) {
	k, _, err := lives.Dial(l, mqtt.Connect{CleanStart: true, ClientID: []byte("retained-reader")})
	if err != nil {
		return 0, err
	}
	defer k.Close()
	have := map[int]uint64{}
	take := func(p lives.Packet) error { return takeRetained(k, p, have) }
	if _, err := k.Subscribe(retainedFilter, 1, take); err != nil {
		return 0, err
	}
	late := time.Now().Add(retainedPatience)
	for {
		lost = 0
		for i, r := range retainers {
			if have[i] < r.Highest {
				lost++
			}
			if have[i] > r.next {
				return 0, fmt.Errorf("%w: %q retains message %d, of which %d were sent", lives.ErrBroken, retainedTopic(i), have[i], r.next)
			}
		}
		left := time.Until(late)
		if lost == 0 || left <= 0 {
			return lost, nil
		}
		if err := k.Flush(); err != nil {
			return lost, err
		}
		p, ok, err := k.ReadFor(left)
		if err != nil {
			return lost, err
		}
		if ok {
			if err := take(p); err != nil {
				return lost, err
			}
		}
	}
}

func takeRetained(k *lives.Link, p lives.Packet, have map[int]uint64) error {
	var d mqtt.Publish
	if p.Type != mqtt.PUBLISH {
		return fmt.Errorf("%w: unexpected %v", lives.ErrBroken, p.Type)
	}
	if err := d.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
		return fmt.Errorf("%w: %w", lives.ErrBroken, err)
	}
	m, err := parseMessage(d.Payload)
	if err != nil {
		return err
	}
	if !d.Retain || string(d.Topic) != retainedTopic(m.publisher) {
		return fmt.Errorf("%w: %v came on %q, retained: %v", lives.ErrBroken, m, d.Topic, d.Retain)
	}
	have[m.publisher] = max(have[m.publisher], m.seq)
	if d.QoS == 1 {
		k.Ack(mqtt.PUBACK, d.PacketID, mqtt.Success)
	}
	return nil
}
