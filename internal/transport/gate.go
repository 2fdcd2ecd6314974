package transport

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Gate makes greedy goroutines take turns, so that clients that ask for little
// don't wait for those that ask for as much as they can.
//
// Go's scheduler serves goroutines in the order in which they become runnable, and
// looks for sockets that have become readable only when it has nothing else to run.
// A hundred readers that always find more to read therefore keep all others
// waiting, each for the 10 ms after which the scheduler preempts it. So a reader
// that has done a certain amount of work without waiting for its client enters the
// gate before it continues, gives its place away after every slice of work, and
// leaves when it waits. Readers of clients that wait for their answers never come
// here.
//
// There are as many places as processors. While readers outside serve clients that
// wait for their answers there is one fewer (but at least one): the processor that is
// left over serves these without a queue. Only what such a client asks counts: neither
// the acknowledgements of subscribers nor a greedy client between two slices.
//
// That isn't enough when other programs keep the machine busy, such as the greedy
// clients themselves: the kernel may suspend the thread that serves the readers outside
// for a tick (4 ms) while a thread that works inside keeps its processor. Traces of
// floods showed exactly that wait, with the runnable readers in the queue of the
// suspended thread. So the threads inside meanwhile sleep between slices, and before the first, pauseTime in
// each pauseAfter: the kernel then runs a suspended thread on the processor that has
// become free. Parking the goroutine doesn't have that effect, as its thread finds
// another goroutine to run at once.
//
// Between Enter and Leave a goroutine must not wait for anything that another one
// could only do inside. The methods are safe for concurrent use.
type Gate struct {
	processors int
	others     atomic.Bool // NoteOther was called since the last look

	mu      lockrank.Mutex[lockrank.Gate]
	inside  int             // mu
	queue   []chan struct{} // mu: readers that wait, in order; a closed channel is a place
	idle    []*yielder      // mu: not in use
	waiting atomic.Int32    // len(queue)
	active  time.Time       // mu: when a look found that it had been
	paused  time.Time       // mu: when one inside began or ended its last pause
	pause   func()          // sleeps for pauseTime
	entered atomic.Int64    // how often a goroutine had to enter, for figures
	now     func() time.Time
}

// othersStay is how long after their last request clients that wait for their answers
// are expected to ask again.
const othersStay = 100 * time.Millisecond

// While others work, those inside pause for pauseTime after each pauseAfter. Tried with
// floods on two processors: 250 µs of work between pauses left others waiting longer,
// and a pause of a millisecond (time.Sleep) halved what the flood got without a gain.
const (
	pauseAfter = 100 * time.Microsecond
	pauseTime  = 50 * time.Microsecond
)

// NewGate makes a gate for GOMAXPROCS processors.
func NewGate() *Gate {
	return &Gate{processors: runtime.GOMAXPROCS(0), now: time.Now, pause: func() { sleepThread(pauseTime) }}
}

// NoteOther notes that a reader outside has served a client that waits for its answers.
func (g *Gate) NoteOther() {
	if !g.others.Load() {
		g.others.Store(true)
	}
}

// Enter waits for a place.
func (g *Gate) Enter() {
	g.entered.Add(1)
	g.mu.Lock()
	g.look()
	if g.pauses() {
		g.mu.Unlock()
		g.rest()
		g.mu.Lock()
	}
	if len(g.queue) == 0 && g.inside < g.places() {
		g.inside++
		g.mu.Unlock()
		return
	}
	g.wait()
}

// pauses says whether a pause is due, and then begins it; mu is held.
func (g *Gate) pauses() bool {
	now := g.now()
	if g.places() == g.processors || now.Sub(g.paused) < pauseAfter {
		return false
	}
	g.paused = now
	return true
}

// rest pauses, with no lock held.
func (g *Gate) rest() {
	g.pause()
	g.mu.Lock()
	g.paused = g.now()
	g.mu.Unlock()
}

// Leave gives the place back.
func (g *Gate) Leave() {
	g.mu.Lock()
	g.inside--
	g.admit()
	g.mu.Unlock()
}

// Yield lets goroutines run that wait for a place or for a processor. The caller is
// inside, and is so again when it returns.
func (g *Gate) Yield() {
	g.mu.Lock()
	g.look()
	g.admit()
	places := g.places()
	stay := len(g.queue) == 0 && g.inside <= places
	var y *yielder
	pause := false
	if g.inside >= g.processors { // no processor is left over that would look for readable sockets
		y = g.takeYielder()
	} else {
		pause = g.pauses()
	}
	g.mu.Unlock()
	if y != nil {
		y.yield()
		g.mu.Lock()
		g.idle = append(g.idle, y)
		g.mu.Unlock()
	}
	if pause {
		g.rest()
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

// Pass is called, between two portions of its work, by a goroutine outside that doesn't
// serve one client that waits: a flusher. It lets clients that wait for their answers go
// first if they have asked lately and greedy readers are at work, and otherwise returns at
// once: without greedy readers what a flusher writes are these clients' answers, and a pause
// between them costs more than it gains (SETs of 200 clients were half as many). It doesn't
// sleep: that would hold up the fan-out of a client that waits for its answers, and gained
// nothing for others.
func (g *Gate) Pass() {
	g.mu.Lock()
	g.look()
	if !g.asked() || g.inside == 0 && len(g.queue) == 0 {
		g.mu.Unlock()
		return
	}
	y := g.takeYielder()
	g.mu.Unlock()
	y.yield()
	g.mu.Lock()
	g.idle = append(g.idle, y)
	g.mu.Unlock()
}

// asked says whether clients that wait for their answers have asked lately; mu is held.
func (g *Gate) asked() bool { return g.now().Sub(g.active) < othersStay }

// wait queues the caller, and returns when it is inside. mu is held, and released.
func (g *Gate) wait() {
	place := make(chan struct{})
	g.queue = append(g.queue, place)
	g.waiting.Store(int32(len(g.queue)))
	g.mu.Unlock()
	<-place
}

// admit gives free places to readers that wait; mu is held.
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
	if g.processors > 1 && g.asked() {
		return g.processors - 1
	}
	return g.processors
}

// look notes whether readers outside have served others; mu is held.
func (g *Gate) look() {
	if g.others.Load() {
		g.others.Store(false)
		g.active = g.now()
	}
}

// takeYielder gives a yielder that no other goroutine uses; mu is held.
func (g *Gate) takeYielder() *yielder {
	if n := len(g.idle); n > 0 {
		y := g.idle[n-1]
		g.idle = g.idle[:n-1]
		return y
	}
	return newYielder()
}

// Close releases what the gate holds. No goroutine may be inside.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, y := range g.idle {
		y.close()
	}
	g.idle = nil
}

// Waiting is how many goroutines wait for a place.
func (g *Gate) Waiting() int { return int(g.waiting.Load()) }

// Entered is how often a goroutine has entered.
func (g *Gate) Entered() int64 { return g.entered.Load() }
