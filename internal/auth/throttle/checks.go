package throttle

import (
	"errors"
	"net/netip"
	"runtime"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// ErrBusy says that there are too many checks before this one.
var ErrBusy = errors.New("too many logins are being checked at the moment")

// Checks bounds how many expensive checks run at a time. Those that wait get their turn
// by address, one of each after the other, so that an address with many logins under way
// doesn't hold up the others'. Its methods are safe for concurrent use.
type Checks struct {
	wait  time.Duration
	most  int // that wait
	share int // of those, of one address

	mu      lockrank.Mutex[lockrank.LoginChecks]
	free    int                        // places; guarded by mu, as all below
	queues  map[netip.Prefix][]*waiter // by address; none is empty
	turns   []netip.Prefix             // addresses in queues, the next one first
	waiting int
}

type waiter struct {
	turn chan struct{} // closed when it has a place
}

// Places is how many checks run at a time unless it is said otherwise: one processor is
// left for everything else.
func Places() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// NewChecks makes a Checks with so many places, in which at most most checks wait, and
// each of them at most for wait.
func NewChecks(places, most int, wait time.Duration) *Checks {
	return &Checks{wait: wait, most: most, share: max(1, most/8), free: places, queues: make(map[netip.Prefix][]*waiter)}
}

// Begin waits for a place. Each call that returns nil must be followed by End. It gives
// up with ErrBusy when there are too many before it, or when stop is closed.
func (c *Checks) Begin(addr netip.Prefix, stop <-chan struct{}) error {
	c.mu.Lock()
	if c.free > 0 {
		c.free--
		c.mu.Unlock()
		return nil
	}
	if c.waiting >= c.most || len(c.queues[addr]) >= c.share {
		c.mu.Unlock()
		return ErrBusy
	}
	w := &waiter{turn: make(chan struct{})}
	if len(c.queues[addr]) == 0 {
		c.turns = append(c.turns, addr)
	}
	c.queues[addr] = append(c.queues[addr], w)
	c.waiting++
	c.mu.Unlock()

	patience := time.NewTimer(c.wait)
	defer patience.Stop()
	select {
	case <-w.turn:
		return nil
	case <-patience.C:
	case <-stop:
	}
	if c.leave(addr, w) {
		return ErrBusy
	}
	return nil // its turn came at this moment
}

// leave takes a waiter out of the queue, if it is still in it.
func (c *Checks) leave(addr netip.Prefix, w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue := c.queues[addr]
	for i := range queue {
		if queue[i] != w {
			continue
		}
		c.waiting--
		if len(queue) > 1 {
			c.queues[addr] = append(queue[:i], queue[i+1:]...)
			return true
		}
		delete(c.queues, addr)
		for i := range c.turns {
			if c.turns[i] == addr {
				c.turns = append(c.turns[:i], c.turns[i+1:]...)
				break
			}
		}
		return true
	}
	return false
}

// End gives the place to the next one that waits.
func (c *Checks) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.turns) == 0 {
		c.free++
		return
	}
	addr := c.turns[0]
	c.turns = c.turns[1:]
	queue := c.queues[addr]
	next := queue[0]
	if len(queue) > 1 {
		c.queues[addr] = queue[1:]
		c.turns = append(c.turns, addr)
	} else {
		delete(c.queues, addr)
	}
	c.waiting--
	close(next.turn)
}

// Waiting is how many checks wait for a place.
func (c *Checks) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}
