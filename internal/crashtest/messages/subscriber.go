package messages

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Subscriber has a session with one subscription to all publishers' messages, and
// records what it receives. An offline one connects only when the run settles, and in a
// few other lives; messages published meanwhile must be queued for it.
type Subscriber struct {
	name    string
	qos     byte
	offline bool
	rng     *rand.Rand
	pubs    []*Publisher
	filter  string
	book    book // used instead of streams if it is not nil

	session  bool
	ready    bool               // subscribed
	received map[uint16]message // QoS 2: messages whose PUBREL has not come
	seen     map[uint16]sighted // by packet identifier: the last message that came with it
	streams  []stream           // by publisher
	ordinal  uint64
	times    int // connections made
	attended *lives.Life

	Faults   Faults
	Examples []string
}

// NewSubscriber makes a subscriber to the messages of publishers.
func NewSubscriber(name string, qos byte, offline bool, rng *rand.Rand, pubs []*Publisher) *Subscriber {
	return &Subscriber{
		name: name, qos: qos, offline: offline, rng: rng, pubs: pubs, filter: messageFilter,
		received: map[uint16]message{}, seen: map[uint16]sighted{}, streams: newStreams(len(pubs)),
	}
}

// sighted is what a packet identifier brought.
type sighted struct {
	message
	ordinal uint64 // its place in the order of deliveries
	time    int    // the connection on which it came last
}

// Faults are what a subscriber has counted against the broker.
type Faults struct {
	Delivered     int // messages handed out for the first time
	Lost          int // never handed out
	OutOfOrder    int // handed out after a later one of their publisher, or redelivered out of order
	Duplicates2   int // handed out again although published and subscribed to at QoS 2
	Duplicates    int // the same at QoS 1: allowed
	WithoutDup    int // redelivered with its packet identifier, but not marked
	SessionsLost  int
	OverReceiving int // more inflight than Receive Maximum
	IDReused      int // a packet identifier used again before its exchange had ended
}

// blame counts a fault, and describes it if it is among the first.
func (s *Subscriber) blame(n *int, format string, args ...any) {
	*n++
	if len(s.Examples) < 5 {
		s.Examples = append(s.Examples, s.name+": "+fmt.Sprintf(format, args...))
	}
}

// ackDelay is how long acknowledgements are held back at times.
const ackDelay = 5 * time.Millisecond

// connection is what belongs to one connection of a subscriber.
type connection struct {
	*lives.Link
	receiveMax int
	inflight   map[uint16]bool // packet identifiers of deliveries whose last acknowledgement has not been sent
	resent     uint64          // ordinal of the last redelivery
	acks       []byte          // acknowledgements that are held back
	finals     []uint16        // packet identifiers whose delivery those acknowledgements end
}

// Live implements lives.Actor.
func (s *Subscriber) Live(l *lives.Life) error {
	if s.offline && s.ready && !l.Settle && s.rng.IntN(5) > 0 {
		return nil
	}
	for {
		again, err := s.work(l)
		if err != nil {
			return l.Ended(s.name, err)
		}
		if !again {
			return nil
		}
	}
}

// work is one connection. again is true if the subscriber has closed it to make another.
func (s *Subscriber) work(l *lives.Life) (again bool, err error) {
	c, err := s.connect(l)
	if err != nil {
		return false, err
	}
	defer c.Close()
	for s.rng.IntN(dropRarity) > 0 {
		if l.Settle && s.complete() {
			s.release(c)
			return false, c.Disconnect(mqtt.Disconnect{})
		}
		if err := s.handleNext(l, c); err != nil {
			return false, err
		}
	}
	return true, nil
}

