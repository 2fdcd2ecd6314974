package transport

import (
	"runtime"
	"sync/atomic"
	"time"

	"holdfast/internal/lockrank"
)

// Gate makes greedy goroutines take turns, so that clients that ask for little
// don't wait for those that ask for as much as they can.
//
// Go's scheduler serves goroutines in the order in which they become runnable, and
// looks for sockets that have become readable only when it has nothing else to run.
// A hundred readers that always find more to read therefore keep all others
// waiting, each for the 10 ms after which the scheduler preempts it. So a reader
// that has done a certain amount of work without waiting for its client enters the
// gate before it goes on, gives its place away after every slice of work, and
// leaves when it waits. Readers of clients that wait for their answers never come
// here.
//
// There are as many places as processors. While other readers are at work there is
// one fewer (but at least one): the processor that is left over serves them, and
// the other programs of the machine, without a queue.
//
// Between Enter and Leave a goroutine must not wait for anything that another one
// could only do inside. The methods are safe for concurrent use.
type Gate struct {
	processors int
	others     func() int64 // rises whenever a reader outside the gate has worked

	mu      lockrank.Mutex[lockrank.Gate]
	inside  int             // mu
	queue   []chan struct{} // mu: those who wait, in order; a closed channel is a place
	ways    []*way          // mu: not in use
	waiting atomic.Int32    // len(queue)
	seen    int64           // mu: what others said last
	active  time.Time       // mu: when it had risen
	entered atomic.Int64    // how often a goroutine had to enter, for figures
	now     func() time.Time
}

// othersStay is how long after their last work readers outside the gate are
// expected to come again.
const othersStay = 100 * time.Millisecond

// NewGate makes a gate for GOMAXPROCS processors. others rises whenever a reader
// that isn't inside has worked.
func NewGate(others func() int64) *Gate {
	return &Gate{processors: runtime.GOMAXPROCS(0), others: others, now: time.Now}
}

// Enter waits for a place.
func (g *Gate) Enter() {
	g.entered.Add(1)
	g.mu.Lock()
	g.look()
	if len(g.queue) == 0 && g.inside < g.places() {
		g.inside++
		g.mu.Unlock()
		return
	}
	g.wait()
}

// Leave gives the place back.
func (g *Gate) Leave() {
	g.mu.Lock()
	g.inside--
	g.admit()
	g.mu.Unlock()
}

// Yield lets pass who waits, for a place or for a processor. The caller is inside,
// and is so again when it returns.
func (g *Gate) Yield() {
	g.mu.Lock()
	g.look()
	g.admit()
	full := g.places() == g.processors // no processor is left over that would look for readable sockets
	stay := len(g.queue) == 0 && g.inside <= g.places()
	var w *way
	if full {
		w = g.takeWay()
	}
	g.mu.Unlock()
	if w != nil {
		w.give()
		g.mu.Lock()
		g.ways = append(g.ways, w)
		g.mu.Unlock()
	}
	if stay {
		return
	}
	g.mu.Lock()
	g.inside--
	g.admit()
	if len(g.queue) == 0 && g.inside < g.places() {
		g.inside++
		g.mu.Unlock()
		return
	}
	g.wait()
}

// wait queues the caller, and returns when it is inside. mu is held, and released.
func (g *Gate) wait() {
	place := make(chan struct{})
	g.queue = append(g.queue, place)
	g.waiting.Store(int32(len(g.queue)))
	g.mu.Unlock()
	<-place
}

// admit gives free places to those who wait; mu is held.
func (g *Gate) admit() {
	for len(g.queue) > 0 && g.inside < g.places() {
		g.inside++
		close(g.queue[0])
		g.queue[0] = nil
		g.queue = g.queue[1:]
	}
	g.waiting.Store(int32(len(g.queue)))
}

// places is how many goroutines may be inside; mu is held.
func (g *Gate) places() int {
	if g.processors > 1 && g.now().Sub(g.active) < othersStay {
		return g.processors - 1
	}
	return g.processors
}

// look notes whether readers outside have worked; mu is held.
func (g *Gate) look() {
	if n := g.others(); n != g.seen {
		g.seen, g.active = n, g.now()
	}
}

// takeWay gives a way that no other goroutine uses; mu is held.
func (g *Gate) takeWay() *way {
	if n := len(g.ways); n > 0 {
		w := g.ways[n-1]
		g.ways = g.ways[:n-1]
		return w
	}
	return newWay()
}

// Close releases what the gate holds. No goroutine may be inside.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.ways {
		w.close()
	}
	g.ways = nil
}

// Waiting is how many goroutines wait for a place.
func (g *Gate) Waiting() int { return int(g.waiting.Load()) }

// Entered is how often a goroutine has entered.
func (g *Gate) Entered() int64 { return g.entered.Load() }
