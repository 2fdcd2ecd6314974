package lease_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func newLeader(t *testing.T, c *client.Client, opts ...lease.Option) *lease.Leader {
	t.Helper()
	d, err := lease.NewLeader(c, "lead", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// One leads; when it is done the next one does, under a higher token.
func TestOneLeaderAtATime(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	var leading atomic.Int64
	var mu sync.Mutex
	var led []*lease.Lease
	var all sync.WaitGroup
	for range 3 {
		d := newLeader(t, dial(t, address), lease.WithTTL(forever))
		all.Go(func() {
			err := d.Run(within(t), func(_ context.Context, l *lease.Lease) error {
				if leading.Add(1) > 1 {
					t.Error("two lead")
				}
				mu.Lock()
				led = append(led, l)
				mu.Unlock()
				leading.Add(-1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := 1; i < len(led); i++ {
		if led[i].Token().Compare(led[i-1].Token()) <= 0 {
			t.Errorf("token %d is %v after %v", i, led[i].Token(), led[i-1].Token())
		}
	}
	if len(led) != 3 {
		t.Errorf("%d have led, want 3", len(led))
	}
}

// A leader that is cut off stops before the next one starts, and leads again
// when it can.
func TestLeaderCutOff(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	a, n := through(t, address)
	b := dial(t, address)
	const ttl, margin = 4 * time.Second, 2 * time.Second // in which a busy machine lets the first one stop
	ctx, cancel := context.WithCancel(within(t))
	started, stopped := make(chan struct{}, 2), make(chan error, 2)
	ended := make(chan error, 1)
	go func() {
		ended <- newLeader(t, a, lease.WithTTL(ttl), lease.WithMargin(margin)).Run(ctx, func(ctx context.Context, _ *lease.Lease) error {
			started <- struct{}{}
			<-ctx.Done()
			stopped <- context.Cause(ctx)
			return ctx.Err()
		})
	}()
	receive(t, started)
	n.refuse()

	err := newLeader(t, b, lease.WithTTL(ttl)).Run(within(t), func(context.Context, *lease.Lease) error {
		select {
		case err := <-stopped:
			if !errors.Is(err, lease.ErrLost) {
				t.Errorf("the first was stopped by %v, want ErrLost", err)
			}
		default:
			t.Error("the second leads before the first has stopped")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	n.heal()
	receive(t, started) // once more
	cancel()
	if err := receive(t, stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped by %v, want Canceled", err)
	}
	if err := receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v, want Canceled", err)
	}
	mustBeHeldBy(t, b, "lead", "")
}

func TestLeaderReturns(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	d := newLeader(t, c)
	failure := errors.New("no more")
	if err := d.Run(within(t), func(context.Context, *lease.Lease) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("%v, want what the function returned", err)
	}
	mustBeHeldBy(t, c, "lead", "")

	held := acquire(t, c, "lead")
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	err := d.Run(ctx, func(context.Context, *lease.Lease) error { t.Error("it leads"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while it waits: %v, want Canceled", err)
	}
	release(t, held)
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("it never came")
		panic("unreachable")
	}
}
