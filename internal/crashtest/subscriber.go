package crashtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"holdfast/internal/mqtt"
)

// subscriber has a session with one subscription to all publishers' messages, and
// keeps the books of what it was handed. One that is offline connects only when
// the run settles, and in a life now and then: all that came meanwhile must be
// waiting for it.
type subscriber struct {
	name    string
	qos     byte
	offline bool
	rng     *rand.Rand
	pubs    []*publisher
	filter  string
	book    book // in place of streams, for what several subscribers get together; nil: streams

	session  bool
	ready    bool               // subscribed
	received map[uint16]message // QoS 2: handed out, PUBREL to come
	seen     map[uint16]sighted // by packet identifier: the last message that came with it
	streams  []stream           // by publisher
	ordinal  uint64
	times    int // connections made
	attended *life

	faults   faults
	examples []string
}

func newSubscriber(name string, qos byte, offline bool, rng *rand.Rand, pubs []*publisher) *subscriber {
	s := &subscriber{
		name: name, qos: qos, offline: offline, rng: rng, pubs: pubs, filter: messageFilter,
		received: map[uint16]message{}, seen: map[uint16]sighted{},
	}
	for range pubs {
		s.streams = append(s.streams, stream{missing: map[uint64]bool{}})
	}
	return s
}

// sighted is what a packet identifier brought.
type sighted struct {
	message
	ordinal uint64 // its place in the order of deliveries
	time    int    // the connection on which it came last
}

// faults are what a subscriber has counted against the broker.
type faults struct {
	delivered     int // messages handed out for the first time
	lost          int // never handed out
	outOfOrder    int // handed out after a later one of their publisher, or redelivered out of order
	duplicates2   int // handed out again although published and subscribed to at QoS 2
	duplicates    int // the same at QoS 1: allowed
	withoutDup    int // redelivered with its packet identifier, but not marked
	sessionsLost  int
	overReceiving int // more under way than Receive Maximum
	idReused      int // a packet identifier used again before its exchange had ended
}

// stream is what came of one publisher's messages.
type stream struct {
	last    uint64          // highest sequence number handed out
	missing map[uint64]bool // lower ones that were not
}

// blame counts a fault and keeps the first of them in words.
func (s *subscriber) blame(n *int, format string, args ...any) {
	*n++
	if len(s.examples) < 5 {
		s.examples = append(s.examples, s.name+": "+fmt.Sprintf(format, args...))
	}
}

// ackDelay is how long acknowledgements are held back at times.
const ackDelay = 5 * time.Millisecond

// connection is what belongs to one connection of a subscriber.
type connection struct {
	*link
	receiveMax int
	underWay   map[uint16]bool // deliveries without our last acknowledgement
	resent     uint64          // ordinal of the last redelivery
	acks       []byte          // held back
	finals     []uint16        // packet identifiers whose delivery those acknowledgements end
}

func (s *subscriber) live(l *life) error {
	if s.offline && s.ready && !l.settle && s.rng.IntN(5) > 0 {
		return nil
	}
	for {
		again, err := s.work(l)
		if err != nil {
			return l.ended(s.name, err)
		}
		if !again {
			return nil
		}
	}
}

// work is one connection. again: the subscriber has dropped it and wants another.
func (s *subscriber) work(l *life) (again bool, err error) {
	c, err := s.connect(l)
	if err != nil {
		return false, err
	}
	defer c.close()
	for s.rng.IntN(dropRarity) > 0 {
		if l.settle && s.complete() {
			s.release(c)
			return false, c.goodbye(mqtt.Disconnect{})
		}
		if err := s.handleNext(l, c); err != nil {
			return false, err
		}
	}
	return true, nil
}

// complete says whether the last message of every publisher has come.
func (s *subscriber) complete() bool {
	if s.book != nil {
		return len(s.received) == 0 && s.book.complete()
	}
	for i, p := range s.pubs {
		if s.streams[i].last < p.settledAt {
			return false
		}
	}
	return len(s.received) == 0
}

