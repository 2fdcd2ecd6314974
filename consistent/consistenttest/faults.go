package consistenttest

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

// Faults says how likely each fault is, from 0 to 1, whenever it could happen.
type Faults struct {
	FailBefore   float64 // a LOAD, STORE, DONE, transaction or publishing fails without having been carried out
	LoseReply    float64 // … or is carried out, and fails all the same
	RepeatStore  float64 // a STORE or a transaction reaches the store twice
	DelayStore   float64 // a STORE or a transaction waits, for up to Delay, so that other instances are faster
	BreakPublish float64 // only the first of several outputs is published, and that fails
	Duplicate    float64 // a message is delivered twice, the second time later
	Reorder      float64 // a message is delivered after later ones
	Delay        time.Duration
}

// Everything has all faults, often enough for a short test to meet each of them.
func Everything() Faults {
	return Faults{FailBefore: 0.05, LoseReply: 0.05, RepeatStore: 0.05, DelayStore: 0.05, BreakPublish: 0.1, Duplicate: 0.1, Reorder: 0.1, Delay: 5 * time.Millisecond}
}

// ErrInjected is the error of a request that a fault made fail.
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

// around executes a request, unless it is to fail, and loses its answer, if that is to be
// lost.
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

func (c *faulty) Load(ctx context.Context, key, messageID string) (m client.LoadResult, err error) {
	err = c.around(func() (err error) {
		m, err = c.Conn.Load(ctx, key, messageID)
		return err
	})
	return m, err
}

func (c *faulty) Store(ctx context.Context, r consistent.StoreRequest) (result client.StoreResult, err error) {
	if err := c.delay(ctx); err != nil {
		return result, err
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

// TransactsTogether tells what the connection does.
func (c *faulty) TransactsTogether() bool {
	t, ok := c.Conn.(consistent.TogetherConn)
	return ok && t.TransactsTogether()
}

// Transact has the faults of a STORE.
func (c *faulty) Transact(ctx context.Context, r consistent.TxnRequest) (result consistent.TxnResult, err error) {
	if err := c.delay(ctx); err != nil {
		return result, err
	}
	err = c.around(func() (err error) {
		result, err = c.Conn.Transact(ctx, r)
		if c.happens(c.f.RepeatStore) {
			result, err = c.Conn.Transact(ctx, r)
		}
		return err
	})
	return result, err
}

// delay has a STORE wait so that other instances are faster, if it is to.
func (c *faulty) delay(ctx context.Context) error {
	if !c.happens(c.f.DelayStore) {
		return nil
	}
	c.mu.Lock()
	d := time.Duration(c.rand.Int64N(int64(c.f.Delay) + 1))
	c.mu.Unlock()
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *faulty) Done(ctx context.Context, r consistent.DoneRequest) (remembered bool, err error) {
	err = c.around(func() (err error) {
		remembered, err = c.Conn.Done(ctx, r)
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

// heldBound is how many messages may be held back.
const heldBound = 16

// Messages gives the messages of the connection, with duplicates and in another order. A
// goroutine and the timers of later make them.
func (c *faulty) Messages(ctx context.Context) iter.Seq2[consistent.Delivery, error] {
	return func(yield func(consistent.Delivery, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		type next struct {
			d   consistent.Delivery
			err error
		}
		out, left := make(chan next), make(chan struct{})
		defer close(left)
		pass := func(d consistent.Delivery, err error) {
			select {
			case out <- next{d, err}:
			case <-left:
			}
		}
		deliver := func(d consistent.Delivery) { pass(d, nil) }
		go func() {
			for d, err := range c.Conn.Messages(ctx) {
				switch {
				case err != nil:
					pass(d, err)
				case c.happens(c.f.Reorder):
					c.later(d, deliver)
				case c.happens(c.f.Duplicate):
					c.later(client.NewDelivery(d.Message, d.Redelivered, nil), deliver)
					deliver(d)
				default:
					deliver(d)
				}
			}
		}()
		for {
			n := <-out
			if !yield(n.d, n.err) || n.err != nil {
				return
			}
		}
	}
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
