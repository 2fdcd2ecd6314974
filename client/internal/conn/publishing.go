package conn

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// Sender is a connection of a session whose messages outlive it (clientconn.Unacknowledged).
type Sender interface {
	comparable
	Link
	SendKept(ctx context.Context, qos byte, pending clientconn.Pending, encode func(dst []byte, packetID uint16) []byte) error
	// Dead is closed after the end of the connection, when there is no other one yet.
	Dead() <-chan struct{}
}

// Publish sends messages at QoS 1, in order, and waits for all acknowledgements. It begins
// with the connection l, and goes on over the next one of k if that ends. encode gives what
// appends message i, from 0.
//
// An error is that of message i; sent says whether this message, or one before it, may have
// been published. The error is clientconn.ErrEnded if the server has lost the session.
func Publish[L Sender](ctx context.Context, k *Upkeep[L], l L, messages int, encode func(i int) func(dst []byte, packetID uint16) []byte) (i int, sent bool, err error) {
	p := newPublishing(messages)
	for i := range messages {
		for {
			err := l.SendKept(ctx, 1, &p.sent[i], encode(i))
			if err == nil {
				break
			}
			if !errors.Is(err, clientconn.ErrEnded) {
				return i, i > 0, err
			}
			select {
			case <-l.Dead():
			case <-ctx.Done():
			}
			if l, err = k.Live(ctx); err != nil {
				return i, i > 0, err
			}
			if i, err := p.failed(); err != nil { // the messages after it would lack it
				return i, true, err
			}
		}
	}
	i, err = p.await(ctx)
	return i, true, err
}

// publishing is messages that were sent together and wait for their acknowledgements.
type publishing struct {
	sent []sentMessage
	done chan struct{} // closed when there are no more to come

	mu   sync.Mutex
	left int // under mu: acknowledgements to come
}

// sentMessage is a message of a publishing. It implements clientconn.Pending.
type sentMessage struct {
	of      *publishing
	settled bool  // under of.mu
	err     error // under of.mu
}

// newPublishing is for so many messages.
func newPublishing(messages int) *publishing {
	p := &publishing{sent: make([]sentMessage, messages), done: make(chan struct{}), left: messages}
	for i := range p.sent {
		p.sent[i].of = p
	}
	if messages == 0 {
		close(p.done)
	}
	return p
}

func (m *sentMessage) Acknowledged(o clientconn.Outcome) { m.settle(o.Err()) }
func (m *sentMessage) Lost()                             { m.settle(clientconn.ErrEnded) }

func (m *sentMessage) settle(err error) {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.settled, m.err = true, err
	if m.of.left--; m.of.left == 0 {
		close(m.of.done)
	}
}

// await waits for all acknowledgements, and returns the first message that has failed, or
// that has no acknowledgement when ctx ends.
func (p *publishing) await(ctx context.Context) (i int, err error) {
	var ended error
	select {
	case <-p.done:
	case <-ctx.Done():
		ended = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sent {
		switch m := &p.sent[i]; {
		case m.err != nil:
			return i, m.err
		case !m.settled:
			return i, ended
		}
	}
	return 0, nil
}

// failed returns the first message that has failed so far.
func (p *publishing) failed() (i int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sent {
		if err := p.sent[i].err; err != nil {
			return i, err
		}
	}
	return 0, nil
}