// complete says whether the last message of every publisher has come.
func (s *Subscriber) complete() bool {
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

func (s *Subscriber) connect(l *lives.Life) (*connection, error) {
	receiveMax := 1 + s.rng.IntN(60)
	k, ack, err := lives.Dial(l, mqtt.Connect{
		ClientID: []byte(s.name), SessionExpiry: lives.SessionExpiry, KeepAlive: 60, ReceiveMaximum: uint16(receiveMax),
	})
	if err != nil {
		return nil, err
	}
	l.Arrivals.Count()
	s.times++
	c := &connection{Link: k, receiveMax: receiveMax, inflight: map[uint16]bool{}}
	if !ack.SessionPresent {
		if s.session {
			s.blame(&s.Faults.SessionsLost, "the session is gone in life %d", l.Number)
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
	code, err := k.Subscribe(s.filter, s.qos, func(p lives.Packet) error { return s.handle(l, c, p) })
	if err != nil || code != mqtt.ReasonCode(s.qos) {
		k.Close()
		if err == nil {
			err = fmt.Errorf("%w: SUBACK %v for QoS %d", lives.ErrBroken, code, s.qos)
		}
		return nil, err
	}
	s.ready = true
	s.attend(l)
	return c, nil
}

// attend counts the subscriber, once in a life, as subscribed.
func (s *Subscriber) attend(l *lives.Life) {
	if s.attended != l {
		s.attended = l
		if w, is := s.book.(*wills); is {
			w.subscribed.Store(true)
		}
		l.Attended.Count()
	}
}

// handleNext reads and handles a packet. It sends acknowledgements at once, or holds them
// back until more packets have come or none comes for a while.
func (s *Subscriber) handleNext(l *lives.Life, c *connection) error {
	if (len(c.acks) == 0 || s.rng.IntN(3) == 0) && s.book == nil {
		s.release(c)
		p, err := c.Exchange()
		if err != nil {
			return err
		}
		return s.handle(l, c, p)
	}
	p, ok, err := c.ReadFor(ackDelay)
	if err != nil {
		return err
	}
	if !ok {
		s.release(c)
		return c.Flush()
	}
	return s.handle(l, c, p)
}

// release hands the acknowledgements that were held back to the connection.
func (s *Subscriber) release(c *connection) {
	c.Out = append(c.Out, c.acks...)
	c.acks = c.acks[:0]
	for _, id := range c.finals {
		delete(c.inflight, id)
	}
	c.finals = c.finals[:0]
}

func (s *Subscriber) handle(l *lives.Life, c *connection, p lives.Packet) error {
	switch p.Type {
	case mqtt.PUBLISH:
		l.Arrivals.Count()
		return s.message(c, p)
	case mqtt.PUBREL:
		var a mqtt.Ack
		if err := a.Decode(mqtt.V5, p.Type, p.Body); err != nil {
			return fmt.Errorf("%w: %w", lives.ErrBroken, err)
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
	return fmt.Errorf("%w: unexpected %v", lives.ErrBroken, p.Type)
}

func (s *Subscriber) message(c *connection, p lives.Packet) error {
	var d mqtt.Publish
	if err := d.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
		return fmt.Errorf("%w: %w", lives.ErrBroken, err)
	}
	m, err := parseMessage(d.Payload)
	if err != nil {
		return err
	}
	if m.publisher >= len(s.pubs) || string(d.Topic) != s.pubs[m.publisher].topic || d.QoS != min(s.qos, s.pubs[m.publisher].qos) {
		return fmt.Errorf("%w: %v came on %q at QoS %d", lives.ErrBroken, m, d.Topic, d.QoS)
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
		// A client takes this for the earlier message, and so never gets the new one.
		s.blame(&s.Faults.IDReused, "packet identifier %d brought %v, and %v before its PUBREL", d.PacketID, before, m)
	}
	c.acks = mqtt.AppendAck(c.acks, mqtt.V5, mqtt.PUBREC, d.PacketID, mqtt.Success, "")
	return nil
}

// checkFlow checks that the broker keeps to the Receive Maximum [MQTT-3.3.4-9].
func (s *Subscriber) checkFlow(c *connection, d *mqtt.Publish) {
	c.inflight[d.PacketID] = true
	if len(c.inflight) > c.receiveMax {
		s.blame(&s.Faults.OverReceiving, "%d messages are inflight, Receive Maximum is %d", len(c.inflight), c.receiveMax)
	}
}

// ForgetUnsafe forgets, between two lives, deliveries that the broker may have lost. A
// broker may deliver a message at QoS 1 before it is on disk. If the publisher then sends
// it again, it is a new message to the broker, at a new place in the queue.
func (s *Subscriber) ForgetUnsafe() {
	for id, before := range s.seen {
		p := s.pubs[before.publisher]
		if min(s.qos, p.qos) == 1 && !p.wasSafe(before.seq) {
			delete(s.seen, id)
		}
	}
}

// Pardon takes back what was counted in a life since a moment, but what was handed out or lost:
// the leader of a cluster has changed in it, and only between two lives are deliveries
// forgotten that the leader may have lost.
func (s *Subscriber) Pardon(since Faults) {
	s.Faults.WithoutDup, s.Faults.OutOfOrder = since.WithoutDup, since.OutOfOrder
}

// checkRedelivery checks a message that came before with the same packet identifier: DUP
// must be set, it must come at most once on a connection, and in the order of the first
// deliveries.
func (s *Subscriber) checkRedelivery(c *connection, d *mqtt.Publish, m message) {
	before, is := s.seen[d.PacketID]
	if is && before.message == m && !d.Dup && before.time != s.times {
		s.blame(&s.Faults.WithoutDup, "%v came again with packet identifier %d, without DUP", m, d.PacketID)
	}
	switch {
	case !d.Dup:
		s.ordinal++
		s.seen[d.PacketID] = sighted{m, s.ordinal, s.times}
		return
	case !is || before.message != m:
		// Sent before, but this subscriber has not seen it: it counts from here on.
		s.seen[d.PacketID] = sighted{m, c.resent, s.times}
		return
	}
	if before.time == s.times {
		s.blame(&s.Faults.OutOfOrder, "%v came twice on one connection with packet identifier %d", m, d.PacketID)
	}
	if before.ordinal < c.resent {
		s.blame(&s.Faults.OutOfOrder, "%v was redelivered out of order", m)
	}
	c.resent = max(c.resent, before.ordinal)
	before.time = s.times
	s.seen[d.PacketID] = before
}

// hand gives a message to the application, which records it.
func (s *Subscriber) hand(m message) {
	if s.book != nil {
		s.book.hand(s, m)
		return
	}
	st := &s.streams[m.publisher]
	switch came := st.receive(m.seq); {
	case came == inOrder:
		s.Faults.Delivered++
	case came == late:
		s.Faults.Delivered++
		s.blame(&s.Faults.OutOfOrder, "%v came for the first time after message %d", m, st.last)
	case s.qos == 2 && s.pubs[m.publisher].qos == 2:
		s.blame(&s.Faults.Duplicates2, "%v came twice at QoS 2", m)
	default:
		s.Faults.Duplicates++
	}
}

// Balance checks the records when the run has settled: what is missing now is lost.
func (s *Subscriber) Balance() {
	if s.book != nil {
		s.book.balance(s)
		return
	}
	for i := range s.streams {
		if lost := s.streams[i].settle(s.pubs[i].settledAt); len(lost) > 0 {
			s.Faults.Lost += len(lost) - 1
			s.blame(&s.Faults.Lost, "%d acknowledged messages of publisher %d never came, from %d to %d", len(lost), i, lost[0], lost[len(lost)-1])
		}
	}
}
