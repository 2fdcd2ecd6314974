package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/mqttconn"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// stampBytes is how many bytes of a message say when it was published.
const stampBytes = 8

// topicLoad publishes, and receives what it has published.
type topicLoad struct {
	*load
	name         string
	began        time.Time // what messages' times count from
	pairs        []*pair
	acknowledged timings // until PUBACK or PUBCOMP
	received     timings
}

// pair is a topic with a connection that publishes to it, and one that subscribes to it.
type pair struct {
	load      *topicLoad
	topic     string
	publisher *mqttconn.Conn
	receiver  *mqttconn.Conn
	// A place for each message that is published and not received, and for each that is not
	// acknowledged.
	received, acknowledged chan struct{}
	refused                chan error // why the server did not take a message; the first
}

func newTopicLoad(l *load) *topicLoad {
	t := &topicLoad{load: l, name: randomName(), began: time.Now(), pairs: make([]*pair, l.clients)}
	t.acknowledged.name, t.received.name = "acknowledged", "received"
	return t
}

func (t *topicLoad) measured() []*timings {
	if t.qos == 0 { // the server acknowledges nothing
		return []*timings{&t.received}
	}
	return []*timings{&t.received, &t.acknowledged}
}

func (t *topicLoad) connect(ctx context.Context) error {
	return t.each(connectsAtOnce, func(i int) error {
		p := &pair{load: t, topic: fmt.Sprint(t.name, i), received: make(chan struct{}, t.inflight), acknowledged: make(chan struct{}, t.inflight), refused: make(chan error, 1)}
		t.pairs[i] = p
		if err := t.open(ctx, &p.publisher, func(*mqtt.Publish) {}); err != nil {
			return err
		}
		if err := t.open(ctx, &p.receiver, p.take); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, t.c.Timeout)
		defer cancel()
		err := p.receiver.Subscribe(ctx, &mqtt.Subscribe{Subscriptions: []mqtt.Subscription{{Filter: []byte(p.topic), QoS: byte(t.qos)}}})
		if err != nil {
			return fmt.Errorf("cannot subscribe to %s: %w", p.topic, mqttconn.Rejected(err))
		}
		return nil
	})
}

// open connects. The connection is set before messages can come.
func (t *topicLoad) open(ctx context.Context, to **mqttconn.Conn, received func(*mqtt.Publish)) error {
	broker, err := mqttconn.NewBroker(t.c)
	if err != nil {
		return err
	}
	cfg := clientconn.Config{Received: received, QoS2: new(clientconn.Unreleased)}
	if err := broker.Open(ctx, cfg, &mqtt.Connect{CleanStart: true}, func(c *mqttconn.Conn) { *to = c }); err != nil {
		*to = nil // nothing is left of it
		return err
	}
	return nil
}

// take notes that a message has come, on the goroutine that reads the connection.
func (p *pair) take(m *mqtt.Publish) {
	if m.QoS > 0 {
		p.receiver.Acknowledge(m.QoS, m.PacketID)
	}
	if len(m.Payload) < stampBytes {
		return // of another client
	}
	if p.release() {
		p.load.received.observe(time.Since(p.load.began) - time.Duration(binary.BigEndian.Uint64(m.Payload)))
	}
}

// release gives up the place of a message that was received. There is none for
// one that another client has published, or that comes twice.
func (p *pair) release() bool {
	select {
	case <-p.received:
		return true
	default:
		return false
	}
}

func (t *topicLoad) run(ctx, until context.Context) error {
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
		cancel()
	}
	var group sync.WaitGroup
	for _, p := range t.pairs {
		group.Go(func() {
			if err := p.publish(ctx, until); err != nil {
				fail(err)
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// errOver means that the time is up, or the command is interrupted.
var errOver = errors.New("the load is over")

// publish publishes one message at least, and further ones until until ends. Then it waits
// for what is under way, unless ctx ends.
func (p *pair) publish(ctx, until context.Context) error {
	payload := make([]byte, p.load.size)
	for first := true; first || until.Err() == nil; first = false {
		for _, bound := range []chan struct{}{p.received, p.acknowledged} {
			if first {
				bound <- struct{}{}
			} else if err := p.wait(ctx, until, bound); errors.Is(err, errOver) {
				if bound == p.acknowledged {
					p.release() // the place of a message that is not published
				}
				return p.drain(ctx)
			} else if err != nil {
				return err
			}
		}
		if err := p.send(ctx, payload); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("publish to %s: %w", p.topic, err)
		}
	}
	return p.drain(ctx)
}

// drain waits until all messages are received and acknowledged: all places are free then.
func (p *pair) drain(ctx context.Context) error {
	for _, bound := range []chan struct{}{p.received, p.acknowledged} {
		for range cap(bound) {
			if err := p.wait(ctx, ctx, bound); errors.Is(err, errOver) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// wait takes a place among the messages that are under way. The error is errOver if until
// or ctx ends before there is one.
func (p *pair) wait(ctx, until context.Context, bound chan struct{}) error {
	overdue := time.NewTimer(p.load.c.Timeout)
	defer overdue.Stop()
	select {
	case bound <- struct{}{}:
		return nil
	case <-until.Done():
		return errOver
	case <-ctx.Done():
		return errOver
	case <-p.publisher.Done():
		return p.publisher.WhyEnded()
	case <-p.receiver.Done():
		return p.receiver.WhyEnded()
	case err := <-p.refused:
		return fmt.Errorf("publish to %s: %w", p.topic, err)
	case <-overdue.C:
		return fmt.Errorf("messages to %s have been under way for %v: does the server drop messages of QoS %d?", p.topic, p.load.c.Timeout, p.load.qos)
	}
}

// send publishes one message.
func (p *pair) send(ctx context.Context, payload []byte) error {
	published := time.Since(p.load.began)
	binary.BigEndian.PutUint64(payload, uint64(published))
	m := mqtt.Delivery{QoS: byte(p.load.qos), Topic: []byte(p.topic), Payload: payload}
	if m.QoS == 0 {
		<-p.acknowledged // there is nothing to wait for
		return p.publisher.SendQoS0(ctx, func(dst []byte) []byte { return mqtt.AppendDelivery(dst, mqtt.V5, &m) })
	}
	return p.publisher.Send(ctx, m.QoS, &publication{p, published}, func(dst []byte, packetID uint16) []byte {
		m.PacketID = packetID
		return mqtt.AppendDelivery(dst, mqtt.V5, &m)
	})
}

// publication is a message that the server has not acknowledged. It implements
// clientconn.Pending.
type publication struct {
	pair      *pair
	published time.Duration
}

func (m *publication) Acknowledged(o clientconn.Outcome) {
	if err := o.Err(); err != nil {
		select {
		case m.pair.refused <- mqttconn.Rejected(err):
		default:
		}
		return
	}
	m.pair.load.acknowledged.observe(time.Since(m.pair.load.began) - m.published)
	<-m.pair.acknowledged
}

func (m *publication) Lost() {}

func (t *topicLoad) close() {
	for _, p := range t.pairs {
		if p == nil {
			continue
		}
		for _, c := range []*mqttconn.Conn{p.publisher, p.receiver} {
			if c != nil {
				c.Disconnect(&mqtt.Disconnect{})
			}
		}
	}
}

var errNone = errors.New("nothing was done: the server is too slow")
