package retained

import (
	"container/heap"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
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

func (d *deadlines) add(m *message.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	heap.Push(&d.heap, m)
}

func (d *deadlines) remove(m *message.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	heap.Remove(&d.heap, int(m.DeadlineAt))
}

// due gives the message that expires first, if it has expired, and leaves it where it is.
func (d *deadlines) due(now int64) *message.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) == 0 || d.heap[0].ExpiresAt > now {
		return nil
	}
	return d.heap[0]
}

// deadlineHeap implements heap.Interface.
type deadlineHeap []*message.Message

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].ExpiresAt < h[j].ExpiresAt }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].DeadlineAt, h[j].DeadlineAt = int32(i), int32(j)
}

func (h *deadlineHeap) Push(x any) {
	m := x.(*message.Message)
	m.DeadlineAt = int32(len(*h))
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

// Sweep removes retained messages when they have expired, until stop is closed.
func (r *Store) Sweep(interval time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		for n := 0; n < expiredPerSweep && r.deadlines.due(r.o.Now()) != nil; n += expiredPerAdmission {
			r.o.Journal.Admit()
			r.Expire(r.o.Now(), expiredPerAdmission)
		}
	}
}

// Expire removes retained messages that have expired by now, at most so many,
// and says whether there were any. No lock is held.
func (r *Store) Expire(now int64, most int) (any bool) {
	for range most {
		m := r.deadlines.due(now)
		if m == nil {
			break
		}
		any = true
		stripe := r.LockOf(m.Topic())
		stripe.Lock()
		if kept, found := r.names.Get(m.Topic()); found && kept == m { // or it has been replaced meanwhile
			r.Remove(m)
		}
		stripe.Unlock()
	}
	return any
}

// Remove removes a message that is stored from the store and from the disk. The lock
// of its topic's stripe is held.
func (r *Store) Remove(m *message.Message) {
	r.names.Delete(m.Topic())
	r.note(m, -1)
	a := r.o.Journal.Begin()
	a.Delete(rows.RetainedKey(m.Topic()))
	a.End(nil)
}

// MakeRoom removes some messages that have expired, and says whether there were any. No
// lock is held.
func (r *Store) MakeRoom() bool { return r.Expire(r.o.Now(), expiredPerPublish) }
