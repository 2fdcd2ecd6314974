package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// connection is a link of a Client or of a Session.
type connection interface {
	// wait blocks until the connection has ended, by itself or with ctx, and says why.
	wait(ctx context.Context) error
	// kill fails whatever still waits for an answer over it.
	kill(cause error)
}

// upkeep keeps one connection, of a Client or of a Session, up until it is stopped.
type upkeep[L interface {
	comparable
	connection
}] struct {
	cfg     *config
	address string
	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	stopped chan struct{} // closed when run has ended
	tried   chan struct{} // closed after the first attempt to connect

	mu      sync.Mutex
	link    L             // under mu: nil while there is no connection
	ready   chan struct{} // under mu: closed when link is set; then replaced when it is lost
	lastErr error         // under mu: why there is no connection
}

// configure fails only if the address or an option makes no sense.
func (k *upkeep[L]) configure(address string, opts []Option) error {
	cfg, err := newConfig(opts)
	if err != nil {
		return err
	}
	if cfg.dial == nil {
		if cfg.dial, err = dialer(address, cfg.tls); err != nil {
			return err
		}
	}
	k.cfg, k.address = cfg, address
	k.ctx, k.cancel = context.WithCancel(context.Background())
	k.stopped, k.tried, k.ready = make(chan struct{}), make(chan struct{}), make(chan struct{})
	return nil
}

// awaitFirst waits for the outcome of the first attempt to connect.
func (k *upkeep[L]) awaitFirst(ctx context.Context) error {
	select {
	case <-k.tried:
	case <-ctx.Done():
		return fmt.Errorf("connect to %s: %w", k.address, ctx.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var none L
	if k.link == none {
		return fmt.Errorf("connect to %s: %w", k.address, k.lastErr)
	}
	return nil
}

// stop disconnects, and returns when run has ended.
func (k *upkeep[L]) stop() {
	k.cancel()
	<-k.stopped
}

// run connects, and connects again whenever the connection is lost, until stop. up is
// told of every connection, down of every end and of every attempt that failed.
func (k *upkeep[L]) run(connect func() (L, error), up func(L), down func()) {
	defer close(k.stopped)
	pause := k.cfg.minBackoff
	for first := true; k.ctx.Err() == nil; first = false {
		l, err := connect()
		since := time.Now()
		if err == nil {
			k.up(l)
			up(l)
		} else {
			k.down(err)
			down()
		}
		if first {
			close(k.tried)
		}
		if err == nil {
			cause := l.wait(k.ctx)
			k.down(cause) // first, so that whoever tries again finds no dead link
			down()
			l.kill(cause)
			if k.ctx.Err() == nil {
				k.cfg.logger.Warn("connection lost", "address", k.address, "error", cause)
			}
			// A server that accepts and throws out at once must not be hammered.
			if time.Since(since) > pause {
				pause = k.cfg.minBackoff
			}
		} else if k.ctx.Err() == nil {
			k.cfg.logger.Warn("cannot connect", "address", k.address, "error", err)
		}
		pause = rest(k.ctx, pause, k.cfg.maxBackoff)
	}
}

func (k *upkeep[L]) up(l L) {
	k.mu.Lock()
	defer k.mu.Unlock()
	level := slog.LevelDebug // what everybody expects; coming back is news
	if k.lastErr != nil {
		level = slog.LevelInfo
	}
	k.cfg.logger.Log(k.ctx, level, "connected", "address", k.address, "client_id", k.cfg.clientID)
	k.link, k.lastErr = l, nil
	close(k.ready)
}

func (k *upkeep[L]) down(cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var none L
	if k.link != none {
		k.link = none
		k.ready = make(chan struct{})
	}
	k.lastErr = cause
}

// live returns the connection, waiting for it if there is none.
func (k *upkeep[L]) live(ctx context.Context) (L, error) {
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
			k.mu.Lock()
			cause := k.lastErr
			k.mu.Unlock()
			return none, notConnected(cause, ctx.Err())
		}
	}
}

// notConnected says that nothing could be sent until a context ended, and why.
func notConnected(cause, ended error) error {
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
