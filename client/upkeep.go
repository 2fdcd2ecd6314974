package client

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// connection is a link of a Client or of a Session.
type connection interface {
	// wait blocks until the connection has ended, by itself or with ctx, and says why.
	wait(ctx context.Context) error
	// kill fails whatever still waits for an answer over it.
	kill(cause error)
}

// keepConnected connects, and connects again whenever the connection is lost,
// until ctx ends. tried is closed after the first attempt. up is told of every
// connection; down of every end, and of every attempt that failed.
func keepConnected[C connection](ctx context.Context, cfg *config, address string, tried chan<- struct{}, connect func() (C, error), up func(C), down func(error)) {
	pause := cfg.minBackoff
	for first := true; ctx.Err() == nil; first = false {
		l, err := connect()
		since := time.Now()
		if err == nil {
			up(l)
		} else {
			down(err)
		}
		if first {
			close(tried)
		}
		if err == nil {
			cause := l.wait(ctx)
			down(cause) // first, so that whoever tries again finds no dead link
			l.kill(cause)
			if ctx.Err() == nil {
				cfg.logger.Warn("connection lost", "address", address, "error", cause)
			}
			// A server that accepts and throws out at once must not be hammered.
			if time.Since(since) > pause {
				pause = cfg.minBackoff
			}
		} else if ctx.Err() == nil {
			cfg.logger.Warn("cannot connect", "address", address, "error", err)
		}
		pause = rest(ctx, pause, cfg.maxBackoff)
	}
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

// sayConnected logs that there is a connection: coming back is news, the rest
// is what everybody expects.
func (c *config) sayConnected(address string, back bool) {
	level := slog.LevelDebug
	if back {
		level = slog.LevelInfo
	}
	c.logger.Log(context.Background(), level, "connected", "address", address, "client_id", c.clientID)
}
