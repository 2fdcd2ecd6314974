package hlc

import (
	"errors"
	"math"
	"sync"
	"time"
)

// DefaultMaxSkew is how far ahead of the machine's clock an observed timestamp
// may be, unless WithMaxSkew says otherwise. The store and the SDKs use the same.
const DefaultMaxSkew = 60 * time.Second

// ErrAhead is returned by Clock.Observe for a timestamp too far in the future.
var ErrAhead = errors.New("the timestamp is too far ahead of this machine's clock; synchronize the clocks of client and broker")

// Clock is a client's hybrid logical clock: every reading is later than the ones
// before it and than everything it has observed, however the machine's clock is
// stepped. Make one with NewClock. It is safe for concurrent use.
type Clock struct {
	node    string
	wallMs  func() uint64
	maxSkew time.Duration

	mu     sync.Mutex
	last   Timestamp // under mu; the latest one given out or observed
	fastMs uint64    // under mu; how far the machine's clock is ahead, as Correct has found
}

// ClockOption changes what NewClock makes.
type ClockOption func(*Clock)

// WithWall replaces the machine's clock: now returns milliseconds since the Unix
// epoch. It is called with the Clock's lock held, possibly often, and must not
// block.
func WithWall(now func() uint64) ClockOption {
	return func(c *Clock) { c.wallMs = now }
}

// WithMaxSkew changes how far ahead of the machine's clock an observed timestamp
// may be.
func WithMaxSkew(d time.Duration) ClockOption {
	return func(c *Clock) { c.maxSkew = d }
}

// NewClock makes a clock whose readings carry node as their node ID. node must
// not be empty nor contain a colon, or the store will refuse what is stamped
// with it; two clients should not share one.
func NewClock(node string, opts ...ClockOption) *Clock {
	c := &Clock{node: node, wallMs: machineMs, maxSkew: DefaultMaxSkew}
	for _, opt := range opts {
		opt(c)
	}
	return c
}

func machineMs() uint64 {
	return uint64(max(0, time.Now().UnixMilli()))
}

// Now returns the next timestamp, later than every one before it.
func (c *Clock) Now() Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = Next(c.now(), c.last, Timestamp{}, c.node)
	return c.last
}

// now is the machine's clock, corrected. mu is held.
func (c *Clock) now() uint64 {
	wall := c.wallMs()
	return wall - min(wall, c.fastMs)
}

// Correct tells the clock that it is nowMs, in milliseconds since the Unix epoch, because
// the store has refused a reading as too far ahead. The next reading is close to that, and
// earlier than those that were refused. If the machine's clock is ahead, readings are
// earlier by the difference from here on, and the difference is returned.
func (c *Clock) Correct(nowMs uint64) (ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.Wall > nowMs {
		c.last = Timestamp{Wall: nowMs}
	}
	wall := c.wallMs()
	if wall <= nowMs {
		return 0
	}
	c.fastMs = wall - nowMs
	return time.Duration(min(c.fastMs, math.MaxInt64/1_000_000)) * time.Millisecond
}

// Ahead is how far the machine's clock is ahead, as [Clock.Correct] has found.
func (c *Clock) Ahead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(min(c.fastMs, math.MaxInt64/1_000_000)) * time.Millisecond
}

// ahead tells whether t is too far in the future. mu is held.
func (c *Clock) ahead(t Timestamp) bool {
	wall := c.now()
	return t.Wall > wall && t.Wall-wall > uint64(c.maxSkew.Milliseconds())
}

// Observe moves the clock past t, a timestamp that another node issued, so that
// every later Now is later than t. A t more than the maximum skew ahead of the
// machine's clock leaves the clock as it is and returns ErrAhead.
func (c *Clock) Observe(t Timestamp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead(t) && c.fastMs > 0 { // the machine's clock may have been set right since
		c.fastMs = 0
	}
	if c.ahead(t) {
		return ErrAhead
	}
	t.Node = "" // Next looks at the numbers only, and t may be a view
	if c.last.Wall < t.Wall || c.last.Wall == t.Wall && c.last.Counter < t.Counter {
		c.last = t
	}
	return nil
}
