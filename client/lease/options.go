package lease

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"holdfast/client"
)

// DefaultTTL is how long a lease lasts without being renewed.
const DefaultTTL = 30 * time.Second

const (
	// minTTL keeps a slip of the unit (10 for 10 s) from becoming a lease that
	// is lost before its answer comes.
	minTTL = 10 * time.Millisecond
	// wakeSpread is the longest that a waiter hesitates before it asks for a
	// lease that has become free. Of many, most hear within it that somebody
	// was faster, and don't ask.
	wakeSpread = 10 * time.Millisecond
	// releaseTimeout bounds releases that the package makes on its own. What
	// isn't released in that time expires.
	releaseTimeout = 5 * time.Second
	// abandonTimeout bounds the clean-up after an acquisition that was given up
	// with a request under way: whoever gave up waits for it.
	abandonTimeout = time.Second
)

// Option configures a lease.
type Option func(*config)

type config struct {
	ttl    time.Duration
	margin time.Duration
	holder string
}

// WithTTL sets how long the lease lasts without being renewed, at least 10 ms;
// the default is 30 s. It is what others wait when the holder dies. A holder
// renews three times within it, and survives a connection that is away for
// about two thirds of it.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithMargin sets how long before the lease can end its context ends: the time
// to stop in, and what absorbs clocks of different speed. From 0 to half of the
// TTL; the default is a tenth of the TTL.
func WithMargin(d time.Duration) Option { return func(c *config) { c.margin = d } }

// WithHolder sets the value that stands in the key and tells others who holds
// the lease. The default is the client ID, a colon and 16 random digits, another
// one for each acquisition.
//
// The same value is the same holder: it gets the lease although it is held, as
// after a restart it should, and the [Lease] from before is lost. So two that
// exclude each other must never share one.
func WithHolder(value string) Option { return func(c *config) { c.holder = value } }

func newConfig(opts []Option) (config, error) {
	c := config{ttl: DefaultTTL, margin: -1}
	for _, o := range opts {
		o(&c)
	}
	if c.ttl < minTTL {
		return c, fmt.Errorf("%w: a lease of %v: it must last at least %v", client.ErrInvalidOption, c.ttl, minTTL)
	}
	if c.margin == -1 {
		c.margin = c.ttl / 10
	}
	if c.margin < 0 || c.margin > c.ttl/2 {
		return c, fmt.Errorf("%w: a margin of %v for a lease of %v: it must be from 0 to half of it", client.ErrInvalidOption, c.margin, c.ttl)
	}
	return c, nil
}

// usable is how long a lease may be relied on after the request for it.
func (c *config) usable() time.Duration { return c.ttl - c.margin }

// interval is the time between renewals: two may fail.
func (c *config) interval() time.Duration { return c.usable() / 3 }

// holderFor is the value for one acquisition.
func (c *config) holderFor(cl *client.Client) string {
	if c.holder != "" {
		return c.holder
	}
	var b [8]byte
	rand.Read(b[:])
	return cl.ClientID() + ":" + hex.EncodeToString(b[:])
}
