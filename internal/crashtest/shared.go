package crashtest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/mqtt"
)

// book is what several subscribers are handed together, or what need not come. Its
// methods are called by several at once.
type book interface {
	hand(s *subscriber, m message)
	complete() bool        // the last that must come has
	balance(s *subscriber) // closes the books when the run has settled
}

// group is the book of a shared subscription: each message must come to one of the
// members, at QoS 2 to exactly one and once [MQTT-4.8.2-5]. In which order is open,
// since members come and go.
type group struct {
	qos  byte
	pubs []*publisher

	mu      sync.Mutex
	streams []stream // by publisher; guarded by mu
}

// newGroup makes a shared subscription and its members: one that is always there,
// and two that come and go.
func newGroup(qos byte, pubs []*publisher, source func() *rand.Rand) (members []*subscriber) {
	g := &group{qos: qos, pubs: pubs}
	for range pubs {
		g.streams = append(g.streams, stream{missing: map[uint64]bool{}})
	}
	for i := range 3 {
		m := newSubscriber(fmt.Sprintf("member%d-%d", qos, i), qos, i > 0, source(), pubs)
		m.filter, m.book = fmt.Sprintf("$share/group%d/%s", qos, messageFilter), g
		members = append(members, m)
	}
	return members
}

func (g *group) hand(s *subscriber, m message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := &g.streams[m.publisher]
	switch {
	case m.seq > st.last:
		for seq := st.last + 1; seq < m.seq; seq++ {
			st.missing[seq] = true
		}
		st.last = m.seq
		s.faults.delivered++
	case st.missing[m.seq]:
		delete(st.missing, m.seq)
		s.faults.delivered++
	case g.qos == 2 && g.pubs[m.publisher].qos == 2:
		s.blame(&s.faults.duplicates2, "%v came to the group twice at QoS 2", m)
	default:
		s.faults.duplicates++
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

// balance blames the first member that asks for what never came.
func (g *group) balance(s *subscriber) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.streams {
		st, target := &g.streams[i], g.pubs[i].settledAt
		for seq := st.last + 1; seq <= target; seq++ {
			st.missing[seq] = true
		}
		st.last = max(st.last, target)
		for range st.missing {
			s.faults.lost++
		}
		if n := len(st.missing); n > 0 {
			s.faults.lost--
			s.blame(&s.faults.lost, "%d acknowledged messages of publisher %d never came to the group", n, i)
		}
		clear(st.missing)
	}
}

// testator is connected with a will that nothing but a kill of the broker sets free,
// under a session that outlives the connection: it must be published, once, after
// the next start. The testator waits for that before it connects with the next will,
// which would withdraw the one before [MQTT-3.1.3-9].
type testator struct {
	as    *publisher // its name, number and topic, for messages
	wills *wills
	next  uint64

	sessions int // connections that a kill has ended
}

// wills is the book of the wills of all testators.
type wills struct {
	subscribed atomic.Bool // the heir has

	mu   sync.Mutex
	came []map[uint64]bool // by testator; guarded by mu
	owed []uint64          // by testator: the last will that must come; guarded by mu
}

// newTestators makes testators, and the subscriber to their wills.
func newTestators(count int, source func() *rand.Rand) (all []*testator, heir *subscriber) {
	w := &wills{owed: make([]uint64, count)}
	var pubs []*publisher
	for i := range count {
		as := &publisher{name: fmt.Sprintf("testator%d", i), number: i, topic: fmt.Sprintf("crashtest/wills/%d", i), qos: 2, rng: source()}
		pubs = append(pubs, as)
		w.came = append(w.came, map[uint64]bool{})
		all = append(all, &testator{as: as, wills: w})
	}
	heir = newSubscriber("heir", 2, false, source(), pubs)
	heir.filter, heir.book = "crashtest/wills/+", w
	return all, heir
}

func (w *wills) hand(s *subscriber, m message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.came[m.publisher][m.seq] {
		s.blame(&s.faults.duplicates2, "will %d of testator %d was published twice", m.seq, m.publisher)
		return
	}
	w.came[m.publisher][m.seq] = true
	s.faults.delivered++
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

func (w *wills) balance(s *subscriber) {
	for i := range w.owed {
		if w.missing(i) {
			s.blame(&s.faults.lost, "will %d of testator %d was never published", w.owed[i], i)
			w.owe(i, 0)
		}
	}
}

func (t *testator) live(l *life) error {
	tick := time.NewTicker(ackDelay)
	defer tick.Stop()
	for !t.wills.subscribed.Load() || t.wills.missing(t.as.number) {
		select {
		case <-tick.C:
		case <-l.dead:
			return nil
		}
	}
	if l.settle {
		return nil
	}
	t.next++
	payload := message{t.as.number, t.next}.payload(t.as.rng, t.as.rng.IntN(100))
	k, _, err := dial(l.addr, mqtt.Connect{
		ClientID: []byte(t.as.name), SessionExpiry: sessionExpiry, KeepAlive: 60,
		HasWill: true, Will: mqtt.Will{QoS: 2, Topic: []byte(t.as.topic), Payload: payload},
	})
	if err != nil {
		return l.ended(t.as.name, err)
	}
	defer k.close()
	t.wills.owe(t.as.number, t.next)
	t.sessions++
	_, err = k.read()
	return l.ended(t.as.name, err)
}
