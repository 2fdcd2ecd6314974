package transfers

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Clerk publishes orders, and carries them out.
type Clerk struct {
	books   *Books
	rng     *rand.Rand
	clock   *hlc.Clock
	session bool           // it has one at the broker
	sat     int            // connections made
	gets    map[string]int // accounts that were asked for, by correlation data, over all connections
}

// NewClerk makes the clerk of some books.
func NewClerk(b *Books, rng *rand.Rand) *Clerk {
	return &Clerk{books: b, rng: rng, clock: hlc.NewClock("clerk"), gets: map[string]int{}}
}

const replies = "crashtest/replies/clerk"

// desk is the clerk's work on one connection.
type desk struct {
	*lives.Link
	*Clerk
	life     *lives.Life
	lastID   uint16
	asked    int
	values   [accounts]string  // what the GETs have answered
	read     int               // how many of them have
	atWork   []transfer        // TXNs under way, in their order
	offered  map[uint16]int    // orders published and not yet acknowledged, by packet identifier
	waiting  []delivered       // orders that came, and whose TXN has not been sent
	received map[uint16]bool   // packet identifiers of orders that came on this connection
	fenced   bool              // the PINGRESP has come: so has all that was stored before the PINGREQ
	expected map[string]uint16 // of TXNs under way: the packet identifier, by correlation data
}

type delivered struct {
	order    int
	packetID uint16
}

// Live implements lives.Actor.
func (c *Clerk) Live(l *lives.Life) error {
	d, err := c.sit(l)
	if err != nil {
		return l.Ended("the clerk", err)
	}
	defer d.Close()
	for err == nil && !(l.Settle && d.finished()) {
		if err = d.Flush(); err == nil {
			err = d.next()
		}
	}
	c.books.unsure = append(c.books.unsure, d.atWork...)
	c.books.counts.Unknown += len(d.atWork)
	if err != nil {
		return l.Ended("the clerk", err)
	}
	if err := d.Disconnect(mqtt.Disconnect{}); err != nil {
		return l.Ended("the clerk", err)
	}
	close(c.books.settled)
	return nil
}

// sit connects, and asks what the accounts hold.
func (c *Clerk) sit(l *lives.Life) (*desk, error) {
	k, ack, err := lives.Dial(l, mqtt.Connect{ClientID: []byte("clerk"), SessionExpiry: lives.SessionExpiry, KeepAlive: 60})
	if err != nil {
		return nil, err
	}
	l.Arrivals.Count()
	c.sat++
	d := &desk{Link: k, Clerk: c, life: l, offered: map[uint16]int{}, received: map[uint16]bool{}, expected: map[string]uint16{}}
	if c.session && !ack.SessionPresent {
		k.Close()
		return nil, fmt.Errorf("%w: the session of the clerk is gone", lives.ErrBroken)
	}
	for _, filter := range []string{ordersTopic, replies} {
		code, err := k.Subscribe(filter, 1, d.handle)
		if err == nil && code != mqtt.GrantedQoS1 {
			err = fmt.Errorf("%w: SUBACK %v", lives.ErrBroken, code)
		}
		if err != nil {
			k.Close()
			return nil, err
		}
	}
	c.session = true
	if !c.books.begun {
		d.open()
	}
	for i := range accounts {
		d.gets[d.ask(command([]string{"GET", account(i)}))] = i
	}
	return d, nil
}

// open sets the accounts. It may be repeated until the first order is carried out.
func (d *desk) open() {
	words := []string{"TXN"}
	for i, v := range d.books.state(nil) {
		words = append(words, "SET", account(i), v)
	}
	d.ask(command(words))
}

// connection is what the correlation data of this connection's requests begin with.
func (d *desk) connection() string { return fmt.Sprintf("%d/", d.sat) }

// ask queues a request, and returns its correlation data.
func (d *desk) ask(payload []byte) string {
	d.asked++
	correlation := d.connection() + strconv.Itoa(d.asked)
	d.Out = mqtt.AppendPublish(d.Out, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: d.nextID(), Topic: []byte(protocol.InvokeTopic), Payload: payload,
		Props: mqtt.PublishProps{
			HasResponseTopic: true, ResponseTopic: []byte(replies),
			HasCorrelationData: true, CorrelationData: []byte(correlation),
			Raw: mqtt.AppendUserProp(nil, protocol.TimeProperty, d.clock.Now().String()),
		},
	})
	return correlation
}

func (d *desk) nextID() uint16 {
	d.lastID = d.lastID%30_000 + 1
	return d.lastID
}

// finished says whether all that was ordered is done.
func (d *desk) finished() bool {
	return d.fenced && len(d.atWork)+len(d.waiting)+len(d.books.accepted)+len(d.books.unsure) == 0 && d.read == accounts
}

