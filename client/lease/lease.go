package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

var (
	// ErrTaken: another holder has the lease.
	ErrTaken = errors.New("another holder has the lease")
	// ErrLost: the lease was lost before it was released. Another holder may
	// have it, or may have had it.
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
	version hlc.Timestamp // of the key, after the last renewal that was answered
	unsure  bool          // a renewal was sent and not answered: version may be older than the key's

	releasing sync.Mutex
	released  bool // under releasing
	sent      bool // under releasing: a release was sent and not answered
}

// Acquire tries once to get a lease, and renews it from then on. It fails with
// [ErrTaken] if another holder has it. ctx bounds the attempt, not the lease.
//
// If the connection breaks meanwhile, Acquire asks again, and keeps a lease that its first
// request acquired. If it fails with the outcome unknown, it releases what it may have
// acquired before it returns, which takes up to 1 s.
func Acquire(ctx context.Context, c *client.Client, name string, opts ...Option) (*Lease, error) {
	k, err := NewLock(c, name, opts...)
	if err != nil {
		return nil, err
	}
	return k.TryLock(ctx)
}

// Holder returns the name of a lease's holder, which is the value of its key.
func Holder(ctx context.Context, c *client.Client, name string) (holder string, held bool, err error) {
	v, held, err := c.Get(ctx, name)
	return string(v.Bytes), held, err
}

// Name is the lease's name, which is its key in the store.
func (l *Lease) Name() string { return l.name }

// Holder is the value of the key while this lease is held.
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
// [ErrReleased]. It looks at the time itself: a busy process may run the timer that ends
// the context too late.
func (l *Lease) Err() error {
	if l.ctx.Err() == nil && l.Remaining() <= 0 {
		l.expire()
	}
	return context.Cause(l.ctx)
}

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
// expires. Releasing twice is harmless.
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
		d, err := l.client.Del(ctx, l.name, client.IfValue([]byte(l.holder)))
		switch {
		case errors.Is(err, client.ErrUnknownOutcome) && !ended(ctx, err):
			l.sent = true
		case err != nil && !errors.Is(err, client.ErrNotApplied):
			l.sent = l.sent || errors.Is(err, client.ErrUnknownOutcome)
			return err
		case d.Deleted, l.sent: // deleted by this request, or by an earlier one
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
	unsure bool // a request was sent and not answered: it may have acquired the lease
}

func newAttempt(c *client.Client, name string, cfg config) *attempt {
	return &attempt{config: cfg, client: c, name: name, holder: cfg.holderFor(c)}
}

// once asks for the lease until there is an answer. IfAbsentOrEqual makes it harmless to ask
// again: the same holder gets its lease again.
func (a *attempt) once(ctx context.Context) (*Lease, error) {
	for {
		asked := time.Now()
		set, err := a.client.Set(ctx, a.name, []byte(a.holder), client.IfAbsentOrEqual(), client.Expiry(a.ttl))
		taken := errors.Is(err, client.ErrNotApplied)
		a.unsure = err == nil || a.unsure && !taken || errors.Is(err, client.ErrUnknownOutcome)
		switch {
		case taken:
			return nil, fmt.Errorf("%w: %q", ErrTaken, a.name)
		case errors.Is(err, client.ErrUnknownOutcome) && !ended(ctx, err):
		case err != nil:
			return nil, err
		case time.Since(asked) < a.usable():
			return a.hold(ctx, set.Version, asked), nil
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

// abandon releases what an attempt that is given up may have acquired.
func (a *attempt) abandon(ctx context.Context) {
	if !a.unsure {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	_, _ = a.client.Del(ctx, a.name, client.IfValue([]byte(a.holder)), client.RetryWrites()) // else it expires
}
