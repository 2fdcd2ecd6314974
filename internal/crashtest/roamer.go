package crashtest

import (
	"fmt"
	"math/rand/v2"

	"holdfast/internal/mqtt"
)

// belief is what a client knows of something that it has asked for.
type belief uint8

const (
	no belief = iota
	maybe
	yes
)

// roamer makes, resumes and ends a session and subscriptions in it. What was
// acknowledged is there after a kill, and what was ended stays so. Whether a
// subscription is there it learns by publishing to its topic: a topic of its
// own, to which nobody else can be subscribed (PUBACK 0x10).
type roamer struct {
	name    string
	rng     *rand.Rand
	session belief
	made    bool // there ever was a session
	subs    map[string]belief
	nonce   uint64
	checks  int
	resumed int
}

func newRoamer(name string, rng *rand.Rand) *roamer {
	return &roamer{name: name, rng: rng, subs: map[string]belief{}}
}

// sessionExpiry is how long sessions live without a connection, in seconds.
const sessionExpiry = 24 * 3600

// topics is how many topics a roamer has.
const topics = 6

func (r *roamer) topic(i int) string { return fmt.Sprintf("crashtest/roamers/%s/%d", r.name, i) }

func (r *roamer) live(l *life) error {
	if r.session == no && r.made {
		r.session = maybe // it was ended, but was that on disk?
	}
	for {
		k, err := r.connect(l, r.rng.IntN(12) == 0)
		if err != nil {
			if k != nil {
				k.close()
			}
			return r.failed(l, err)
		}
		again, err := r.roam(l, k)
		k.close()
		switch {
		case err != nil:
			return r.failed(l, err)
		case !again:
			return nil
		}
	}
}

func (r *roamer) failed(l *life, err error) error { return l.ended(r.name, err) }

// connect makes or resumes the session, and compares.
func (r *roamer) connect(l *life, clean bool) (*link, error) {
	before := r.session
	if clean || before == no {
		// What there was goes with this, if the broker gets that far.
		r.session = maybe
		r.doubt()
	}
	k, ack, err := dial(l.addr, mqtt.Connect{ClientID: []byte(r.name), CleanStart: clean, SessionExpiry: sessionExpiry, KeepAlive: 60})
	if err != nil {
		return nil, err
	}
	l.news.count()
	l.work.count()
	r.session, r.made = yes, true
	switch {
	case clean && ack.SessionPresent:
		return k, fmt.Errorf("%w: Session Present after a clean start", errBroken)
	case !clean && before == yes && !ack.SessionPresent:
		return k, fmt.Errorf("%w: the session of %s was acknowledged and is gone", errBroken, r.name)
	case !clean && before == no && ack.SessionPresent:
		return k, fmt.Errorf("%w: the session of %s had ended and is back", errBroken, r.name)
	}
	if ack.SessionPresent {
		r.resumed++
	} else {
		clear(r.subs)
	}
	return k, nil
}

// doubt is not to know whether subscriptions are there any more.
func (r *roamer) doubt() {
	for t, b := range r.subs {
		if b == yes {
			r.subs[t] = maybe
		}
	}
}

// roam works on one connection. again: the roamer ended it.
func (r *roamer) roam(l *life, k *link) (again bool, err error) {
	if err := r.review(l, k); err != nil {
		return false, err
	}
	if l.settle {
		return false, k.goodbye(mqtt.Disconnect{})
	}
	for {
		t := r.topic(r.rng.IntN(topics))
		switch r.rng.IntN(8) {
		case 0, 1, 2:
			err = r.subscribe(k, t)
		case 3, 4:
			err = r.unsubscribe(k, t)
		case 5:
			err = r.review(l, k)
		case 6:
			return true, k.goodbye(mqtt.Disconnect{})
		case 7:
			r.session = maybe
			r.doubt()
			if err := k.goodbye(mqtt.Disconnect{HasSessionExpiry: true}); err != nil {
				return false, err
			}
			r.session = no // for whoever connects to the same life
			return true, nil
		}
		if err != nil {
			return false, err
		}
		l.work.count()
	}
}

