// Package sessions has the actors of a crash test that make, resume and end sessions and
// subscriptions.
package sessions

import (
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// belief is what a client knows of something that it has asked for.
type belief uint8

const (
	no belief = iota
	maybe
	yes
)

// Roamer makes, resumes and ends a session and subscriptions in it. What the broker has
// acknowledged must be there after a kill, and what has ended must not come back. The
// roamer learns whether a subscription exists by publishing to its topic: no other client
// subscribes to that, so without the subscription the PUBACK has the code 0x10.
type Roamer struct {
	name    string
	rng     *rand.Rand
	session belief
	made    bool // the roamer has had a session
	subs    map[string]belief
	nonce   uint64
	Checks  int
	Resumed int
}

// NewRoamer makes a roamer.
func NewRoamer(name string, rng *rand.Rand) *Roamer {
	return &Roamer{name: name, rng: rng, subs: map[string]belief{}}
}

// Topics is how many topics a roamer has.
const Topics = 6

func (r *Roamer) topic(i int) string { return fmt.Sprintf("crashtest/roamers/%s/%d", r.name, i) }

// Live implements lives.Actor.
func (r *Roamer) Live(l *lives.Life) error {
	if r.session == no && r.made {
		r.session = maybe // it was ended, perhaps not on disk
	}
	for {
		k, err := r.connect(l, r.rng.IntN(12) == 0)
		if err != nil {
			if k != nil {
				k.Close()
			}
			return r.failed(l, err)
		}
		again, err := r.roam(l, k)
		k.Close()
		switch {
		case err != nil:
			return r.failed(l, err)
		case !again:
			return nil
		}
	}
}

func (r *Roamer) failed(l *lives.Life, err error) error { return l.Ended(r.name, err) }

// connect makes or resumes the session, and checks the Session Present flag.
func (r *Roamer) connect(l *lives.Life, clean bool) (*lives.Link, error) {
	before := r.session
	if clean || before == no {
		// The broker deletes the session, unless it is killed before.
		r.session = maybe
		r.doubt()
	}
	k, ack, err := lives.Dial(l, mqtt.Connect{ClientID: []byte(r.name), CleanStart: clean, SessionExpiry: lives.SessionExpiry, KeepAlive: 60})
	if err != nil {
		return nil, err
	}
	l.Arrivals.Count()
	l.Acks.Count()
	r.session, r.made = yes, true
	switch {
	case clean && ack.SessionPresent:
		return k, fmt.Errorf("%w: Session Present after a clean start", lives.ErrBroken)
	case !clean && before == yes && !ack.SessionPresent:
		return k, fmt.Errorf("%w: the session of %s was acknowledged and is gone", lives.ErrBroken, r.name)
	case !clean && before == no && ack.SessionPresent:
		return k, fmt.Errorf("%w: the session of %s had ended and is back", lives.ErrBroken, r.name)
	}
	if ack.SessionPresent {
		r.Resumed++
	} else {
		clear(r.subs)
	}
	return k, nil
}

// doubt notes that the subscriptions may or may not exist.
func (r *Roamer) doubt() {
	for t, b := range r.subs {
		if b == yes {
			r.subs[t] = maybe
		}
	}
}

// roam works on one connection. again is true if the roamer has closed it.
func (r *Roamer) roam(l *lives.Life, k *lives.Link) (again bool, err error) {
	if err := r.review(l, k); err != nil {
		return false, err
	}
	if l.Settle {
		return false, k.Disconnect(mqtt.Disconnect{})
	}
	for {
		t := r.topic(r.rng.IntN(Topics))
		switch r.rng.IntN(8) {
		case 0, 1, 2:
			err = r.subscribe(k, t)
		case 3, 4:
			err = r.unsubscribe(k, t)
		case 5:
			err = r.review(l, k)
		case 6:
			return true, k.Disconnect(mqtt.Disconnect{})
		case 7:
			r.session = maybe
			r.doubt()
			if err := k.Disconnect(mqtt.Disconnect{HasSessionExpiry: true}); err != nil {
				return false, err
			}
			if l.Doors == nil {
				r.session = no // for the next connection in the same life
			} // in a cluster the node may have died before it had passed DISCONNECT on
			return true, nil
		}
		if err != nil {
			return false, err
		}
		l.Acks.Count()
	}
}

func (r *Roamer) subscribe(k *lives.Link, topic string) error {
	qos := byte(r.rng.IntN(3))
	if r.subs[topic] == no {
		r.subs[topic] = maybe
	}
	code, err := k.Subscribe(topic, qos, r.other(k))
	if err != nil {
		return err
	}
	if code != mqtt.ReasonCode(qos) {
		return fmt.Errorf("%w: SUBACK %v for QoS %d", lives.ErrBroken, code, qos)
	}
	r.subs[topic] = yes
	return nil
}

func (r *Roamer) unsubscribe(k *lives.Link, topic string) error {
	before := r.subs[topic]
	if before == yes {
		r.subs[topic] = maybe
	}
	k.Out = mqtt.AppendUnsubscribe(k.Out, mqtt.V5, &mqtt.Unsubscribe{PacketID: 65534, Filters: [][]byte{[]byte(topic)}})
	for {
		p, err := k.Exchange()
		if err != nil {
			return err
		}
		if p.Type != mqtt.UNSUBACK {
			if err := r.other(k)(p); err != nil {
				return err
			}
			continue
		}
		var ack mqtt.Unsuback
		if err := ack.Decode(mqtt.V5, p.Body); err != nil || len(ack.Codes) != 1 {
			return fmt.Errorf("%w: UNSUBACK (%v)", lives.ErrBroken, err)
		}
		existed := ack.Codes[0] == mqtt.Success
		if before == yes && !existed || before == no && existed {
			return fmt.Errorf("%w: UNSUBACK %v for %q, which contradicts what %s was told before", lives.ErrBroken, ack.Codes[0], topic, r.name)
		}
		r.subs[topic] = no
		return nil
	}
}

// other handles what comes while an answer is awaited: messages of an earlier
// connection, redelivered.
func (r *Roamer) other(k *lives.Link) func(lives.Packet) error {
	return func(p lives.Packet) error {
		_, _, err := r.receive(k, p)
		return err
	}
}

// receive acknowledges a message; it gives its topic and nonce.
func (r *Roamer) receive(k *lives.Link, p lives.Packet) (topic, nonce string, err error) {
	switch p.Type {
	case mqtt.PUBLISH:
		var m mqtt.Publish
		if err := m.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
			return "", "", fmt.Errorf("%w: %w", lives.ErrBroken, err)
		}
		switch m.QoS {
		case 1:
			k.Ack(mqtt.PUBACK, m.PacketID, mqtt.Success)
		case 2:
			k.Ack(mqtt.PUBREC, m.PacketID, mqtt.Success)
		}
		return string(m.Topic), string(m.Payload), nil
	case mqtt.PUBREL:
		var a mqtt.Ack
		if err := a.Decode(mqtt.V5, p.Type, p.Body); err != nil {
			return "", "", fmt.Errorf("%w: %w", lives.ErrBroken, err)
		}
		k.Ack(mqtt.PUBCOMP, a.PacketID, mqtt.Success)
		return "", "", nil
	}
	return "", "", fmt.Errorf("%w: unexpected %v", lives.ErrBroken, p.Type)
}

