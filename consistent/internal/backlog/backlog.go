// Package backlog counts the messages of a processor that are not acknowledged, and says when
// it holds up the server.
package backlog

import (
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Most is how many messages the server sends without an acknowledgement: one less than the Receive
// Maximum that the client announces, as it leaves a place for responses. Messages beyond it wait in
// the server's queue for the session.
const Most = 1024 - 1

// Backlog counts the messages that are not acknowledged. When there are as many as
// Most it calls Full: from then on messages wait in the queue for the session, and when
// that is full the server refuses publishes to the processor's topics. When half of them are
// left it calls Over. It is safe for concurrent use.
type Backlog struct {
	Full, Over func()

	mu   sync.Mutex
	open int  // under mu
	full bool // under mu: Full was called
}

// Entry is a message that is not acknowledged. It implements lanes.Ack.
type Entry struct {
	delivery [1]client.Delivery
	of       *Backlog
	shared   bool         // by several handlers
	left     atomic.Int64 // handlers that are not done with it
}

// Add counts a message, for so many handlers, at least 1.
func (b *Backlog) Add(d client.Delivery, handlers int) *Entry {
	e := &Entry{delivery: [1]client.Delivery{d}, of: b, shared: handlers > 1}
	e.left.Store(int64(handlers))
	b.mu.Lock()
	b.open++
	first := b.open >= Most && !b.full
	b.full = b.full || first
	b.mu.Unlock()
	if first {
		b.Full()
	}
	return e
}

// Ack is called once by each handler. The last one acknowledges the message.
func (e *Entry) Ack() {
	if e.left.Add(-1) == 0 {
		e.of.remove()
		e.delivery[0].Ack()
	}
}

// CanSettle tells whether a transaction could acknowledge the message at this moment: it is for
// one handler.
func (e *Entry) CanSettle() bool { return !e.shared && e.delivery[0].CanSettle() }

// Deliveries is the message by itself. It must not be changed.
func (e *Entry) Deliveries() []client.Delivery { return e.delivery[:] }

// remove counts a message that is acknowledged.
func (b *Backlog) remove() {
	b.mu.Lock()
	b.open--
	over := b.full && b.open <= Most/2
	if over {
		b.full = false
	}
	b.mu.Unlock()
	if over {
		b.Over()
	}
}
