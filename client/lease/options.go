package lease

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// DefaultTTL is how long a lease lasts without being renewed.
const DefaultTTL = 30 * time.Second

const (
	// minTTL keeps a slip of the unit (10 for 10 s) from becoming a lease that
	// is lost before its answer comes.
	minTTL = 10 * time.Millisecond
	// wakeSpread is the longest that a waiter delays its request for a lease that has
	// become free. Of many waiters most are notified within it that another was faster,
	// and send no request.
	wakeSpread = 10 * time.Millisecond
	// releaseTimeout bounds releases that the package makes by itself. A lease that
	// isn't released in that time expires.
	releaseTimeout = 5 * time.Second
	// abandonTimeout bounds the clean-up after an acquisition that was given up
	// with a request under way: the caller that gave up waits for it.
	abandonTimeout = time.Second
)

// Option configures a lease: an argument of [NewLock], [NewLeader] and [Acquire].
type Option interface{ applyLease(*config) }

type optionFunc func(*config)

func (f optionFunc) applyLease(c *config) { f(c) }

type config struct {
	ttl         time.Duration
	margin      time.Duration
	marginGiven bool
	holder      string
}

// WithTTL sets how long the lease lasts without being renewed, at least 10 ms;
// the default is 30 s. Others wait for so long when the holder dies. A holder renews
// three times within it, and keeps the lease without a connection for about two thirds of
// it.
func WithTTL(d time.Duration) Option { return optionFunc(func(c *config) { c.ttl = d }) }

// WithMargin sets how long before the lease can expire its context ends. The holder has
// that time to stop, and clocks may differ in speed by so much. It is from 0 to half of
// the TTL; the default is a tenth of the TTL.
func WithMargin(d time.Duration) Option {
	return optionFunc(func(c *config) { c.margin, c.marginGiven = d, true })
}

// WithHolder sets the value of the key, by which other processes know the holder. The default, also for "", is the client ID, a colon and 16 random digits,
// different for each acquisition.
//
// Two attempts with the same value are the same holder: the second gets the lease although
// it is held, as it should after a restart, and the earlier [Lease] is lost. So two
// processes that exclude each other must never use the same value.
func WithHolder(value string) Option { return optionFunc(func(c *config) { c.holder = value }) }

func newConfig(opts []Option) (config, error) {
	c := config{ttl: DefaultTTL}
	for _, o := range opts {
		o.applyLease(&c)
	}
	if c.ttl < minTTL {
		return c, fmt.Errorf("%w: WithTTL(%v): it must be at least %v", client.ErrInvalidOption, c.ttl, minTTL)
	}
	if !c.marginGiven {
		c.margin = c.ttl / 10
	}
	if c.margin < 0 || c.margin > c.ttl/2 {
		return c, fmt.Errorf("%w: WithMargin(%v): it must be from 0 to half of the TTL, which is %v", client.ErrInvalidOption, c.margin, c.ttl)
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
