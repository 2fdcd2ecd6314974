package conn

import (
	"context"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// Publishing is messages that were sent together and wait for their acknowledgements.
type Publishing struct {
	sent []sentMessage
	done chan struct{} // closed when there are no more to come

	mu   sync.Mutex
	left int // under mu: acknowledgements to come
}

// sentMessage is a message of a Publishing. It implements clientconn.Pending.
type sentMessage struct {
	of      *Publishing
	settled bool  // under of.mu
	err     error // under of.mu
}

// NewPublishing is for so many messages.
func NewPublishing(messages int) *Publishing {
	p := &Publishing{sent: make([]sentMessage, messages), done: make(chan struct{}), left: messages}
	for i := range p.sent {
		p.sent[i].of = p
	}
	if messages == 0 {
		close(p.done)
	}
	return p
}

// Message is what is told the outcome of message i, from 0.
func (p *Publishing) Message(i int) clientconn.Pending { return &p.sent[i] }

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

// Await waits for all acknowledgements, and returns the first message that has failed, or
// that has no acknowledgement when ctx ends.
func (p *Publishing) Await(ctx context.Context) (i int, err error) {
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