func (s *subscriber) connect(l *life) (*connection, error) {
	receiveMax := 1 + s.rng.IntN(60)
	k, ack, err := dial(l.addr, mqtt.Connect{
		ClientID: []byte(s.name), SessionExpiry: sessionExpiry, KeepAlive: 60, ReceiveMaximum: uint16(receiveMax),
	})
	if err != nil {
		return nil, err
	}
	l.news.count()
	s.times++
	c := &connection{link: k, receiveMax: receiveMax, underWay: map[uint16]bool{}}
	if !ack.SessionPresent {
		if s.session {
			s.blame(&s.faults.sessionsLost, "the session is gone in life %d", l.number)
		}
		s.ready = false
		clear(s.received)
		clear(s.seen)
	}
	s.session = true
	if s.ready {
		s.attend(l)
		return c, nil
	}
	code, err := k.subscribe(s.filter, s.qos, func(p packet) error { return s.handle(l, c, p) })
	if err != nil || code != mqtt.ReasonCode(s.qos) {
		k.close()
		if err == nil {
			err = fmt.Errorf("%w: SUBACK %v for QoS %d", errBroken, code, s.qos)
		}
		return nil, err
	}
	s.ready = true
	s.attend(l)
	return c, nil
}

// attend says, once in a life, that the subscriber is there.
func (s *subscriber) attend(l *life) {
	if s.attended != l {
		s.attended = l
		if w, is := s.book.(*wills); is {
			w.subscribed.Store(true)
		}
		l.attended.count()
	}
}

// handleNext reads and handles a packet, and lets go of acknowledgements: at
// once, or after more have come, or when nothing comes.
func (s *subscriber) handleNext(l *life, c *connection) error {
	if (len(c.acks) == 0 || s.rng.IntN(3) == 0) && s.book == nil {
		s.release(c)
		p, err := c.exchange()
		if err != nil {
			return err
		}
		return s.handle(l, c, p)
	}
	p, ok, err := c.readFor(ackDelay)
	if err != nil {
		return err
	}
	if !ok {
		s.release(c)
		return c.flush()
	}
	return s.handle(l, c, p)
}

// release hands the acknowledgements that were held back to the connection.
func (s *subscriber) release(c *connection) {
	c.out = append(c.out, c.acks...)
	c.acks = c.acks[:0]
	for _, id := range c.finals {
		delete(c.underWay, id)
	}
	c.finals = c.finals[:0]
}

func (s *subscriber) handle(l *life, c *connection, p packet) error {
	switch p.Type {
	case mqtt.PUBLISH:
		l.news.count()
		return s.message(c, p)
	case mqtt.PUBREL:
		var a mqtt.Ack
		if err := a.Decode(mqtt.V5, p.Type, p.Body); err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		code := mqtt.Success
		if _, known := s.received[a.PacketID]; !known {
			code = mqtt.PacketIdentifierNotFound
		}
		delete(s.received, a.PacketID)
		c.finals = append(c.finals, a.PacketID)
		c.acks = mqtt.AppendAck(c.acks, mqtt.V5, mqtt.PUBCOMP, a.PacketID, code, "")
		return nil
	}
	return fmt.Errorf("%w: unexpected %v", errBroken, p.Type)
}

func (s *subscriber) message(c *connection, p packet) error {
	var d mqtt.Publish
	if err := d.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	m, err := parseMessage(d.Payload)
	if err != nil {
		return err
	}
	if m.publisher >= len(s.pubs) || string(d.Topic) != s.pubs[m.publisher].topic || d.QoS != min(s.qos, s.pubs[m.publisher].qos) {
		return fmt.Errorf("%w: %v came on %q at QoS %d", errBroken, m, d.Topic, d.QoS)
	}
	s.checkFlow(c, &d)
	s.checkRedelivery(c, &d, m)
	if d.QoS == 1 {
		s.hand(m)
		c.acks = mqtt.AppendAck(c.acks, mqtt.V5, mqtt.PUBACK, d.PacketID, mqtt.Success, "")
		c.finals = append(c.finals, d.PacketID)
		return nil
	}
	before, again := s.received[d.PacketID]
	switch {
	case !again:
		s.received[d.PacketID] = m
		s.hand(m)
	case before != m:
		// To a client this is the message before, again: it never gets this one.
		s.blame(&s.faults.idReused, "packet identifier %d brought %v, and %v before its PUBREL", d.PacketID, before, m)
	}
	c.acks = mqtt.AppendAck(c.acks, mqtt.V5, mqtt.PUBREC, d.PacketID, mqtt.Success, "")
	return nil
}

