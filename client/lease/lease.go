package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/client"
	"holdfast/hlc"
)

var (
	// ErrTaken: somebody else holds the lease.
	ErrTaken = errors.New("somebody else holds the lease")
	// ErrLost: the lease was lost before it was released. Somebody else may
	// hold it, or may have.
	ErrLost = errors.New("the lease is lost")
	// ErrReleased ends the context of a lease that was released.
	ErrReleased = errors.New("the lease was released")
)

// Lease is a lease that is held. It is renewed in the background until it is
// released or lost; release it, or it goes on until the client is closed. It is
// safe for concurrent use.
type Lease struct {
	config
	client *client.Client
	name   string
	holder string
	token  hlc.Timestamp

	ctx    context.Context
	cancel context.CancelCauseFunc
	kept   chan struct{} // closed when keep has ended

	mu      sync.Mutex
	until   time.Time   // under mu: when ctx ends unless the lease is renewed
	ending  *time.Timer // under mu: fires then
	trouble error       // under mu: why the latest renewal failed

	// For keep alone.
	version hlc.Timestamp // of the key, as we left it
	unsure  bool          // a renewal was sent and not answered: version may be older than the key's

	releasing sync.Mutex
	released  bool // under releasing
	sent      bool // under releasing: a release was sent and not answered
}

// Acquire tries once to get a lease, and renews it from then on. It fails with
// [ErrTaken] if somebody else holds it. ctx bounds the attempt, not the lease.
//
// If the connection breaks meanwhile, Acquire asks again: a lease that its own
// first request acquired is its own. If it fails with the outcome unknown, it
// takes back what it may have acquired before it returns, and spends up to 1 s
// on that.
func Acquire(ctx context.Context, c *client.Client, name string, opts ...Option) (*Lease, error) {
	k, err := NewLock(c, name, opts...)
	if err != nil {
		return nil, err
	}
	return k.TryLock(ctx)
}

// Holder tells who holds a lease: the value of its key.
func Holder(ctx context.Context, c *client.Client, name string) (holder string, held bool, err error) {
	v, held, err := c.Get(ctx, name)
	return string(v.Bytes), held, err
}

// Name is the lease's name, which is its key in the store.
func (l *Lease) Name() string { return l.name }

// Holder is the value that stands in the key while this lease is held.
func (l *Lease) Holder() string { return l.holder }

// Token is the lease's fencing token: the version under which it was acquired.
// It is higher than those of all earlier holders and stays the same through all
// renewals, so that one holder's writes never fence each other.
func (l *Lease) Token() hlc.Timestamp { return l.token }

// Fencing makes a write one that the store refuses once a later holder has
// written ([client.ErrTokenTooLow]).
func (l *Lease) Fencing() client.WriteOption { return client.Fencing(l.token) }

// Context ends before the lease can, with [ErrLost] as its cause, or with
// [ErrReleased] when Release begins.
func (l *Lease) Context() context.Context { return l.ctx }

// Err is nil while the lease is held, then what ended it: [ErrLost] or
// [ErrReleased].
func (l *Lease) Err() error { return context.Cause(l.ctx) }

// Bind returns a copy of ctx that ends with the lease as well, for the work
// that needs both. Call cancel when the work is done.
func (l *Lease) Bind(ctx context.Context) (bound context.Context, cancel context.CancelFunc) {
	bound, end := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(l.ctx, func() { end(l.Err()) })
	return bound, func() { unhook(); end(context.Canceled) }
}

// Remaining is how long the lease may be relied on without another renewal, by
// the local monotonic clock; not positive when it has ended.
func (l *Lease) Remaining() time.Duration {
	if l.ctx.Err() != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.until)
}

// Release ends the lease so that others can have it at once. It returns
// [ErrLost] if the lease was lost before. After any other error, such as no
// connection, it can be called again; the lease is not renewed any more and
// expires. Releasing what is released is harmless.
func (l *Lease) Release(ctx context.Context) error {
	l.cancel(ErrReleased) // does nothing if it is lost
	<-l.kept
	l.releasing.Lock()
	defer l.releasing.Unlock()
	switch {
	case l.released:
		return nil
	case errors.Is(l.Err(), ErrLost):
		return l.Err()
	}
	return l.giveBack(ctx)
}

// giveBack deletes the key if the holder is still in it. The caller holds
// l.releasing.
func (l *Lease) giveBack(ctx context.Context) error {
	for {
		d, err := l.client.VDel(ctx, l.name, []byte(l.holder))
		switch {
		case errors.Is(err, client.ErrUnknownOutcome) && !ended(ctx, err):
			l.sent = true
		case err != nil:
			l.sent = l.sent || errors.Is(err, client.ErrUnknownOutcome)
			return err
		case d.Deleted, l.sent: // if not this time, then the first time
			l.released = true
			return nil
		default:
			l.released = true
			return fmt.Errorf("%w: %q was no longer held when it was released", ErrLost, l.name)
		}
	}
}

// ended tells whether to give up after a request that failed with err, rather
// than to repeat it: there is no time left, or no client.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrClosed)
}

// attempt is one acquisition: all its requests name the same holder.
type attempt struct {
	config
	client *client.Client
	name   string
	holder string
	unsure bool // a request was sent and not answered: the lease may be ours
}

func newAttempt(c *client.Client, name string, cfg config) *attempt {
	return &attempt{config: cfg, client: c, name: name, holder: cfg.holderFor(c)}
}

// once asks for the lease until there is an answer. NEX makes it harmless to ask
// again: it gives us what we have.
func (a *attempt) once(ctx context.Context) (*Lease, error) {
	for {
		asked := time.Now()
		version, applied, err := a.client.Set(ctx, a.name, []byte(a.holder), client.NEX(), client.Expiry(a.ttl))
		a.unsure = applied || a.unsure && err != nil || errors.Is(err, client.ErrUnknownOutcome)
		switch {
		case errors.Is(err, client.ErrUnknownOutcome) && !ended(ctx, err):
		case err != nil:
			return nil, err
		case !applied:
			return nil, fmt.Errorf("%w: %q", ErrTaken, a.name)
		case time.Since(asked) < a.usable():
			return a.hold(ctx, version, asked), nil
		default: // the answer took so long that the lease may be over: ask again
		}
	}
}

// hold begins to keep a lease that was acquired.
func (a *attempt) hold(ctx context.Context, version hlc.Timestamp, asked time.Time) *Lease {
	l := &Lease{
		config:  a.config,
		client:  a.client,
		name:    a.name,
		holder:  a.holder,
		token:   version,
		version: version,
		kept:    make(chan struct{}),
		until:   asked.Add(a.usable()),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.mu.Lock()
	l.ending = time.AfterFunc(time.Until(l.until), l.expire)
	l.mu.Unlock()
	go l.keep(asked)
	return l
}

// abandon takes back what an attempt that is given up may have acquired.
func (a *attempt) abandon(ctx context.Context) {
	if !a.unsure {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	_, _ = a.client.VDel(ctx, a.name, []byte(a.holder), client.RetryWrites()) // else it expires
}