// next reads and handles one packet, and then does what there is to do.
func (d *desk) next() error {
	p, err := d.Read()
	if err != nil {
		return err
	}
	if err := d.handle(p); err != nil {
		return err
	}
	if d.read < accounts {
		return nil
	}
	for len(d.waiting) > 0 && len(d.atWork) < mostAtWork {
		d.carryOut()
	}
	for !d.life.Settle && len(d.offered) < mostUnread && len(d.waiting) < mostUnread {
		d.order()
	}
	return nil
}

// order publishes one more order.
func (d *desk) order() {
	d.books.orders++
	id := d.nextID()
	d.offered[id] = d.books.orders
	d.Out = mqtt.AppendPublish(d.Out, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: id, Topic: []byte(ordersTopic), Payload: strconv.AppendInt(nil, int64(d.books.orders), 10),
	})
}

// carryOut sends the TXN of the first order that waits.
func (d *desk) carryOut() {
	o := d.waiting[0]
	d.waiting = d.waiting[1:]
	tr := draw(d.rng, o.order, o.packetID)
	before := d.books.state(d.atWork)
	d.atWork = append(d.atWork, tr)
	d.expected[d.ask(tr.transaction(before, d.books.state(d.atWork)))] = tr.packetID
}

func (d *desk) handle(p lives.Packet) error {
	switch p.Type {
	case mqtt.PUBACK:
		var ack mqtt.Ack
		if err := ack.Decode(mqtt.V5, mqtt.PUBACK, p.Body); err != nil || ack.Code.Failed() {
			return fmt.Errorf("%w: PUBACK %v (%v) for the clerk", lives.ErrBroken, ack.Code, err)
		}
		if order, is := d.offered[ack.PacketID]; is {
			delete(d.offered, ack.PacketID)
			if !d.books.isDone(order) {
				d.books.accepted[order] = true
			}
		}
		return nil
	case mqtt.PINGRESP:
		d.fenced = true
		return nil
	case mqtt.PUBLISH:
		var m mqtt.Publish
		if err := m.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
			return fmt.Errorf("%w: %w", lives.ErrBroken, err)
		}
		if string(m.Topic) == replies {
			d.Ack(mqtt.PUBACK, m.PacketID, mqtt.Success)
			return d.reply(string(m.Props.CorrelationData), m.Payload)
		}
		order, err := strconv.Atoi(string(m.Payload))
		if err != nil || string(m.Topic) != ordersTopic {
			return fmt.Errorf("%w: the clerk got %q on %q", lives.ErrBroken, m.Payload, m.Topic)
		}
		d.life.Arrivals.Count()
		d.waiting = append(d.waiting, delivered{order, m.PacketID})
		return d.came(order)
	}
	return fmt.Errorf("%w: unexpected %v", lives.ErrBroken, p.Type)
}

// came checks that an order may come. Before the accounts have been read, the clerk does not
// know yet which of those are done whose replies were lost; resolved checks them.
func (d *desk) came(order int) error {
	if d.books.isDone(order) {
		return fmt.Errorf("%w: order %d was settled by its transaction, and came again", lives.ErrBroken, order)
	}
	return nil
}

// reply handles the reply to a GET or a TXN.
func (d *desk) reply(correlation string, payload []byte) error {
	d.life.Acks.Count()
	r, err := protocol.ParseReply(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", lives.ErrBroken, err)
	}
	if i, is := d.gets[correlation]; is {
		if !strings.HasPrefix(correlation, d.connection()) {
			return nil // it has waited in the session since an earlier connection ended
		}
		d.values[i] = string(r.Blob)
		if d.read++; d.read == accounts {
			return d.resolved()
		}
		return nil
	}
	if !strings.HasPrefix(string(payload), "*2\r\n:1\r\n") {
		return fmt.Errorf("%w: a TXN of the clerk got %q", lives.ErrBroken, payload)
	}
	if _, is := d.expected[correlation]; !is {
		return nil // which opened the accounts, or was asked over an earlier connection
	}
	if len(d.atWork) == 0 || d.atWork[0].packetID != d.expected[correlation] {
		return fmt.Errorf("%w: the reply to a TXN came out of order", lives.ErrBroken)
	}
	delete(d.expected, correlation)
	d.books.enter(d.atWork[0])
	d.atWork = d.atWork[1:]
	return nil
}

// resolved is called when all accounts have been read.
func (d *desk) resolved() error {
	if err := d.books.resolve(d.values); err != nil {
		return err
	}
	d.books.begun = true
	for _, o := range d.waiting {
		if err := d.came(o.order); err != nil {
			return err
		}
	}
	d.Out = mqtt.AppendPingreq(d.Out)
	return nil
}
