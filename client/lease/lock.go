package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Lock acquires a lease, waiting while another holder has it. It has no state
// of its own: any number of goroutines may share one, and each call of
// [Lock.Lock] excludes all others, in this process as in others.
//
// There is no queue: of the callers that wait, the fastest gets a lock that becomes
// free.
type Lock struct {
	config
	client *client.Client
	name   string
}

// NewLock makes a lock. It sends no request.
func NewLock(c *client.Client, name string, opts ...Option) (*Lock, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return &Lock{config: cfg, client: c, name: name}, nil
}

// TryLock is Lock without waiting, just as [Acquire] is: it fails with [ErrTaken]
// if another holder has the lock.
func (k *Lock) TryLock(ctx context.Context) (*Lease, error) {
	a := newAttempt(k.client, k.name, k.config)
	l, err := a.once(ctx)
	if err != nil {
		a.abandon(ctx)
		return nil, err
	}
	return l, nil
}

// Lock waits until it holds the lock, or ctx ends, or the client is closed. ctx
// bounds the wait, not the lock. Lock also waits while there is no connection. It returns
// an error that the store answers.
func (k *Lock) Lock(ctx context.Context) (*Lease, error) {
	a := newAttempt(k.client, k.name, k.config)
	l, err := a.once(ctx)
	for errors.Is(err, ErrTaken) || passing(ctx, err) {
		l, err = k.wait(ctx, a)
	}
	if err != nil {
		a.abandon(ctx)
		return nil, err
	}
	return l, nil
}

// passing reports whether a failure may pass: no connection, or no answer.
func passing(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrClosed) &&
		(errors.Is(err, client.ErrNotConnected) || errors.Is(err, client.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded))
}

// wait asks for the lock each time it may be free. The watch comes before the
// first question, so no release in between is missed.
func (k *Lock) wait(ctx context.Context, a *attempt) (*Lease, error) {
	w, err := k.client.Watch(ctx, k.name)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for {
		l, err := a.once(ctx)
		if err == nil || !errors.Is(err, ErrTaken) {
			return l, err
		}
		if err := k.free(ctx, w); err != nil {
			return nil, err
		}
	}
}

// free returns when the lock seems to be free: soon after its key was deleted or
// has expired, unless another waiter was faster. In case the notification is lost, it also
// returns when a lease of this lock's TTL would have expired.
func (k *Lock) free(ctx context.Context, w *client.Watch) error {
	poll := time.NewTimer(k.ttl + rand.N(k.ttl/4+1))
	defer poll.Stop()
	var chance <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
			return nil
		case <-chance:
			return nil
		case e, open := <-w.Chan():
			switch {
			case !open && w.Err() == nil:
				return client.ErrClosed
			case !open:
				return w.Err()
			case e.Kind == client.KeyDeleted:
				chance = time.After(rand.N(wakeSpread))
			default:
				chance = nil // another waiter was faster
			}
		}
	}
}
