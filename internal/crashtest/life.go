package crashtest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// epoch is what times of the books count from.
var epoch = time.Now()

// now is the time since epoch in nanoseconds, on the monotonic clock.
func now() int64 { return int64(time.Since(epoch)) }

// life is one run of the broker as its clients see it: from when it accepts
// connections until it has been killed and buried.
type life struct {
	addr   string
	number int
	settle bool // finish what is open, look at everything, and return

	patience time.Duration

	killedAt atomic.Int64  // when the kill was sent; 0 before
	dead     chan struct{} // closed after the burial
	diedAt   atomic.Int64  // set before that

	work     trigger // counts requests and messages acknowledged
	news     trigger // counts connections made and messages that came
	attended trigger // counts subscribers that are ready
}

// trigger fires when it has counted to a number. Armed with 0 it has fired.
type trigger struct {
	left  atomic.Int64
	fired chan struct{}
}

func (t *trigger) arm(n int64) {
	t.left.Store(n)
	t.fired = make(chan struct{})
	if n == 0 {
		close(t.fired)
	}
}

func (t *trigger) count() {
	if t.left.Add(-1) == 0 {
		close(t.fired)
	}
}

// ended is what an actor does when its connection fails: it waits for the end
// of the broker that must be the reason. An error says that there is another.
func (l *life) ended(who string, cause error) error {
	at := now()
	if errors.Is(cause, errBroken) || errors.Is(cause, errRefused) {
		return fmt.Errorf("%s, life %d: %w", who, l.number, cause)
	}
	late := time.NewTimer(2 * l.patience) // the life's own end comes first
	defer late.Stop()
	select {
	case <-l.dead:
		if at < l.killedAt.Load() {
			return fmt.Errorf("%s, life %d: the connection ended %v before the kill: %w",
				who, l.number, time.Duration(l.killedAt.Load()-at), cause)
		}
		return nil
	case <-late.C:
		return fmt.Errorf("%s, life %d: the broker lives, and the connection ended: %w", who, l.number, cause)
	}
}

// actor is one client over all lives. live is called once for each life, and
// returns when that has ended or, in a life that settles, when the actor has
// nothing more to do or see. An error is a broken promise. No two calls overlap,
// and between them nothing touches the actor but the run.
type actor interface {
	live(l *life) error
}
