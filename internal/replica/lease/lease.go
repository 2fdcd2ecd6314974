// Package lease has the arithmetic by which a leader may answer reads from its memory: for
// a time, no other node can become leader. Package consensus calls it; it knows no messages,
// and reads no clock.
//
// All times are of one node's clocks, since any moment. They are never compared
// with those of another node: only durations are, so clocks may differ, but their rates must
// not differ by more than Fraction allows.
//
// # Why there is one leader
//
// The leader begins a round at its time t: it asks every node whether it is still the
// leader. A node that answers makes a promise first: for one election timeout from the
// answer on, it neither votes nor asks for votes. When a quorum has answered, the lease is
// valid until t + Fraction × the election timeout. A new leader needs votes of a quorum, so
// of a node that has promised, and it answered after t. Its promise holds longer than the
// lease unless its clock runs 1/Fraction times as fast as the leader's: 39 % faster.
//
// A node that was started can't know what it has promised before, so it begins with a
// promise. A transfer of the leadership asks nodes to break their promises: the leader gives
// up its lease first, and takes none in that term again, because the message that asks for
// votes may be delayed for any time.
//
// # A machine that was suspended
//
// The monotonic clock stands still while a machine is suspended, so a leader that wakes would
// have what was left of its lease, and another node may lead by then. The wall clock goes on.
// So the lease ends by whichever clock says so first. A wall clock that is stepped forward ends
// the lease early, until the next round; one that is stepped back leaves it to the monotonic clock. A promise
// counts on the monotonic clock alone, by which it lasts longer on a machine that was suspended.
// A virtual machine whose host stops both of its clocks is not noticed.
package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// Fraction of the election timeout is how long a lease lasts, from the beginning of its
// round on.
const Fraction = 0.72

// maxRounds bounds the rounds that are under way. The oldest is forgotten, and then gives
// no lease.
const maxRounds = 64

// Moment is a time by both clocks of a node.
type Moment struct {
	Monotonic time.Duration // since any moment; does not go back, and may stand still while the machine is suspended
	Wall      time.Duration // since any moment; goes on then, and may be stepped
}

func (m Moment) add(d time.Duration) Moment { return Moment{m.Monotonic + d, m.Wall + d} }

// Lease is a leader's right to answer reads. Valid and Remaining may be called by any goroutine, the
// other methods by one.
type Lease struct {
	lasts time.Duration
	// When the lease ends, by each clock; never: there is no lease. A reader may see one of them of an
	// earlier round than the other: both rounds were confirmed, and both ends must be in the future.
	untilMonotonic, untilWall atomic.Int64
	confirmed                 uint64  // number of the latest round that a quorum has answered
	rounds                    []round // under way, oldest first
	last                      uint64  // number of the last round
}

type round struct {
	number uint64
	begun  Moment
}

const never = math.MinInt64

// New makes a lease that isn't valid.
func New(election time.Duration) *Lease {
	l := &Lease{lasts: time.Duration(Fraction * float64(election))}
	l.Revoke()
	return l
}

// Begin begins a round and returns its number, which no other round has. Only then may the
// question be sent.
func (l *Lease) Begin(now Moment) (number uint64) {
	if len(l.rounds) == maxRounds {
		l.rounds = append(l.rounds[:0], l.rounds[1:]...)
	}
	l.last++
	l.rounds = append(l.rounds, round{l.last, now})
	return l.last
}

// Confirm tells that a quorum has answered in a round. That of a round that is not under
// way, because of Revoke, changes nothing.
func (l *Lease) Confirm(number uint64) {
	for i, r := range l.rounds {
		if r.number == number {
			if number > l.confirmed {
				end := r.begun.add(l.lasts)
				l.untilMonotonic.Store(int64(end.Monotonic))
				l.untilWall.Store(int64(end.Wall))
				l.confirmed = number
			}
			l.rounds = append(l.rounds[:0], l.rounds[i+1:]...)
			return
		}
	}
}

// Revoke ends the lease and all rounds.
func (l *Lease) Revoke() {
	l.untilMonotonic.Store(never)
	l.untilWall.Store(never)
	l.rounds = l.rounds[:0]
}

// Valid says whether the lease is valid at a time.
func (l *Lease) Valid(now Moment) bool {
	return int64(now.Monotonic) < l.untilMonotonic.Load() && int64(now.Wall) < l.untilWall.Load()
}

// Remaining is for how much longer the lease is valid, at a time; 0: it is not.
func (l *Lease) Remaining(now Moment) time.Duration {
	return min(left(&l.untilMonotonic, now.Monotonic), left(&l.untilWall, now.Wall))
}

func left(until *atomic.Int64, now time.Duration) time.Duration {
	end := time.Duration(until.Load()) // which may be never, from which nothing can be subtracted
	return max(end, now) - now
}

// Promise is what a node owes a leader that it has answered, by its monotonic clock. One goroutine uses it.
type Promise struct {
	lasts time.Duration
	until time.Duration
}

// NewPromise makes a promise that doesn't bind.
func NewPromise(election time.Duration) Promise {
	return Promise{lasts: election, until: math.MinInt64}
}

// Make makes the promise anew. The answer to the leader may be sent only then.
func (p *Promise) Make(now time.Duration) { p.until = now + p.lasts }

// Binds says whether the node may neither vote nor ask for votes.
func (p *Promise) Binds(now time.Duration) bool { return now < p.until }
