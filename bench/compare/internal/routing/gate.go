package routing

import (
	"sync"
	"time"
)

// gate bounds how many deliveries are under way, so that a publisher that is
// faster than its subscribers fills no queue to its bound.
type gate struct {
	mu          sync.Mutex
	room        sync.Cond // waits for deliveries
	outstanding int       // under mu
	limit       int
	closed      bool // under mu
}

func newGate(limit int) *gate {
	g := &gate{limit: limit}
	g.room.L = &g.mu
	return g
}

// enter waits until n more deliveries fit; ok is false once the gate is closed.
func (g *gate) enter(n int) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.outstanding > 0 && g.outstanding+n > g.limit && !g.closed {
		g.room.Wait()
	}
	if g.closed {
		return false
	}
	g.outstanding += n
	return true
}

// leave notes n deliveries.
func (g *gate) leave(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.outstanding
	g.outstanding -= n
	if before > g.limit/2 && g.outstanding <= g.limit/2 || g.outstanding == 0 {
		g.room.Broadcast()
	}
}

// close makes every enter return false.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.room.Broadcast()
}

// drain waits until everything has been delivered, or at most for d, and says
// what hasn't.
func (g *gate) drain(d time.Duration) (missing int) {
	for end := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		g.mu.Lock()
		missing = g.outstanding
		g.mu.Unlock()
		if missing <= 0 || time.Now().After(end) {
			return missing
		}
	}
}
