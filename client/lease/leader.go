package lease

import (
	"context"
	"errors"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Leader runs a function in one process of many.
type Leader struct{ lock *Lock }

// NewLeader makes a candidate. It sends no request. WithMargin is how much time the
// function has to stop after the lead is lost.
func NewLeader(c *client.Client, name string, opts ...Option) (*Leader, error) {
	k, err := NewLock(c, name, opts...)
	if err != nil {
		return nil, err
	}
	return &Leader{lock: k}, nil
}

// Run waits until this process leads, then runs lead. Its context ends before
// another process can lead, and when ctx does; lead must return then. The lead is
// kept until lead has returned.
//
// If the lead was lost, Run waits for the next one and runs lead again. Otherwise
// it gives the lead up and returns what lead returned. It also returns when ctx
// ends, and when the store refuses.
func (d *Leader) Run(ctx context.Context, lead func(ctx context.Context, l *Lease) error) error {
	for {
		l, err := d.lock.Lock(ctx)
		if err != nil {
			return err
		}
		err = run(ctx, l, lead)
		if !errors.Is(l.Err(), ErrLost) || ctx.Err() != nil {
			return err
		}
	}
}

// run leads once.
func run(ctx context.Context, l *Lease, lead func(context.Context, *Lease) error) error {
	defer l.releaseQuietly(ctx)
	bound, cancel := l.Bind(ctx)
	defer cancel()
	return lead(bound, l)
}
