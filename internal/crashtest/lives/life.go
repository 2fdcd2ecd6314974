// Package lives is what all actors of a crash test share: a life of the broker, which
// ends with a kill, and a connection that records what a library would hide.
//
// The broker may be a cluster ([Entrances]). Then a life ends when a leader serves that was elected
// after all connections of the life had ended: no request of the life can be executed after
// that. Before, nodes may come and go; actors whose connection ends connect again.
package lives

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// epoch is what recorded times count from.
var epoch = time.Now()

// Now is the time since epoch in nanoseconds, on the monotonic clock.
func Now() int64 { return int64(time.Since(epoch)) }

// Life is one run of the broker as its clients see it: from when it accepts
// connections until its process has ended.
type Life struct {
	Addr   string     // of the broker
	Doors  *Entrances // of a cluster, instead of Addr; nil: the broker is one server
	Number int
	Settle bool // actors finish what is under way, read all of their data, and return

	Patience time.Duration

	KilledAt atomic.Int64  // when SIGKILL was sent; 0 before
	Dead     chan struct{} // closed when the process has ended
	DiedAt   atomic.Int64  // when the process had ended; set before Dead is closed

	Acks     Trigger // counts requests and messages that the broker acknowledged
	Arrivals Trigger // counts connections made and messages received
	Attended Trigger // counts subscribers that are ready
}

// Trigger fires when it has counted to a number. Armed with 0 it has fired.
type Trigger struct {
	left  atomic.Int64
	Fired chan struct{} // closed when it has fired
}

// Arm sets how often Count is to be called until the trigger fires.
func (t *Trigger) Arm(n int64) {
	t.left.Store(n)
	t.Fired = make(chan struct{})
	if n == 0 {
		close(t.Fired)
	}
}

// Count counts.
func (t *Trigger) Count() {
	if t.left.Add(-1) == 0 {
		close(t.Fired)
	}
}

// Ended is called by an actor whose connection has ended. It waits until the broker has
// ended. An error means that the connection ended before the broker was killed, or that
// the broker broke the protocol.
func (l *Life) Ended(who string, cause error) error {
	at := Now()
	if errors.Is(cause, ErrBroken) || errors.Is(cause, errRefused) {
		return fmt.Errorf("%s, life %d: %w", who, l.Number, cause)
	}
	if l.Doors != nil && l.Doors.again(cause, false) {
		return ErrAgain
	}
	late := time.NewTimer(2 * l.Patience) // the life's own end comes first
	defer late.Stop()
	select {
	case <-l.Dead:
		if l.Doors == nil && at < l.KilledAt.Load() {
			return fmt.Errorf("%s, life %d: the connection ended %v before the kill: %w",
				who, l.Number, time.Duration(l.KilledAt.Load()-at), cause)
		}
		return nil
	case <-late.C:
		return fmt.Errorf("%s, life %d: the broker lives, and the connection ended: %w", who, l.Number, cause)
	}
}

// EndedWithLeader is Ended for an actor that may connect again in the same life although another node
// leads: what it was not answered may be executed until its next connection is accepted.
func (l *Life) EndedWithLeader(who string, cause error) error {
	if l.Doors != nil && !errors.Is(cause, ErrBroken) && !errors.Is(cause, errRefused) && l.Doors.again(cause, true) {
		return ErrAgain
	}
	return l.Ended(who, cause)
}

// ErrAgain is returned by Ended if the actor's Live is to be called once more in this life: the node
// that it was connected to has died, and the others go on.
var ErrAgain = errors.New("connect again, to another node")

// Actor is one client over all lives. Live is called once for each life, and
// returns when that has ended or, in a life that settles, when the actor has
// nothing more to do or to check. An error is a broken promise, or ErrAgain. Calls do not overlap, and
// between two of them only the run uses the actor.
type Actor interface {
	Live(l *Life) error
}