// checkFlow holds the broker to Receive Maximum [MQTT-3.3.4-9].
func (s *subscriber) checkFlow(c *connection, d *mqtt.Publish) {
	c.underWay[d.PacketID] = true
	if len(c.underWay) > c.receiveMax {
		s.blame(&s.faults.overReceiving, "%d messages under way, Receive Maximum is %d", len(c.underWay), c.receiveMax)
	}
}

// forgetUnsafe forgets, between two lives, sightings of what the broker may have
// lost. A message at QoS 1 may be delivered before it is safe on disk; what its
// publisher then sends again is new to the broker, wherever it stands in the
// queue now.
func (s *subscriber) forgetUnsafe() {
	for id, before := range s.seen {
		p := s.pubs[before.publisher]
		if min(s.qos, p.qos) == 1 && !p.wasSafe(before.seq) {
			delete(s.seen, id)
		}
	}
}

// checkRedelivery looks at a message that this packet identifier has brought
// before: it must be marked, come once a connection, and in its old order.
func (s *subscriber) checkRedelivery(c *connection, d *mqtt.Publish, m message) {
	before, is := s.seen[d.PacketID]
	if is && before.message == m && !d.Dup && before.time != s.times {
		s.blame(&s.faults.withoutDup, "%v came again with packet identifier %d, without DUP", m, d.PacketID)
	}
	switch {
	case !d.Dup:
		s.ordinal++
		s.seen[d.PacketID] = sighted{m, s.ordinal, s.times}
		return
	case !is || before.message != m:
		// Sent before, and lost on the way or forgotten: its place is here, among the others.
		s.seen[d.PacketID] = sighted{m, c.resent, s.times}
		return
	}
	if before.time == s.times {
		s.blame(&s.faults.outOfOrder, "%v came twice on one connection with packet identifier %d", m, d.PacketID)
	}
	if before.ordinal < c.resent {
		s.blame(&s.faults.outOfOrder, "%v was redelivered out of order", m)
	}
	c.resent = max(c.resent, before.ordinal)
	before.time = s.times
	s.seen[d.PacketID] = before
}

// hand is the application's side: the message has come.
func (s *subscriber) hand(m message) {
	if s.book != nil {
		s.book.hand(s, m)
		return
	}
	st := &s.streams[m.publisher]
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
		s.blame(&s.faults.outOfOrder, "%v came for the first time after message %d", m, st.last)
	case s.qos == 2 && s.pubs[m.publisher].qos == 2:
		s.blame(&s.faults.duplicates2, "%v came twice at QoS 2", m)
	default:
		s.faults.duplicates++
	}
}

// balance closes the books when the run has settled: what is missing now is lost.
func (s *subscriber) balance() {
	if s.book != nil {
		s.book.balance(s)
		return
	}
	for i := range s.streams {
		st, target := &s.streams[i], s.pubs[i].settledAt
		for seq := st.last + 1; seq <= target; seq++ {
			st.missing[seq] = true
		}
		st.last = max(st.last, target)
		var gone []uint64
		for seq := range st.missing {
			gone = append(gone, seq)
		}
		slices.Sort(gone)
		if len(gone) > 0 {
			s.faults.lost += len(gone) - 1
			s.blame(&s.faults.lost, "%d acknowledged messages of publisher %d never came, from %d to %d", len(gone), i, gone[0], gone[len(gone)-1])
		}
		clear(st.missing)
	}
}
