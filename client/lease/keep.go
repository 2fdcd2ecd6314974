package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// How a lease is kept.
//
// The store ends a lease a TTL after it has executed the SET, hence at least a TTL after
// the holder has sent it. So the holder reads its monotonic clock before it sends. TTL
// minus margin later the lease's context ends (expire), unless a renewal that was sent
// later has been confirmed. This depends on both clocks running at nearly the same speed,
// not on what they show.
//
// Renewals are sent three times within that span by one goroutine (keep). Each
// is conditional on the version that the one before has left, so a renewal never
// brings back a lease that was lost for a moment and never lands after a
// release. A renewal that isn't answered is simply repeated until the span is
// over. If it was executed all the same, the condition of the repetition fails. Then
// the holder reads the key: if the key has the holder's value, the renewal was its own
// (findOut).
//
// Leases can be lost earlier: a person deletes the key to break the lock, or
// another process uses the same holder value. So the key is watched as well. After a change
// that the holder has not made, it renews at once, and the answer tells who holds the
// lease. The watch begins after a while, because most locks are held for a short time
// only.

// watchDelay is when the watch begins.
func (c *config) watchDelay() time.Duration { return min(c.interval()/4, time.Second) }

// retryPause is the wait before a renewal that failed is repeated, between half
// and all of it. A broken connection makes the request itself wait.
func (c *config) retryPause() time.Duration {
	pause := min(c.interval()/8, 250*time.Millisecond)
	return pause/2 + rand.N(pause/2+1)
}

// keep renews the lease until its context ends. asked is when it was acquired.
func (l *Lease) keep(asked time.Time) {
	defer close(l.kept)
	renew := time.NewTimer(l.interval() - time.Since(asked))
	defer renew.Stop()
	watch := time.NewTimer(l.watchDelay())
	defer watch.Stop()
	watched := make(chan *client.Watch, 1)
	var events <-chan client.Event
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-watch.C:
			go l.watch(watched)
			continue
		case w := <-watched:
			if w == nil { // until the watch succeeds, renewals notice a lost lease
				watch.Reset(l.interval())
				continue
			}
			events = w.Chan() // a renewal notices changes before the watch
		case e, open := <-events:
			if !open {
				events = nil
				watch.Reset(l.interval())
			}
			if open && !e.Version.IsZero() && e.Version.Compare(l.version) <= 0 {
				continue // the holder's own renewal, or an older change
			}
		case <-renew.C:
		}
		renew.Reset(l.renew())
	}
}

// watch registers for the changes of the key. The watch ends with the lease.
func (l *Lease) watch(watched chan<- *client.Watch) {
	w, err := l.client.Watch(l.ctx, l.name, client.Queue(8))
	if err != nil {
		w = nil
	}
	watched <- w
}

// renew asks once for another TTL and returns when to ask next.
func (l *Lease) renew() (next time.Duration) {
	ctx, cancel := context.WithTimeout(l.ctx, l.interval())
	defer cancel()
	asked := time.Now()
	set, err := l.client.Set(ctx, l.name, []byte(l.holder), client.IfVersion(l.version), client.Expiry(l.ttl))
	switch {
	case err == nil:
		l.version, l.unsure = set.Version, false
		l.extend(asked)
		return max(0, l.interval()-time.Since(asked))
	case errors.Is(err, client.ErrNotApplied):
		return l.findOut(ctx)
	case errors.Is(err, client.ErrClosed):
		l.lose(err)
		return l.interval()
	}
	l.unsure = l.unsure || errors.Is(err, client.ErrUnknownOutcome)
	return l.failed(err)
}

// findOut finds out why a renewal wasn't applied.
func (l *Lease) findOut(ctx context.Context) (next time.Duration) {
	v, found, err := l.client.Get(ctx, l.name)
	switch {
	case err != nil:
		return l.failed(err)
	case !found:
		l.lose(errors.New("its key was deleted"))
	case string(v.Bytes) != l.holder:
		l.lose(fmt.Errorf("%q holds it", v.Bytes))
	case !l.unsure:
		l.lose(errors.New("the same holder has acquired it again"))
	default:
		l.version, l.unsure = v.Version, false
		return 0
	}
	return l.interval()
}

// failed remembers why the lease could not be renewed.
func (l *Lease) failed(err error) (next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = err
	return l.retryPause()
}

// extend moves the lease's end: it was renewed by a request sent at asked.
func (l *Lease) extend(asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = asked.Add(l.usable())
	l.ending.Reset(time.Until(l.until))
	l.trouble = nil
}

// expire ends the lease's context when the lease may have expired at the server.
func (l *Lease) expire() {
	l.mu.Lock()
	left, trouble := time.Until(l.until), l.trouble
	if left > 0 { // a renewal came between the timer and the lock
		l.ending.Reset(left)
	}
	l.mu.Unlock()
	switch {
	case left > 0:
	case trouble != nil:
		l.lose(fmt.Errorf("it could not be renewed in time: %w", trouble))
	default:
		l.lose(errors.New("it could not be renewed in time"))
	}
}

// lose ends the lease's context; only the first cause is kept.
func (l *Lease) lose(why error) {
	l.cancel(fmt.Errorf("%w: %q: %w", ErrLost, l.name, why))
}
