package messages

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// book records messages that several subscribers receive together (a shared
// subscription), or of which not all must come (wills). Several subscribers call its
// methods at once.
type book interface {
	hand(s *Subscriber, m message)
	complete() bool        // the last message that must come has come
	balance(s *Subscriber) // checks the records when the run has settled
}

// group is the book of a shared subscription: each message must come to one of the
// members, at QoS 2 to exactly one and once [MQTT-4.8.2-5]. Any order is right, since
// members come and go.
type group struct {
	qos  byte
	pubs []*Publisher

	mu      sync.Mutex
	streams []stream // by publisher; guarded by mu
}

// NewGroup makes a shared subscription and its members: one that is always there,
// and two that come and go.
func NewGroup(qos byte, pubs []*Publisher, source func() *rand.Rand) (members []*Subscriber) {
	g := &group{qos: qos, pubs: pubs, streams: newStreams(len(pubs))}
	for i := range 3 {
		m := NewSubscriber(fmt.Sprintf("member%d-%d", qos, i), qos, i > 0, source(), pubs)
		m.filter, m.book = fmt.Sprintf("$share/group%d/%s", qos, messageFilter), g
		members = append(members, m)
	}
	return members
}

func (g *group) hand(s *Subscriber, m message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch came := g.streams[m.publisher].receive(m.seq); {
	case came != again:
		s.Faults.Delivered++
	case g.qos == 2 && g.pubs[m.publisher].qos == 2:
		s.blame(&s.Faults.Duplicates2, "%v came to the group twice at QoS 2", m)
	default:
		s.Faults.Duplicates++
	}
}

func (g *group) complete() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, p := range g.pubs {
		if g.streams[i].last < p.settledAt || len(g.streams[i].missing) > 0 {
			return false
		}
	}
	return true
}

// balance counts messages that never came, as faults of the first member that calls it.
func (g *group) balance(s *Subscriber) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.streams {
		if lost := g.streams[i].settle(g.pubs[i].settledAt); len(lost) > 0 {
			s.Faults.Lost += len(lost) - 1
			s.blame(&s.Faults.Lost, "%d acknowledged messages of publisher %d never came to the group", len(lost), i)
		}
	}
}

// Testator connects with a will, in a session that outlives the connection or, with an odd
// number, in one that ends with it. Only a kill
// of the broker ends the connection, so the broker must publish the will, once, after the
// next start. The testator waits for that before it connects with the next will, which
// would replace the one before [MQTT-3.1.3-9].
type Testator struct {
	as    *Publisher // its name, number and topic, for messages
	wills *wills
	next  uint64

	Sessions int // connections that a kill has ended
}

// wills is the book of the wills of all testators.
type wills struct {
	subscribed atomic.Bool // the heir has subscribed

	mu   sync.Mutex
	came []map[uint64]bool // by testator; guarded by mu
	owed []uint64          // by testator: the last will that must come; guarded by mu
}

// NewTestators makes testators, and the subscriber to their wills.
func NewTestators(count int, source func() *rand.Rand) (all []*Testator, heir *Subscriber) {
	w := &wills{owed: make([]uint64, count)}
	var pubs []*Publisher
	for i := range count {
		as := &Publisher{name: fmt.Sprintf("testator%d", i), number: i, topic: fmt.Sprintf("crashtest/wills/%d", i), qos: 2, rng: source()}
		pubs = append(pubs, as)
		w.came = append(w.came, map[uint64]bool{})
		all = append(all, &Testator{as: as, wills: w})
	}
	heir = NewSubscriber("heir", 2, false, source(), pubs)
	heir.filter, heir.book = "crashtest/wills/+", w
	return all, heir
}

func (w *wills) hand(s *Subscriber, m message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.came[m.publisher][m.seq] {
		s.blame(&s.Faults.Duplicates2, "will %d of testator %d was published twice", m.seq, m.publisher)
		return
	}
	w.came[m.publisher][m.seq] = true
	s.Faults.Delivered++
}

func (w *wills) missing(testator int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	owed := w.owed[testator]
	return owed != 0 && !w.came[testator][owed]
}

func (w *wills) owe(testator int, seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owed[testator] = seq
}

func (w *wills) complete() bool {
	for i := range w.owed {
		if w.missing(i) {
			return false
		}
	}
	return true
}

func (w *wills) balance(s *Subscriber) {
	for i := range w.owed {
		if w.missing(i) {
			s.blame(&s.Faults.Lost, "will %d of testator %d was never published", w.owed[i], i)
			w.owe(i, 0)
		}
	}
}

// Live implements lives.Actor.
func (t *Testator) Live(l *lives.Life) error {
	tick := time.NewTicker(ackDelay)
	defer tick.Stop()
	for !t.wills.subscribed.Load() || t.wills.missing(t.as.number) {
		select {
		case <-tick.C:
		case <-l.Dead:
			return nil
		}
	}
	if l.Settle {
		return nil
	}
	t.next++
	payload := message{t.as.number, t.next}.payload(t.as.rng, t.as.rng.IntN(100))
	k, _, err := lives.Dial(l, mqtt.Connect{
		ClientID: []byte(t.as.name), SessionExpiry: lives.SessionExpiry * uint32(1-t.as.number%2), KeepAlive: 60,
		HasWill: true, Will: mqtt.Will{QoS: 2, Topic: []byte(t.as.topic), Payload: payload},
	})
	if err != nil {
		return l.Ended(t.as.name, err)
	}
	defer k.Close()
	t.wills.owe(t.as.number, t.next)
	t.Sessions++
	_, err = k.Read()
	return l.Ended(t.as.name, err)
}
