package queue

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/stats"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Charges counts the messages of queues, and charges them to the pool of memory as one
// kind.
type Charges struct {
	Stats    *stats.Counters
	Memory   *memory.Pool
	Accounts *message.Accounts
	Kind     memory.Kind
}

// Count adds a slot to the levels.
func (c *Charges) Count(q *Queue, it *Slot) {
	it.Held = true
	c.Level(q, 1, int64(it.Size))
}

// Uncount takes a slot out of the levels, if it is in.
func (c *Charges) Uncount(q *Queue, it *Slot) {
	if it.Held {
		it.Held = false
		c.Level(q, -1, -int64(it.Size))
	}
}

// Level adds to the levels of the queue, and of all queues.
func (c *Charges) Level(q *Queue, messages, bytes int64) {
	q.Messages += int(messages)
	q.Bytes += bytes
	c.Stats.Queued.Add(messages)
	c.Stats.QueuedBytes.Add(bytes)
}

// Hold counts a slot's message as in memory.
func (c *Charges) Hold(q *Queue, it *Slot) {
	q.InMemory += int64(it.Size)
	if it.Size >= ChargedAlone {
		c.Accounts.Charge(it.Message, c.Kind)
	} else {
		q.small += SlotOverhead + int64(it.Size)
		c.charge(q)
	}
}

// LetGo releases a slot's message.
func (c *Charges) LetGo(q *Queue, it *Slot) {
	if it.Message == nil {
		return
	}
	q.InMemory -= int64(it.Size)
	if it.Size < ChargedAlone {
		q.small -= SlotOverhead + int64(it.Size)
		c.charge(q)
	}
	it.Message.Release()
	it.Message = nil
}

// chargeStep is the unit, in bytes, in which small messages are charged: the pool's
// counters change once for many of them.
const chargeStep = 4 << 10

// charge charges what the queue holds in small messages.
func (c *Charges) charge(q *Queue) {
	if d := q.small - q.charged; d >= chargeStep || d <= -chargeStep || q.small == 0 && d != 0 {
		c.Memory.Charge(c.Kind, d)
		q.charged = q.small
	}
}
