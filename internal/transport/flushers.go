package transport

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Flushers are the goroutines behind FlushSoon and FlushBulk; all connections of a
// server share them. A goroutine that has appended to many connections (a fan-out, a
// completed batch) queues those connections and continues, and the flushers make the
// system calls on all processors.
//
// There are two queues. Writing to ten thousand connections (the watchers of one key)
// takes a tenth of a second. In a single queue, replies queued behind that would wait
// for all of it. Readers of the server would wait, too: the ten thousand clients
// answer with a PUBACK each, and the network poller reports sockets in the order in
// which they became readable. So connections of a large notification go to the queue
// bulk, and everything else to the queue soon. The flushers of bulk are one fewer than
// the processors (but at least one). They write to bulkPortion connections, then yield
// the processor to other goroutines and threads (yielder), and continue. The answers
// to one portion have therefore mostly been read before the next portion is written.
// The last connection of the ten thousand hardly waits longer: the machine has the
// same work to do, in a different order.
type Flushers struct {
	soon, bulk flushQueue
	running    sync.WaitGroup
}

// bulkPortion is how many connections of bulk a flusher writes to before it yields:
// about half a millisecond of system calls. A smaller portion yields more often and
// delays the last of ten thousand connections; a larger one delays other clients.
const bulkPortion = 64

// soonPortion is the same for soon, while clients that wait for their answers ask and greedy
// readers work (Gate.Pass). The requests of the former may be what fills the queue: beside
// 50 subscribers of # each GET has 51 receivers. Two flushers that always find a connection
// keep both processors, and the next request waits up to 10 ms, until the scheduler preempts
// one of them.
const soonPortion = 8

// NewFlushers starts flushers for n processors; n <= 0 means GOMAXPROCS. Those of soon
// let clients that g knows to wait for their answers go first. End them with Close, before
// the gate.
func NewFlushers(n int, g *Gate) *Flushers {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	f := newFlushQueues()
	for range n {
		f.running.Go(func() { f.soon.serve(1, soonPortion, g.Pass) })
	}
	for range max(1, n-1) {
		f.running.Go(func() {
			y := newYielder()
			defer y.close()
			f.bulk.serve(bulkPortion, bulkPortion, y.yield)
		})
	}
	return f
}

// newFlushQueues makes Flushers with queues and without goroutines.
func newFlushQueues() *Flushers {
	f := &Flushers{}
	f.bulk.number = 1
	f.soon.work.L = &f.soon.mu
	f.bulk.work.L = &f.bulk.mu
	return f
}

// Close flushes the queued connections and ends the flushers. A later FlushSoon or
// FlushBulk flushes on its caller's goroutine.
func (f *Flushers) Close() {
	f.soon.close()
	f.bulk.close()
	f.running.Wait()
}

// flushQueue is a linked list of connections. The links are fields of the connections:
// queueing allocates nothing and never fails, and a connection is in the list at most
// once.
type flushQueue struct {
	number     int // index of this queue's links in Conn.places
	mu         lockrank.Mutex[lockrank.FlushQueue]
	work       sync.Cond // on mu: head is not nil, or closed
	head, tail *Conn     // mu
	idle       int       // mu: flushers that wait
	closed     bool      // mu
}

// place is a connection's link in one queue.
type place struct {
	taken atomic.Bool // the connection is in the queue
	next  *Conn       // guarded by the queue's lock; once taken, owned by the flusher
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

// take removes up to most connections from the front of the queue and returns the
// first; the others follow by their links. It waits while the queue is empty. empty
// says whether the queue is empty now. first is nil once the queue is empty and closed.
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

// serve flushes connections, of which it takes up to most at a time, until the queue is
// closed and empty. It calls between after each portion of them that leaves connections in
// the queue.
func (q *flushQueue) serve(most, portion int, between func()) {
	done := 0 // since the queue was empty, or since between was called
	for {
		c, empty := q.take(most)
		if c == nil {
			return
		}
		for ; c != nil; done++ {
			p := q.place(c)
			next := p.next
			p.next = nil
			// Cleared before the flush: output that is appended during the flush
			// queues c again.
			p.taken.Store(false)
			c.Flush()
			c = next
		}
		switch {
		case empty:
			done = 0
		case done >= portion:
			done = 0
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
