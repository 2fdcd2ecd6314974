package crashtest

import (
	"fmt"
	"time"

	"holdfast/internal/mqtt"
)

// retainedTopic is where a retainer, a publisher with RETAIN and one message
// under way at a time, keeps its latest message.
func retainedTopic(number int) string { return fmt.Sprintf("crashtest/retained/%d", number) }

const retainedFilter = "crashtest/retained/+"

// retainedPatience is how long retained messages may take to come.
const retainedPatience = 5 * time.Second

// checkRetained subscribes as a new client does, before anybody publishes in
// this life, and compares: each topic has the latest message that was
// acknowledged, or a later one that was sent. It gives the number of topics that
// have an older message or none.
func checkRetained(l *life, retainers []*publisher) (lost int, err error) {
	k, _, err := dial(l.addr, mqtt.Connect{CleanStart: true, ClientID: []byte("retained-reader")})
	if err != nil {
		return 0, err
	}
	defer k.close()
	have := map[int]uint64{}
	take := func(p packet) error { return takeRetained(k, p, have) }
	if _, err := k.subscribe(retainedFilter, 1, take); err != nil {
		return 0, err
	}
	late := time.Now().Add(retainedPatience)
	for {
		lost = 0
		for i, r := range retainers {
			if have[i] < r.highest {
				lost++
			}
			if have[i] > r.next {
				return 0, fmt.Errorf("%w: %q retains message %d, of which %d were sent", errBroken, retainedTopic(i), have[i], r.next)
			}
		}
		left := time.Until(late)
		if lost == 0 || left <= 0 {
			return lost, nil
		}
		if err := k.flush(); err != nil {
			return lost, err
		}
		p, ok, err := k.readFor(left)
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

func takeRetained(k *link, p packet, have map[int]uint64) error {
	var d mqtt.Publish
	if p.Type != mqtt.PUBLISH {
		return fmt.Errorf("%w: unexpected %v", errBroken, p.Type)
	}
	if err := d.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	m, err := parseMessage(d.Payload)
	if err != nil {
		return err
	}
	if !d.Retain || string(d.Topic) != retainedTopic(m.publisher) {
		return fmt.Errorf("%w: %v came on %q, retained: %v", errBroken, m, d.Topic, d.Retain)
	}
	have[m.publisher] = max(have[m.publisher], m.seq)
	if d.QoS == 1 {
		k.ack(mqtt.PUBACK, d.PacketID, mqtt.Success)
	}
	return nil
}
