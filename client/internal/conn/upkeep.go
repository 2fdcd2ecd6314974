package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/dial"
)

// Link is a connection, with the requests that are under way over it.
type Link interface {
	// Wait blocks until the connection has ended, by itself or with ctx, and says why.
	Wait(ctx context.Context) error
	// Kill fails the requests that still wait for an answer over it.
	Kill(cause error)
}

// Upkeep keeps one connection up until it is stopped.
type Upkeep[L interface {
	comparable
	Link
}] struct {
	cfg     *Config
	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	stopped chan struct{} // closed when Run has ended
	tried   chan struct{} // closed when the first connection is made, or the servers have been tried once

	mu      sync.Mutex
	link    L             // under mu: nil while there is no connection
	ready   chan struct{} // under mu: closed when link is set; then replaced when it is lost
	lastErr error         // under mu: why there is no connection
}

// NewUpkeep prepares to connect; [Upkeep.Run] does.
func NewUpkeep[L interface {
	comparable
	Link
}](cfg *Config) *Upkeep[L] {
	k := &Upkeep[L]{cfg: cfg, stopped: make(chan struct{}), tried: make(chan struct{}), ready: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// Context ends with Stop.
func (k *Upkeep[L]) Context() context.Context { return k.ctx }

// AwaitFirst waits until the first connection is made, or each server has been tried once.
func (k *Upkeep[L]) AwaitFirst(ctx context.Context) error {
	select {
	case <-k.tried:
	case <-ctx.Done():
		return fmt.Errorf("connect to %s: %w", k.cfg.Servers.Reached(), ctx.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var none L
	if k.link == none {
		return fmt.Errorf("connect to %s: %w", k.cfg.Servers.Reached(), k.lastErr)
	}
	return nil
}

// Stop disconnects, and returns when Run has ended.
func (k *Upkeep[L]) Stop() {
	k.cancel()
	<-k.stopped
	if k.cfg.Sent != nil {
		k.cfg.Sent.Drop()
	}
}

// Run connects, and connects again whenever the connection is lost, until Stop. It calls
// up for each connection, and down for each end and each attempt that failed. Of several servers it tries
// one after the other, and pauses after the last.
func (k *Upkeep[L]) Run(connect func() (L, error), up func(L), down func()) {
	defer close(k.stopped)
	pause := k.cfg.MinBackoff
	for first, left := true, k.cfg.Servers.Len(); k.ctx.Err() == nil; {
		l, err := connect()
		since := time.Now()
		if err == nil {
			k.up(l)
			up(l)
		} else {
			k.down(err)
			down()
		}
		left--
		another := left > 0 && k.ctx.Err() == nil && k.anotherMay(err)
		if first && !another {
			first = false
			close(k.tried)
		}
		if err == nil {
			cause := l.Wait(k.ctx)
			k.down(cause) // before Kill, so that a request that is repeated gets no dead link
			down()
			l.Kill(cause)
			if k.ctx.Err() == nil {
				k.cfg.Logger.Warn("connection lost", "address", k.cfg.Servers.Reached(), "error", cause)
			}
			// A server that accepts connections and closes them at once gets longer pauses.
			if time.Since(since) > pause {
				pause = k.cfg.MinBackoff
			}
		} else if k.ctx.Err() == nil {
			k.cfg.Logger.Warn("cannot connect", "address", k.cfg.Servers.Reached(), "error", err)
		}
		if another {
			continue
		}
		left = k.cfg.Servers.Len()
		pause = rest(k.ctx, pause, k.cfg.MaxBackoff)
	}
}

// anotherMay reports whether another server may be of use when an attempt has failed with err; nil: it
// has not.
func (k *Upkeep[L]) anotherMay(err error) bool {
	var all *dial.Failures
	return err != nil && !errors.As(err, &all) && k.cfg.Errors.Another(err)
}

func (k *Upkeep[L]) up(l L) {
	k.mu.Lock()
	defer k.mu.Unlock()
	level := slog.LevelDebug // the first connection is expected; one after a failure is news
	if k.lastErr != nil {
		level = slog.LevelInfo
	}
	k.cfg.Logger.Log(k.ctx, level, "connected", "address", k.cfg.Servers.Reached(), "client_id", k.cfg.ClientID)
	k.link, k.lastErr = l, nil
	close(k.ready)
}

func (k *Upkeep[L]) down(cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var none L
	if k.link != none {
		k.link = none
		k.ready = make(chan struct{})
	}
	k.lastErr = cause
}

// Live returns the connection, waiting for it if there is none.
func (k *Upkeep[L]) Live(ctx context.Context) (L, error) {
	var none L
	for {
		k.mu.Lock()
		l, ready := k.link, k.ready
		k.mu.Unlock()
		if k.ctx.Err() != nil {
			return none, ErrClosed
		}
		if l != none {
			return l, nil
		}
		select {
		case <-ready:
		case <-k.ctx.Done():
			return none, ErrClosed
		case <-ctx.Done():
			return none, k.notConnected(ctx.Err())
		}
	}
}

// Bound gives ctx the configured timeout if it has no deadline.
func (k *Upkeep[L]) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, k.cfg.Timeout)
}

// Now returns the connection without waiting for it; its zero value means that there is
// none.
func (k *Upkeep[L]) Now() L {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link
}

// Why explains that a context has ended: with ErrNotConnected if there is no connection,
// otherwise with the context's error.
func (k *Upkeep[L]) Why(ended error) error {
	var none L
	if k.Now() != none {
		return ended
	}
	return k.notConnected(ended)
}

// notConnected says that nothing could be sent until a context ended, and why.
func (k *Upkeep[L]) notConnected(ended error) error {
	k.mu.Lock()
	cause := k.lastErr
	k.mu.Unlock()
	if cause == nil || errors.Is(cause, ended) {
		return fmt.Errorf("%w: %w", ErrNotConnected, ended)
	}
	return fmt.Errorf("%w: %w (%w)", ErrNotConnected, cause, ended)
}

// rest sleeps for between half and all of pause and returns the next one.
func rest(ctx context.Context, pause, longest time.Duration) time.Duration {
	t := time.NewTimer(pause/2 + rand.N(pause/2+1))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return min(2*pause, longest)
}
