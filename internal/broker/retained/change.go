package retained

import "github.com/holdfast-mqtt/holdfast/internal/broker/message"

// Change is what a transaction stores or deletes under one topic. The lock of the topic is
// held from Change on until AfterBatch of the message is set, or until Undo.
//
// A replay waits for AfterBatch, so no client is sent the message, or misses the one that
// was deleted, before the transaction is durable. So that a replay comes across a deletion,
// a message without payload stands for it until then.
type Change struct {
	Message *message.Message // with a reference; without payload it deletes
	old     *message.Message // what was stored before; nil: nothing
}

// Change is Put for a transaction. It says false at the bound.
func (r *Store) Change(o *message.Outgoing) (c Change, ok bool) {
	c.old, _ = r.names.Get(o.Topic)
	if !r.Put(o) {
		return Change{}, false
	}
	c.Message = o.Kept()
	c.Message.Keep()
	if len(o.Payload) == 0 && c.old != nil {
		r.names.Put(string(o.Topic), c.Message)
	}
	return c, true
}

// Undo restores what was stored before. Of several changes the last is undone first.
func (r *Store) Undo(c Change) {
	topic := c.Message.Topic()
	if m, had := r.names.Delete(topic); had {
		r.note(m, -1)
	}
	if c.old != nil {
		r.names.Put(string(topic), c.old)
		r.note(c.old, 1)
	}
	c.Message.Release()
}

// Durable is to be called when the transaction is durable. No lock is held.
func (r *Store) Durable(c Change) {
	if topic := c.Message.Topic(); len(c.Message.Payload()) == 0 {
		lock := r.LockOf(topic)
		lock.Lock()
		if m, _ := r.names.Get(topic); m == c.Message { // or it has been replaced meanwhile
			r.names.Delete(topic)
		}
		lock.Unlock()
	}
	c.Message.Release()
}
