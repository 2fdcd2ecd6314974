package clocks

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/wallclock"
)

// Clock is the clock that the server of a node reads: the machine's wall clock, but for a step that
// has not been judged yet, and while it is wrong. Then it is a time that was right, and the
// monotonic time since. It is safe for concurrent use.
type Clock struct {
	read      func() (wallMs int64, since time.Duration)
	tolerance int64        // ms by which the wall clock may gain or lose without being judged
	base      atomic.Int64 // the right time in ms when the monotonic clock was 0
}

// System reads the machine's wall clock and its monotonic one.
func System() func() (wallMs int64, since time.Duration) {
	start := time.Now()
	return func() (int64, time.Duration) {
		now := time.Now()
		return now.UnixMilli() + wallclock.ShiftMs, now.Sub(start)
	}
}

// NewClock makes one that takes the wall clock of now for right. skew is how far a version may be
// ahead of the clock: steps of an eighth of it are followed at once.
func NewClock(read func() (wallMs int64, since time.Duration), skew time.Duration) *Clock {
	c := &Clock{read: read, tolerance: (skew / 8).Milliseconds()}
	c.base.Store(c.reference())
	return c
}

// WallMs is the time in ms since 1970.
func (c *Clock) WallMs() int64 {
	wall, since := c.read()
	right := c.base.Load() + since.Milliseconds()
	if c.near(wall, right) {
		return wall
	}
	return right
}

// SinceStart is the monotonic clock.
func (c *Clock) SinceStart() time.Duration {
	_, since := c.read()
	return since
}

// MachineMs is the machine's wall clock in ms since 1970, be it wrong or not.
func (c *Clock) MachineMs() int64 {
	wall, _ := c.read()
	return wall
}

// reference is what the machine's wall clock was when the monotonic one was 0: it changes when the
// former is stepped.
func (c *Clock) reference() int64 {
	wall, since := c.read()
	return wall - since.Milliseconds()
}

func (c *Clock) near(a, b int64) bool { return -c.tolerance <= a-b && a-b <= c.tolerance }

// follow has the clock be ms ahead of the machine's wall clock, which had this reference.
func (c *Clock) follow(reference, ahead int64) { c.base.Store(reference + ahead) }
