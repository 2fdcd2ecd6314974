package consistenttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"holdfast/client"
	"holdfast/consistent"
)

// Faults says how likely each fault is, from 0 to 1, whenever it could happen.
type Faults struct {
	FailBefore   float64 // a LOAD, STORE, DONE or publishing fails without having been carried out
	LoseReply    float64 // … or is carried out, and fails all the same
	RepeatStore  float64 // a STORE reaches the store twice
	DelayStore   float64 // a STORE waits, for up to Delay, so that other instances are faster
	BreakPublish float64 // only the first of several outputs is published, and that fails
	Duplicate    float64 // a message is delivered twice, the second time later
	Reorder      float64 // a message is delivered after later ones
	Delay        time.Duration
}

// Everything has all faults, often enough for a short test to meet each of them.
func Everything() Faults {
	return Faults{FailBefore: 0.05, LoseReply: 0.05, RepeatStore: 0.05, DelayStore: 0.05, BreakPublish: 0.1, Duplicate: 0.1, Reorder: 0.1, Delay: 5 * time.Millisecond}
}

// ErrInjected is the error of what was made to fail.
var ErrInjected = errors.New("injected fault")

// WithFaults puts faults before a connection. The same seed makes the same decisions in
// the same order; a test prints the seed when it fails.
func WithFaults(conn consistent.Conn, seed uint64, f Faults) consistent.Conn {
	return &faulty{Conn: conn, f: f, rand: rand.New(rand.NewPCG(seed, 0))}
}

type faulty struct {
	consistent.Conn
	f Faults

	mu   sync.Mutex
	rand *rand.Rand            // under mu
	held []consistent.Delivery // under mu: to be delivered later
}

func (c *faulty) happens(probability float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.Float64() < probability
}

// around carries a request out, or not, and loses its answer, or not.
func (c *faulty) around(carryOut func() error) error {
	if c.happens(c.f.FailBefore) {
		return ErrInjected
	}
	err := carryOut()
	if c.happens(c.f.LoseReply) {
		return ErrInjected
	}
	return err
}

func (c *faulty) Load(ctx context.Context, key, messageID string) (m client.Message, err error) {
	err = c.around(func() (err error) {
		m, err = c.Conn.Load(ctx, key, messageID)
		return err
	})
	return m, err
}

func (c *faulty) Store(ctx context.Context, r consistent.StoreRequest) (result client.StoreResult, err error) {
	if c.happens(c.f.DelayStore) {
		c.mu.Lock()
		d := time.Duration(c.rand.Int64N(int64(c.f.Delay) + 1))
		c.mu.Unlock()
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return result, ctx.Err()
		}
	}
	err = c.around(func() (err error) {
		result, err = c.Conn.Store(ctx, r)
		if c.happens(c.f.RepeatStore) {
			result, err = c.Conn.Store(ctx, r)
		}
		return err
	})
	return result, err
}

func (c *faulty) Done(ctx context.Context, key, messageID string) (remembered bool, err error) {
	err = c.around(func() (err error) {
		remembered, err = c.Conn.Done(ctx, key, messageID)
		return err
	})
	return remembered, err
}

func (c *faulty) Publish(ctx context.Context, messages ...consistent.Message) error {
	if len(messages) > 1 && c.happens(c.f.BreakPublish) {
		_ = c.Conn.Publish(ctx, messages[:1]...)
		return ErrInjected
	}
	return c.around(func() error { return c.Conn.Publish(ctx, messages...) })
}

// heldBound is how many messages may be kept back.
const heldBound = 16

func (c *faulty) Subscribe(ctx context.Context, filters []string, deliver func(consistent.Delivery)) error {
	return c.Conn.Subscribe(ctx, filters, func(d consistent.Delivery) {
		now := []consistent.Delivery{d}
		if c.happens(c.f.Reorder) {
			now = nil
			c.later(d, deliver)
		} else if c.happens(c.f.Duplicate) {
			again := d
			again.Ack = func() {}
			c.later(again, deliver)
		}
		for _, d := range now {
			deliver(d)
		}
	})
}

// later delivers a message when something else has come in, or some time has passed.
func (c *faulty) later(d consistent.Delivery, deliver func(consistent.Delivery)) {
	c.mu.Lock()
	c.held = append(c.held, d)
	release := c.held
	if len(c.held) < heldBound {
		release = nil
	} else {
		c.held = nil
	}
	c.mu.Unlock()
	for _, d := range release {
		deliver(d)
	}
	time.AfterFunc(c.f.Delay, func() {
		c.mu.Lock()
		release := c.held
		c.held = nil
		c.mu.Unlock()
		for _, d := range release {
			deliver(d)
		}
	})
}
