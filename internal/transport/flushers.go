package transport

import (
	"runtime"
	"sync"
)

// Flushers are the goroutines behind FlushSoon: a few for all connections. Who
// has appended to many connections (a fan-out, a completed batch) hands them
// over and goes on, and the system calls are made on all cores.
//
// The queue is a list through the connections themselves: it needs no memory,
// has no bound to overflow, and holds each connection at most once.
type Flushers struct {
	mu         sync.Mutex
	work       sync.Cond // on mu: head is not nil, or closed
	head, tail *Conn     // mu
	idle       int       // mu: flushers that wait
	closed     bool      // mu
	running    sync.WaitGroup
}

// NewFlushers starts n flushers; n <= 0 means GOMAXPROCS. End them with Close.
func NewFlushers(n int) *Flushers {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	f := &Flushers{}
	f.work.L = &f.mu
	for range n {
		f.running.Go(f.run)
	}
	return f
}

// Close flushes what is queued and ends the flushers. A later FlushSoon flushes
// on its caller's goroutine.
func (f *Flushers) Close() {
	f.mu.Lock()
	f.closed = true
	f.work.Broadcast()
	f.mu.Unlock()
	f.running.Wait()
}

// push queues c, whose queued was just set by the caller.
func (f *Flushers) push(c *Conn) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		c.queued.Store(false)
		c.Flush()
		return
	}
	if f.tail == nil {
		f.head = c
	} else {
		f.tail.next = c
	}
	f.tail = c
	if f.idle > 0 {
		f.work.Signal()
	}
	f.mu.Unlock()
}

// pop waits for a connection; nil means that the flushers are closed and the
// queue is empty.
func (f *Flushers) pop() *Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.head == nil {
		if f.closed {
			return nil
		}
		f.idle++
		f.work.Wait()
		f.idle--
	}
	c := f.head
	f.head, c.next = c.next, nil
	if f.head == nil {
		f.tail = nil
	}
	return c
}

func (f *Flushers) run() {
	for c := f.pop(); c != nil; c = f.pop() {
		// Cleared before the flush: what is appended during it queues c again.
		c.queued.Store(false)
		c.Flush()
	}
}
