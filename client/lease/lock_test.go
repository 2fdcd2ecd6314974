package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// waiting returns when a client's Lock has asked in vain and watches the key: it
// has been refused, and nothing more goes out.
func waiting(t *testing.T, n *network) {
	t.Helper()
	last := int64(-1)
	for deadline := time.Now().Add(patience); ; {
		if time.Now().After(deadline) {
			t.Fatal("it never comes to rest")
		}
		time.Sleep(50 * time.Millisecond) // rest is not announced
		now := n.asked.Load()
		if now == last {
			return
		}
		last = now
	}
}

func TestLockIsWokenByTheRelease(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	a := dial(t, address)
	b, n := through(t, address)
	// Both last forever, so that neither an expiry nor a poll can be what wakes.
	first := acquire(t, a, "l", lease.WithTTL(forever))
	l := startLocking(within(t), newLock(t, b, "l", lease.WithTTL(forever)))
	waiting(t, n)
	mustBeHeldBy(t, a, "l", first.Holder())
	release(t, first)
	second := l.wait(t)
	if second.Token().Compare(first.Token()) <= 0 {
		t.Errorf("the second token is %v, the first was %v", second.Token(), first.Token())
	}
}

func TestLockIsWokenByTheExpiry(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	a, n := through(t, address)
	first := acquire(t, a, "l", lease.WithTTL(500*time.Millisecond))
	n.refuse() // A has died
	second := startLocking(within(t), newLock(t, dial(t, address), "l", lease.WithTTL(forever))).wait(t)
	if first.Err() == nil {
		t.Error("both hold the lock")
	}
	release(t, second)
}

// Two Locks of one process, and one Lock twice, exclude each other.
func TestLocksOfOneProcess(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	one, two := newLock(t, c, "l"), newLock(t, c, "l")
	held, err := one.TryLock(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]*lease.Lock{"the other": two, "the same": one} {
		if _, err := k.TryLock(within(t)); !errors.Is(err, lease.ErrTaken) {
			t.Errorf("%s: %v, want ErrTaken", name, err)
		}
	}
	release(t, held)
}

// Many at once, over connections that break: one plain read, add one, write by
// each, and none is lost.
func TestLockContention(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	const clients, waiters, rounds = 3, 4, 5
	var all sync.WaitGroup
	for range clients {
		c, n := through(t, address)
		k := newLock(t, c, "l")
		for i := range waiters {
			all.Go(func() {
				for round := range rounds {
					if err := countUnder(within(t), k, c); err != nil {
						t.Error(err)
						return
					}
					if i == 0 && round == rounds/2 {
						n.cut()
					}
				}
			})
		}
	}
	all.Wait()
	c := dial(t, address)
	if got := value(t, c, "n"); got != fmt.Sprint(clients*waiters*rounds) {
		t.Errorf("counted %s, want %d", got, clients*waiters*rounds)
	}
	mustBeHeldBy(t, c, "l", "")
}

func countUnder(ctx context.Context, k *lease.Lock, c *client.Client) error {
	held, err := k.Lock(ctx)
	if err != nil {
		return err
	}
	v, found, err := c.Get(ctx, "n")
	if err != nil {
		return err
	}
	next, _, err := addOne(ctx, v.Bytes, found)
	if err != nil {
		return err
	}
	// Repeating this Set is harmless: no other client writes meanwhile.
	if _, err := c.Set(ctx, "n", next, held.Fencing(), client.RetryWrites()); err != nil {
		return err
	}
	return held.Release(ctx)
}

func TestLockGivenUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		giveUp func(cancel func(), c *client.Client)
		want   error
	}{
		"context cancelled": {func(cancel func(), _ *client.Client) { cancel() }, context.Canceled},
		"client closed":     {func(_ func(), c *client.Client) { _ = c.Close() }, client.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testserver.Start(t).Addr
			a := dial(t, address)
			b, n := through(t, address)
			first := acquire(t, a, "l", lease.WithTTL(forever))
			ctx, cancel := context.WithCancel(within(t))
			l := startLocking(ctx, newLock(t, b, "l"))
			waiting(t, n)
			test.giveUp(cancel, b)
			l.mustFail(t, test.want)
			// It doesn't come into its possession afterwards either.
			release(t, first)
			mustBeHeldBy(t, a, "l", "")
		})
	}
}

// What happens while a waiter's connection is down wakes it when it is up again.
func TestConnectionLostWhileWaiting(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	a := dial(t, address)
	b, n := through(t, address, client.WithTimeout(50*time.Millisecond))
	first := acquire(t, a, "l", lease.WithTTL(forever))
	l := startLocking(within(t), newLock(t, b, "l", lease.WithTTL(forever)))
	waiting(t, n)
	n.refuse()
	release(t, first)
	n.heal()
	l.wait(t)
}

// Lock waits for a server that can't be reached, longer than one request would.
func TestLockWaitsForTheConnection(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address, client.WithTimeout(20*time.Millisecond))
	n.refuse()
	for { // the client has noticed, and gives up single requests
		if _, _, err := c.Get(context.Background(), "l"); errors.Is(err, client.ErrNotConnected) {
			break
		}
	}
	l := startLocking(context.WithoutCancel(within(t)), newLock(t, c, "l"))
	select {
	case err := <-l.err:
		t.Fatal(err)
	case <-time.After(100 * time.Millisecond): // several of those requests
	}
	n.heal()
	release(t, l.wait(t))
}

// An answer that will not change is not waited for.
func TestLockRefused(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	if _, err := newLock(t, c, "").Lock(within(t)); !errors.Is(err, client.ErrEmptyKey) {
		t.Errorf("%v, want ErrEmptyKey", err)
	}
}
