package broker

import (
	"container/heap"
	"time"

	"holdfast/internal/failstop"
	"holdfast/internal/lockrank"
)

// Retained messages that have expired go without a subscriber having to come across
// them, or they would take the place of others for ever: a heap has those that can
// expire by their deadlines, and a goroutine removes what is due, from the disk, too. It
// removes a bounded number at a time. A publish that finds the store full removes some
// by itself, so that it isn't refused for messages which are over.

const (
	// expiredPerSweep is how many messages one look at the deadlines removes at the most:
	// some 16,000 a second.
	expiredPerSweep = 4096
	// expiredPerPublish is how many a publish removes that finds the store full.
	expiredPerPublish = 64
	// expiredPerAdmission is how many are removed before the disk is asked whether it
	// keeps up.
	expiredPerAdmission = 256
)

// deadlines has the retained messages that can expire, the first to do so on top. A
// message is in it as long as it is in the store.
type deadlines struct {
	mu   lockrank.Mutex[lockrank.Deadlines]
	heap deadlineHeap // guarded by mu
}

func (d *deadlines) add(m *Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	heap.Push(&d.heap, m)
}

func (d *deadlines) remove(m *Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	heap.Remove(&d.heap, int(m.deadlineAt))
}

// due gives the message that expires first, if it has expired, and leaves it where it is.
func (d *deadlines) due(now int64) *Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) == 0 || d.heap[0].expiresAt > now {
		return nil
	}
	return d.heap[0]
}

// deadlineHeap implements heap.Interface.
type deadlineHeap []*Message

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].expiresAt < h[j].expiresAt }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].deadlineAt, h[j].deadlineAt = int32(i), int32(j)
}

func (h *deadlineHeap) Push(x any) {
	m := x.(*Message)
	m.deadlineAt = int32(len(*h))
	*h = append(*h, m)
}

func (h *deadlineHeap) Pop() any {
	old := *h
	last := len(old) - 1
	m := old[last]
	old[last] = nil
	*h = old[:last]
	return m
}

// sweepRetained removes retained messages when they have expired, until the broker stops.
func (b *Broker) sweepRetained() {
	defer failstop.End(b.log, "the expiry of retained messages")
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.stop:
			return
		}
		for n := 0; n < expiredPerSweep && b.retained.deadlines.due(b.Now()) != nil; n += expiredPerAdmission {
			b.journal.Admit()
			b.expireRetained(b.Now(), expiredPerAdmission)
		}
	}
}

// expireRetained removes retained messages that have expired by now, at most so many,
// and says whether there were any. No lock is held.
func (b *Broker) expireRetained(now int64, most int) (any bool) {
	r := &b.retained
	for range most {
		m := r.deadlines.due(now)
		if m == nil {
			break
		}
		any = true
		stripe := r.stripe(m.topic())
		stripe.Lock()
		if kept, found := r.names.Get(m.topic()); found && kept == m { // or it has been replaced meanwhile
			b.removeExpired(m)
		}
		stripe.Unlock()
	}
	return any
}

// removeExpired removes an expired message from the store and from the disk. The lock
// of its topic's stripe is held.
func (b *Broker) removeExpired(m *Message) {
	b.retained.names.Delete(m.topic())
	b.retained.note(m, -1)
	a := b.journal.Begin()
	a.Delete(topicKey(retainedPrefix, m.topic()))
	a.End(nil)
}
