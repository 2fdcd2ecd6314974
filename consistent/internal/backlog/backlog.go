// Package backlog counts the messages of a processor that are not acknowledged, and says when
// it holds up the server.
package backlog

import "sync"

// ReceiveMaximum is how many messages the server sends without an acknowledgement, as the
// client announces. Messages beyond it wait in the server's queue for the session.
const ReceiveMaximum = 1024

// Backlog counts the messages that are not acknowledged. When there are as many as
// ReceiveMaximum it calls Full: from then on messages wait in the queue for the session, and when
// that is full the server refuses publishes to the processor's topics. When half of them are
// left it calls Over. It is safe for concurrent use.
type Backlog struct {
	Full, Over func()

	mu   sync.Mutex
	open int  // under mu
	full bool // under mu: Full was called
}

// Add counts a message, and returns its acknowledgement.
func (b *Backlog) Add(ack func()) func() {
	b.mu.Lock()
	b.open++
	first := b.open >= ReceiveMaximum && !b.full
	b.full = b.full || first
	b.mu.Unlock()
	if first {
		b.Full()
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			b.mu.Lock()
			b.open--
			over := b.full && b.open <= ReceiveMaximum/2
			if over {
				b.full = false
			}
			b.mu.Unlock()
			if over {
				b.Over()
			}
		})
		ack()
	}
}
