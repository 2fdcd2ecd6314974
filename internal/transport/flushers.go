package transport

import (
	"runtime"
	"sync"
	"sync/atomic"

	"holdfast/internal/lockrank"
)

// Flushers are the goroutines behind FlushSoon and FlushInCrowd: a few for all
// connections. Who has appended to many connections (a fan-out, a completed
// batch) hands them over and goes on, and the system calls are made on all cores.
//
// Ten thousand connections that are handed over at once (the watchers of one key)
// keep the processors busy for a tenth of a second. Served like any other, they
// would have everybody else wait for the end of it: who wants an answer to a SET,
// as it stands behind them in the queue, and who wants one to a GET, as the ten
// thousand answer, too, and whoever reads them does so in the order in which they
// came. So a crowd has a queue and flushers of its own, which take it in portions
// and let pass, after each, who waits for a processor (way.give). They are one
// fewer than the processors. By that the answers of a portion are read before the
// next leaves, and never are many on their way. The crowd loses little: it is the
// machine's work that takes the time, and it is only done in another order.
type Flushers struct {
	soon, crowd flushQueue
	running     sync.WaitGroup
}

// crowdPortion is how many connections of a crowd a flusher serves before it gives
// way: half a millisecond of system calls. With less, the last of ten thousand
// waits longer, as each portion costs a turn of everybody who wants one; with
// more, everybody else does.
const crowdPortion = 64

// NewFlushers starts flushers for n processors; n <= 0 means GOMAXPROCS. End them
// with Close.
func NewFlushers(n int) *Flushers {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	f := idleFlushers()
	for range n {
		f.running.Go(func() { f.soon.serve(1, func() {}) })
	}
	for range max(1, n-1) {
		f.running.Go(func() {
			w := newWay()
			defer w.close()
			f.crowd.serve(crowdPortion, w.give)
		})
	}
	return f
}

// idleFlushers makes the queues and nobody who serves them.
func idleFlushers() *Flushers {
	f := &Flushers{}
	f.crowd.number = 1
	f.soon.work.L = &f.soon.mu
	f.crowd.work.L = &f.crowd.mu
	return f
}

// Close flushes what is queued and ends the flushers. A later FlushSoon flushes
// on its caller's goroutine.
func (f *Flushers) Close() {
	f.soon.close()
	f.crowd.close()
	f.running.Wait()
}

// flushQueue is a list through the connections themselves: it needs no memory,
// has no bound to overflow, and holds each connection at most once.
type flushQueue struct {
	number     int // which of a connection's places are this queue's
	mu         lockrank.Mutex[lockrank.FlushQueue]
	work       sync.Cond // on mu: head is not nil, or closed
	head, tail *Conn     // mu
	idle       int       // mu: flushers that wait
	closed     bool      // mu
}

// place is a connection's place in a queue.
type place struct {
	taken atomic.Bool // the connection is in the queue
	next  *Conn       // the queue's lock; then the flusher's that took it
}

func (q *flushQueue) place(c *Conn) *place { return &c.places[q.number] }

// push queues c, unless it is queued.
func (q *flushQueue) push(c *Conn) {
	p := q.place(c)
	if !p.taken.CompareAndSwap(false, true) {
		return
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		p.taken.Store(false)
		c.Flush()
		return
	}
	if q.tail == nil {
		q.head = c
	} else {
		q.place(q.tail).next = c
	}
	q.tail = c
	if q.idle > 0 {
		q.work.Signal()
	}
	q.mu.Unlock()
}

// take waits for connections and gives the first of up to most, which follow each
// other by their places, and whether the queue is empty now. nil means that it is
// and that it is closed.
func (q *flushQueue) take(most int) (first *Conn, empty bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.head == nil {
		if q.closed {
			return nil, true
		}
		q.idle++
		q.work.Wait()
		q.idle--
	}
	first = q.head
	last := first
	for range most - 1 {
		next := q.place(last).next
		if next == nil {
			break
		}
		last = next
	}
	q.head, q.place(last).next = q.place(last).next, nil
	if q.head == nil {
		q.tail = nil
	}
	return first, q.head == nil
}

// serve flushes what is queued, in portions of up to most, until the queue is
// closed. After a portion that wasn't the last it calls between.
func (q *flushQueue) serve(most int, between func()) {
	for {
		c, last := q.take(most)
		if c == nil {
			return
		}
		for c != nil {
			p := q.place(c)
			next := p.next
			p.next = nil
			// Cleared before the flush: what is appended during it queues c again.
			p.taken.Store(false)
			c.Flush()
			c = next
		}
		if !last {
			between()
		}
	}
}

func (q *flushQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.work.Broadcast()
	q.mu.Unlock()
}
