package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// stalled gives a former holder of the lock "l" who doesn't know that it is one:
// its lease is over, and its token is all that it has.
func stalled(t *testing.T, c *client.Client) (token hlc.Timestamp) {
	t.Helper()
	l := acquire(t, c, "l")
	release(t, l)
	return l.Token()
}

// Why Edit seals: a guarded write alone does not protect what was read. The
// former holder's write is accepted, acknowledged, and undone.
func TestLostUpdateWithoutSeal(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	mustSet(t, c, "account", "100")
	old := stalled(t, c)

	held := acquire(t, c, "l")
	balance := value(t, c, "account")
	mustSet(t, c, "account", "150", client.Fencing(old)) // pays in 50, in all good faith
	mustSet(t, c, "account", balance+"0", held.Fencing())

	if got := value(t, c, "account"); got != "1000" {
		t.Errorf("the account says %s; has the protocol changed?", got)
	}
}

// The same with Edit: the former holder's write is refused, so that it knows.
func TestEditSealsBeforeItReads(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	mustSet(t, c, "account", "100")
	old := stalled(t, c)

	err := newLock(t, c, "l").Edit(within(t), "account", func(ctx context.Context, balance []byte, _ bool) ([]byte, bool, error) {
		_, err := c.Set(ctx, "account", []byte("150"), client.Fencing(old))
		if !errors.Is(err, client.ErrTokenTooLow) {
			t.Errorf("the former holder's write: %v, want ErrTokenTooLow", err)
		}
		return append(balance, '0'), true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := value(t, c, "account"); got != "1000" {
		t.Errorf("the account says %s", got)
	}
	mustBeHeldBy(t, c, "l", "")
}

// What comes before the seal is seen: here a write between Edit's reading and its
// sealing, which is where a former holder can still get in.
func TestEditSeesWhatCameBeforeTheSeal(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, other := dial(t, address), dial(t, address)
	mustSet(t, other, "n", "0")
	old := stalled(t, other)
	stop := make(chan struct{})
	var writes int
	var writer sync.WaitGroup
	writer.Go(func() { // a former holder that counts as fast as it can, until it is refused
		for {
			select {
			case <-stop:
				return
			default:
			}
			v, _, err := other.Get(within(t), "n")
			if err != nil {
				t.Error(err)
				return
			}
			next, _, _ := addOne(within(t), v.Bytes, true)
			switch _, err := other.Set(within(t), "n", next, client.IfVersion(v.Version), client.Fencing(old)); {
			case errors.Is(err, client.ErrTokenTooLow):
				return
			case errors.Is(err, client.ErrNotApplied):
			case err != nil:
				t.Error(err)
				return
			default:
				writes++
			}
		}
	})
	err := newLock(t, c, "l").Edit(within(t), "n", addOne)
	close(stop)
	writer.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if got := value(t, c, "n"); got != fmt.Sprint(writes+1) {
		t.Errorf("counted %s, want %d of the former holder and one", got, writes)
	}
}

// A key that doesn't exist can't be sealed: the edit begins again if a former
// holder creates it.
func TestEditOfAMissingKey(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	old := stalled(t, c)
	var seen []string
	err := newLock(t, c, "l").Edit(within(t), "account", func(ctx context.Context, balance []byte, found bool) ([]byte, bool, error) {
		seen = append(seen, fmt.Sprintf("%q %v", balance, found))
		if !found {
			mustSet(t, c, "account", "50", client.Fencing(old))
		}
		return append([]byte("1"), balance...), true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := value(t, c, "account"); got != "150" || len(seen) != 2 {
		t.Errorf("the account says %s; edit saw %v", got, seen)
	}
}

func TestEditThatWritesNothing(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	k := newLock(t, c, "l")
	mustSet(t, c, "k", "v")
	remove := func(context.Context, []byte, bool) ([]byte, bool, error) { return nil, false, nil }
	refusal := errors.New("not like this")
	refuse := func(context.Context, []byte, bool) ([]byte, bool, error) { return []byte("w"), true, refusal }

	if err := k.Edit(within(t), "k", refuse); !errors.Is(err, refusal) || value(t, c, "k") != "v" {
		t.Errorf("an edit that fails: %v, the key holds %q", err, value(t, c, "k"))
	}
	if err := k.Edit(within(t), "k", remove); err != nil {
		t.Errorf("an edit that deletes: %v", err)
	}
	if _, found, err := c.Get(within(t), "k"); found || err != nil {
		t.Errorf("found %v, %v; want it deleted", found, err)
	}
	if err := k.Edit(within(t), "k", remove); err != nil {
		t.Errorf("an edit that deletes nothing: %v", err)
	}
	mustBeHeldBy(t, c, "l", "")
}

// A lock that is lost during the edit: nothing is written, and Edit says so.
func TestEditLosesItsLock(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, other := dial(t, address), dial(t, address)
	mustSet(t, c, "k", "v")
	err := newLock(t, c, "l", lease.WithTTL(forever)).Edit(within(t), "k", func(ctx context.Context, _ []byte, _ bool) ([]byte, bool, error) {
		if _, err := other.Del(within(t), "l"); err != nil {
			t.Error(err)
		}
		if err := newLock(t, other, "l").Edit(within(t), "k", func(context.Context, []byte, bool) ([]byte, bool, error) {
			return []byte("the next holder's"), true, nil
		}); err != nil {
			t.Error(err)
		}
		<-ctx.Done() // the lock is lost: stop
		return []byte("too late"), true, nil
	})
	if !errors.Is(err, lease.ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	if got := value(t, c, "k"); got != "the next holder's" {
		t.Errorf("the key holds %q", got)
	}
}

// A former holder that doesn't look at its context is refused by the store.
func TestEditTooLate(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, other := dial(t, address), dial(t, address)
	mustSet(t, c, "k", "v")
	err := newLock(t, c, "l", lease.WithTTL(forever)).Edit(within(t), "k", func(context.Context, []byte, bool) ([]byte, bool, error) {
		if _, err := other.Del(within(t), "l"); err != nil {
			t.Error(err)
		}
		held := acquire(t, other, "l")
		mustSet(t, other, "k", "the next holder's", held.Fencing())
		return []byte("too late"), true, nil
	})
	if err == nil || value(t, c, "k") != "the next holder's" {
		t.Errorf("%v, and the key holds %q", err, value(t, c, "k"))
	}
}

// Edits of many, over connections that break in the middle of everything: each
// counts once.
func TestEditUnderFire(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	mustSet(t, dial(t, address), "n", "0")
	const clients, rounds = 4, 25
	var all sync.WaitGroup
	for range clients {
		c, n := through(t, address)
		k := newLock(t, c, "l")
		n.cutEvery.Store(2000) // a handful of requests
		all.Go(func() {
			for range rounds {
				if err := k.Edit(within(t), "n", addOne); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := value(t, dial(t, address), "n"); got != fmt.Sprint(clients*rounds) {
		t.Errorf("counted %s, want %d", got, clients*rounds)
	}
}