func (r *roamer) subscribe(k *link, topic string) error {
	qos := byte(r.rng.IntN(3))
	if r.subs[topic] == no {
		r.subs[topic] = maybe
	}
	code, err := k.subscribe(topic, qos, r.other(k))
	if err != nil {
		return err
	}
	if code != mqtt.ReasonCode(qos) {
		return fmt.Errorf("%w: SUBACK %v for QoS %d", errBroken, code, qos)
	}
	r.subs[topic] = yes
	return nil
}

func (r *roamer) unsubscribe(k *link, topic string) error {
	before := r.subs[topic]
	if before == yes {
		r.subs[topic] = maybe
	}
	k.out = mqtt.AppendUnsubscribe(k.out, mqtt.V5, &mqtt.Unsubscribe{PacketID: 65534, Filters: [][]byte{[]byte(topic)}})
	for {
		p, err := k.exchange()
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
			return fmt.Errorf("%w: UNSUBACK (%v)", errBroken, err)
		}
		existed := ack.Codes[0] == mqtt.Success
		if before == yes && !existed || before == no && existed {
			return fmt.Errorf("%w: UNSUBACK %v for %q, which %s knew better", errBroken, ack.Codes[0], topic, r.name)
		}
		r.subs[topic] = no
		return nil
	}
}

// other handles what comes while an answer is awaited: messages of an earlier
// connection, redelivered.
func (r *roamer) other(k *link) func(packet) error {
	return func(p packet) error {
		_, _, err := r.receive(k, p)
		return err
	}
}

// receive acknowledges a message; it gives its topic and nonce.
func (r *roamer) receive(k *link, p packet) (topic, nonce string, err error) {
	switch p.Type {
	case mqtt.PUBLISH:
		var m mqtt.Publish
		if err := m.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
			return "", "", fmt.Errorf("%w: %w", errBroken, err)
		}
		switch m.QoS {
		case 1:
			k.ack(mqtt.PUBACK, m.PacketID, mqtt.Success)
		case 2:
			k.ack(mqtt.PUBREC, m.PacketID, mqtt.Success)
		}
		return string(m.Topic), string(m.Payload), nil
	case mqtt.PUBREL:
		var a mqtt.Ack
		if err := a.Decode(mqtt.V5, p.Type, p.Body); err != nil {
			return "", "", fmt.Errorf("%w: %w", errBroken, err)
		}
		k.ack(mqtt.PUBCOMP, a.PacketID, mqtt.Success)
		return "", "", nil
	}
	return "", "", fmt.Errorf("%w: unexpected %v", errBroken, p.Type)
}

// review publishes to every topic: those that are subscribed to come back.
func (r *roamer) review(l *life, k *link) error {
	want := map[string]string{} // by topic: the nonce
	for i := range topics {
		r.nonce++
		t := r.topic(i)
		want[t] = fmt.Sprint(r.nonce)
		k.out = mqtt.AppendPublish(k.out, mqtt.V5, &mqtt.Publish{
			QoS: 1, PacketID: uint16(1 + i), Topic: []byte(t), Payload: []byte(want[t]),
		})
	}
	acknowledged, coming := 0, map[string]bool{}
	came := map[string]bool{}
	for acknowledged < topics || len(coming) > 0 {
		p, err := k.exchange()
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
			l.work.count()
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
	r.checks++
	return nil
}

// learn reads a PUBACK: does the topic have a subscriber?
func (r *roamer) learn(p packet) (topic string, there bool, err error) {
	var a mqtt.Ack
	if err := a.Decode(mqtt.V5, mqtt.PUBACK, p.Body); err != nil || a.PacketID == 0 || a.PacketID > topics {
		return "", false, fmt.Errorf("%w: PUBACK (%v)", errBroken, err)
	}
	topic = r.topic(int(a.PacketID) - 1)
	there = a.Code != mqtt.NoMatchingSubscribers
	switch {
	case a.Code.Failed():
		return "", false, fmt.Errorf("%w: a publish was refused: %v %s", errBroken, a.Code, a.ReasonString)
	case there && r.subs[topic] == no:
		return "", false, fmt.Errorf("%w: %s has a subscription to %q that it has not, or no more", errBroken, r.name, topic)
	case !there && r.subs[topic] == yes:
		return "", false, fmt.Errorf("%w: the subscription of %s to %q was acknowledged and is gone", errBroken, r.name, topic)
	case there:
		r.subs[topic] = yes
	default:
		r.subs[topic] = no
	}
	return topic, there, nil
}