// review publishes to every topic, and receives the messages of those that the session is
// subscribed to.
func (r *Roamer) review(l *lives.Life, k *lives.Link) error {
	want := map[string]string{} // by topic: the nonce
	for i := range Topics {
		r.nonce++
		t := r.topic(i)
		want[t] = fmt.Sprint(r.nonce)
		k.Out = mqtt.AppendPublish(k.Out, mqtt.V5, &mqtt.Publish{
			QoS: 1, PacketID: uint16(1 + i), Topic: []byte(t), Payload: []byte(want[t]),
		})
	}
	acknowledged, coming := 0, map[string]bool{}
	came := map[string]bool{}
	for acknowledged < Topics || len(coming) > 0 {
		p, err := k.Exchange()
		if err != nil {
			return err
		}
		if p.Type == mqtt.PUBACK {
			acknowledged++
			t, there, err := r.learn(p)
			if err != nil {
				return err
			}
			if there && !came[t] {
				coming[t] = true
			}
			l.Acks.Count()
			continue
		}
		t, nonce, err := r.receive(k, p)
		if err != nil {
			return err
		}
		if want[t] == nonce && nonce != "" {
			came[t] = true
			delete(coming, t)
		}
	}
	r.Checks++
	return nil
}

// learn reads from a PUBACK whether the topic has a subscriber.
func (r *Roamer) learn(p lives.Packet) (topic string, there bool, err error) {
	var a mqtt.Ack
	if err := a.Decode(mqtt.V5, mqtt.PUBACK, p.Body); err != nil || a.PacketID == 0 || a.PacketID > Topics {
		return "", false, fmt.Errorf("%w: PUBACK (%v)", lives.ErrBroken, err)
	}
	topic = r.topic(int(a.PacketID) - 1)
	there = a.Code != mqtt.NoMatchingSubscribers
	switch {
	case a.Code.Failed():
		return "", false, fmt.Errorf("%w: a publish was refused: %v %s", lives.ErrBroken, a.Code, a.ReasonString)
	case there && r.subs[topic] == no:
		return "", false, fmt.Errorf("%w: the subscription of %s to %q was never made, or has ended, and is there", lives.ErrBroken, r.name, topic)
	case !there && r.subs[topic] == yes:
		return "", false, fmt.Errorf("%w: the subscription of %s to %q was acknowledged and is gone", lives.ErrBroken, r.name, topic)
	case there:
		r.subs[topic] = yes
	default:
		r.subs[topic] = no
	}
	return topic, there, nil
}
