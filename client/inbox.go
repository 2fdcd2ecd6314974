package client

import (
	"context"
	"sync"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
)

// Delivery is a message that was received.
type Delivery struct {
	Message
	// Redelivered: it may have been delivered before (the DUP flag [MQTT-3.3.1-1]).
	Redelivered bool
	ack         func() // nil: there is nothing to acknowledge
}

// NewDelivery makes a Delivery whose Ack calls ack, which may be nil: for tests, and for
// sources of messages other than a [Session].
func NewDelivery(m Message, redelivered bool, ack func()) Delivery {
	return Delivery{Message: m, Redelivered: redelivered, ack: ack}
}

// Ack acknowledges the message: the server forgets it. It belongs to the connection
// over which the message came, and does nothing once that is lost: the message comes
// again. Acknowledgements leave in the order of the messages [MQTT-4.6.0-2], so one that
// is missing holds the later ones back, and after 1,024 of them the server sends nothing
// more. Acknowledging twice is harmless, and so is acknowledging a message of QoS 0.
func (d Delivery) Ack() {
	if d.ack != nil {
		d.ack()
	}
}

// inboxBound is how many messages at QoS 0 may wait. At QoS 1 the Receive Maximum that
// the client announces bounds them, which is the same number.
const inboxBound = conn.ReceiveMaximum

// inbox holds the messages that a connection has received and that no loop over
// [Session.Messages] has taken yet. With the connection they are forgotten: the server
// sends those at QoS 1 again.
type inbox struct {
	more chan struct{} // has an element when messages may wait

	mu        sync.Mutex
	from      *sessionLink // under mu: where messages are taken from; nil while there is no connection
	waiting   []Delivery   // under mu
	unbounded int          // under mu: how many of waiting are of QoS 0, which the Receive Maximum does not bound
	dropped   bool         // under mu: the last message at QoS 0 was dropped
}

func newInbox() inbox { return inbox{more: make(chan struct{}, 1)} }

// open begins a connection.
func (b *inbox) open(l *sessionLink) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.from, b.waiting, b.unbounded, b.dropped = l, nil, 0, false
}

// clear ends a connection.
func (b *inbox) clear() { b.open(nil) }

// put adds a message, unless its connection has ended. It returns false for the first of
// several messages at QoS 0 that are dropped because too many wait.
func (b *inbox) put(l *sessionLink, d Delivery, qos1 bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.from != l:
		return true
	case !qos1 && b.unbounded >= inboxBound:
		first := !b.dropped
		b.dropped = true
		return !first
	case !qos1:
		b.unbounded++
		b.dropped = false
	}
	b.waiting = append(b.waiting, d)
	b.signal()
	return true
}

// signal wakes one loop. The caller holds mu.
func (b *inbox) signal() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// take waits for the next message.
func (b *inbox) take(ctx context.Context, closed <-chan struct{}) (Delivery, error) {
	for {
		select {
		case <-closed:
			return Delivery{}, ErrClosed
		case <-ctx.Done():
			return Delivery{}, context.Cause(ctx)
		default:
		}
		if d, ok := b.next(); ok {
			return d, nil
		}
		select {
		case <-b.more:
		case <-closed:
		case <-ctx.Done():
		}
	}
}

func (b *inbox) next() (Delivery, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return Delivery{}, false
	}
	d := b.waiting[0]
	b.waiting[0] = Delivery{}
	b.waiting = b.waiting[1:]
	if d.ack == nil {
		b.unbounded--
	}
	if len(b.waiting) > 0 {
		b.signal() // another loop may wait
	}
	return d, true
}
