// Package serverclock tells a processor the time: that of this machine, unless the server's versions
// show that this machine's clock is behind.
package serverclock

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/stores"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// How a clock that is behind is found
//
// A version that the server has just made has the server's time, or a later one, by up to a minute:
// that of a client whose clock is ahead. From the moment when it came, this machine's monotonic clock
// tells what time it is at the server, also if an operator or a time service sets the machine's clock
// meanwhile. If the machine's clock is far behind that, it is wrong, and messages that others send now
// would seem to come from the future. A clock that is ahead is found by the server itself, which
// refuses requests from the future.

const (
	// tolerance is how far behind the clock may be: twice what a version may be ahead.
	tolerance = 2 * time.Minute
	// fresh is how long after a version another one need not be asked for.
	fresh = 10 * time.Second
)

// Clock is what is known of the server's time. It is safe for concurrent use; the zero value knows
// nothing.
type Clock struct {
	Log *slog.Logger // gets an error when the machine's clock is found to be behind

	read   func() reading // nil: of this machine
	asking sync.Mutex     // held while a version is asked for

	mu     sync.Mutex
	came   reading       // under mu: when the version came that came last
	lead   time.Duration // under mu: how far that was ahead of the machine's clock then
	known  bool          // under mu: a version has come
	behind bool          // under mu: Log has the error, and the clock is behind still
}

// reading is what the clocks of a machine show at one moment.
type reading struct {
	wall      time.Time
	monotonic time.Duration // since the start of the program
}

var start = time.Now()

func (c *Clock) now() reading {
	if c.read != nil {
		return c.read()
	}
	now := time.Now()
	return reading{now.Round(0), now.Sub(start)}
}

// Saw notes a version that the server has made just now.
func (c *Clock) Saw(version hlc.Timestamp) {
	if version.IsZero() {
		return
	}
	now := c.now()
	lead := time.UnixMilli(int64(version.Wall)).Sub(now.wall)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came, c.lead, c.known = now, lead, true
	if lead > tolerance && !c.behind {
		c.Log.Error("this machine's clock is behind the server's, and is corrected by the difference: set it right", "behind", lead)
	}
	c.behind = lead > tolerance
}

// Now is the time. ahead is how far the machine's clock is known to be ahead.
func (c *Clock) Now(ahead time.Duration) time.Time {
	now := c.now()
	c.mu.Lock()
	came, lead := c.came, c.lead
	c.mu.Unlock()
	if lead > tolerance {
		stepped := now.wall.Sub(came.wall) - (now.monotonic - came.monotonic) // since the version came
		if lead -= stepped; lead > tolerance {
			return now.wall.Add(lead)
		}
	}
	return now.wall.Add(-ahead)
}

// Conn asks a server.
type Conn interface {
	Store(ctx context.Context, r stores.StoreRequest) (client.StoreResult, error)
}

// Ask has the server make a version, unless one came a moment ago: that of a message which the
// server remembers for a second, for a key that does not exist. It changes nothing else, and does
// not end later than after timeout.
func (c *Clock) Ask(ctx context.Context, conn Conn, key string, timeout time.Duration) {
	c.asking.Lock()
	defer c.asking.Unlock()
	c.mu.Lock()
	recent := c.known && c.now().monotonic-c.came.monotonic < fresh
	c.mu.Unlock()
	if recent {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := conn.Store(ctx, stores.StoreRequest{Key: key, MessageID: rand.Text(), Delete: true, Keep: time.Second})
	if err == nil && r.Outcome == client.Stored {
		c.Saw(r.Version)
	}
}
