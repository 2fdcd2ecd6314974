// Package inbox holds the messages that a connection of a session has received and that no
// loop has taken yet. It does not know what a message is.
package inbox

import (
	"context"
	"sync"
)

// Box holds messages of type D that came over a connection of type L. With the connection
// they are forgotten: the server sends those at QoS 1 again. It is safe for concurrent use.
type Box[L comparable, D any] struct {
	more   chan struct{} // has an element when messages may wait
	most   int           // messages at QoS 0 that may wait
	closed error

	mu        sync.Mutex
	from      L          // under mu: where messages are taken from; zero while there is no connection
	waiting   []entry[D] // under mu: a part of room
	room      []entry[D] // under mu: from its start; used again when waiting is empty
	unbounded int        // under mu: how many of waiting are of QoS 0, which the Receive Maximum does not bound
	dropped   bool       // under mu: the last message at QoS 0 was dropped
}

type entry[D any] struct {
	message D
	qos1    bool
}

// New makes a Box in which up to most messages at QoS 0 may wait. Take returns closed when
// there will be no more.
func New[L comparable, D any](most int, closed error) *Box[L, D] {
	return &Box[L, D]{more: make(chan struct{}, 1), most: most, closed: closed}
}

// Open begins a connection.
func (b *Box[L, D]) Open(l L) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.from, b.waiting, b.room, b.unbounded, b.dropped = l, nil, nil, 0, false
}

// Clear ends a connection.
func (b *Box[L, D]) Clear() {
	var none L
	b.Open(none)
}

// Put adds a message, unless its connection has ended. It returns false for the first of
// several messages at QoS 0 that are dropped because too many wait.
func (b *Box[L, D]) Put(l L, d D, qos1 bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.from != l:
		return true
	case !qos1 && b.unbounded >= b.most:
		first := !b.dropped
		b.dropped = true
		return !first
	case !qos1:
		b.unbounded++
		b.dropped = false
	}
	if len(b.waiting) == 0 {
		b.waiting = b.room[:0]
	}
	grown := append(b.waiting, entry[D]{d, qos1})
	if len(grown) == 1 || cap(b.waiting) < len(grown) {
		b.room = grown
	}
	b.waiting = grown
	b.signal()
	return true
}

// signal wakes one loop. The caller holds mu.
func (b *Box[L, D]) signal() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// Take waits for the next message. The error is the context's, or that of New once done is
// closed.
func (b *Box[L, D]) Take(ctx context.Context, done <-chan struct{}) (d D, err error) {
	for {
		select {
		case <-done:
			return d, b.closed
		case <-ctx.Done():
			return d, context.Cause(ctx)
		default:
		}
		if d, ok := b.next(); ok {
			return d, nil
		}
		select {
		case <-b.more:
		case <-done:
		case <-ctx.Done():
		}
	}
}

func (b *Box[L, D]) next() (d D, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return d, false
	}
	first := b.waiting[0]
	b.waiting[0] = entry[D]{}
	b.waiting = b.waiting[1:]
	if !first.qos1 {
		b.unbounded--
	}
	if len(b.waiting) > 0 {
		b.signal() // another loop may wait
	}
	return first.message, true
}
