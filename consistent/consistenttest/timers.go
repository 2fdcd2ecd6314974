package consistenttest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
)

// timer is a message that is delivered when [Broker.Advance] has moved the time so far.
type timer struct {
	id      string
	due     time.Time
	number  int // in the order in which they were set
	message consistent.Message
}

// accept publishes a message, or sets the timer that it is. The caller holds mu.
func (b *Broker) accept(m *consistent.Message) {
	due, ok := timed.Due(m, b.store.now)
	if !ok {
		b.published = append(b.published, *m)
		b.route(m)
		return
	}
	id, _ := timed.ID(m)
	b.set++
	if id == "" {
		id = fmt.Sprintf("unnamed timer %d", b.set)
	}
	b.cancel(id)
	b.timers = append(b.timers, timer{id, due, b.set, timed.Delivered(*m)})
	b.ring()
}

// cancel cancels a timer, if there is one. The caller holds mu.
func (b *Broker) cancel(id string) {
	b.timers = slices.DeleteFunc(b.timers, func(t timer) bool { return t.id == id })
}

// ring publishes the messages of the timers that are due, in the order of their times. The caller
// holds mu.
func (b *Broker) ring() {
	slices.SortFunc(b.timers, func(x, y timer) int {
		return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.number, y.number))
	})
	n := 0
	for ; n < len(b.timers) && !b.timers[n].due.After(b.store.now); n++ {
		b.published = append(b.published, b.timers[n].message)
		b.route(&b.timers[n].message)
	}
	b.timers = slices.Delete(b.timers, 0, n)
}

// Timers returns the timers that wait, in the order in which they are due.
func (b *Broker) Timers() (waiting []client.Timer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.timers {
		waiting = append(waiting, client.Timer{ID: t.id, Due: t.due, Topic: t.message.Topic})
	}
	return waiting
}
