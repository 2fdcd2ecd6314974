package consistent

import "sync"

// receiveMaximum is how many messages the server sends without an acknowledgement, as the
// client announces. Messages beyond it wait in the server's queue for the session.
const receiveMaximum = 1024

// backlog counts the messages that are not acknowledged, and says when the processor holds
// up the server: from then on messages wait in the queue for its session, and when that is
// full the server refuses publishes to the processor's topics.
type backlog struct {
	mu   sync.Mutex
	open int  // under mu
	full bool // under mu: it was said
}

// add counts a message, and returns its acknowledgement.
func (b *backlog) add(p *Processor, ack func()) func() {
	b.mu.Lock()
	b.open++
	first := b.open >= receiveMaximum && !b.full
	b.full = b.full || first
	b.mu.Unlock()
	if first {
		p.o.metrics.Count(p.o.name, "", CountBackpressure)
		p.o.logger.Warn("this processor has as many messages as the server sends without an acknowledgement; others wait at the server, which refuses publishes to the processor's topics when its queue is full (0x97)",
			"processor", p.o.name, "messages", receiveMaximum)
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			b.mu.Lock()
			b.open--
			over := b.full && b.open <= receiveMaximum/2
			if over {
				b.full = false
			}
			b.mu.Unlock()
			if over {
				p.o.logger.Info("this processor has caught up with half of the messages that the server sends without an acknowledgement", "processor", p.o.name)
			}
		})
		ack()
	}
}
