package interop

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/leasedlock"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	storeerrors "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

type (
	lock  = leasedlock.Lock[string, string]
	lease = leasedlock.Lease[string, string]
)

func newLock(c *sdkClient, name string, opt ...leasedlock.Option) lock {
	return leasedlock.NewLock(c.store, name, opt...)
}

// acquire is Acquire that must be answered.
func acquire(t *testing.T, l *lease, d time.Duration, opt ...leasedlock.Option) bool {
	t.Helper()
	ok, err := l.Acquire(deadline(t), d, opt...)
	if err != nil {
		t.Fatalf("acquiring %q: %v", l.Name, err)
	}
	return ok
}

// token is the fencing token of a lease that must be held.
func token(t *testing.T, l *lease) hlc.HybridLogicalClock {
	t.Helper()
	v, err := l.Token(deadline(t))
	if err != nil {
		t.Fatalf("token of %q: %v", l.Name, err)
	}
	return v
}

// mustBeHeldBy asserts which client holds a lease, "" for none.
func mustBeHeldBy(t *testing.T, l *lease, want string) {
	t.Helper()
	holder, held, err := l.Holder(deadline(t))
	if err != nil || holder != want || held != (want != "") {
		t.Errorf("%q is held by %q (%v), %v, want %q", l.Name, holder, held, err, want)
	}
}

func TestSDKLeaseAcquireAndRelease(t *testing.T) {
	t.Parallel()
	a, b := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	name := uniqueKey("lease")
	ofA, ofB := newLock(a, name), newLock(b, name)

	// Given a lease without a holder.
	mustBeHeldBy(t, ofA.Lease, "")
	if _, err := ofA.Token(deadline(t)); !errors.Is(err, leasedlock.ErrNoLease) {
		t.Errorf("token before acquiring: %v, want ErrNoLease", err)
	}

	// When A acquires it, its token is the version of the key and B gets nothing.
	if !acquire(t, ofA.Lease, time.Minute) {
		t.Fatal("A did not get a free lease")
	}
	_, version := b.get(t, name)
	mustEqual(t, "A's token", token(t, ofA.Lease), version)
	mustBeHeldBy(t, ofB.Lease, a.ID())
	if acquire(t, ofB.Lease, time.Minute) {
		t.Fatal("B got a lease that A holds")
	}
	if _, err := ofB.Token(deadline(t)); !errors.Is(err, leasedlock.ErrNoLease) {
		t.Errorf("B's token: %v, want ErrNoLease", err)
	}

	// When A acquires it again, that renews it under a newer token.
	first := token(t, ofA.Lease)
	if !acquire(t, ofA.Lease, time.Minute) {
		t.Fatal("A could not renew")
	}
	mustRise(t, "renewed", first, token(t, ofA.Lease))

	// B releasing what it doesn't hold changes nothing.
	if err := ofB.Release(deadline(t)); err != nil {
		t.Errorf("B releases: %v", err)
	}
	mustBeHeldBy(t, ofA.Lease, a.ID())

	// When A releases it, B gets it, under a newer token.
	last := token(t, ofA.Lease)
	if err := ofA.Release(deadline(t)); err != nil {
		t.Fatalf("A releases: %v", err)
	}
	mustBeHeldBy(t, ofA.Lease, "")
	if !acquire(t, ofB.Lease, time.Minute) {
		t.Fatal("B did not get the released lease")
	}
	mustRise(t, "the next holder", last, token(t, ofB.Lease))
	mustBeHeldBy(t, ofA.Lease, b.ID())
}

// Session IDs tell two holders on one client apart.
func TestSDKLeaseSessionIDs(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	name := uniqueKey("sessions")
	one := newLock(c, name, leasedlock.WithSessionID("one"))
	two := newLock(c, name, leasedlock.WithSessionID("two"))

	if !acquire(t, one.Lease, time.Minute) || acquire(t, two.Lease, time.Minute) {
		t.Error("want the first session to hold the lease and the second not to")
	}
	mustBeHeldBy(t, two.Lease, c.ID()+":one")
}

// A lease that is renewed outlives its duration many times; once another client
// holds the key, renewing fails and the holder knows.
//
// Release isn't called while a renewal runs: in the SDK's release under test that
// leaves a goroutine spinning.
func TestSDKLeaseRenews(t *testing.T) {
	t.Parallel()
	a, b := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	name := uniqueKey("renewed")
	ofA, ofB := newLock(a, name), newLock(b, name)
	duration, interval := withFailover(t, 3*time.Second), 100*time.Millisecond // a busy machine can delay a renewal by a second

	if !acquire(t, ofA.Lease, duration, leasedlock.WithRenew(interval)) {
		t.Fatal("A did not get a free lease")
	}
	if _, err := ofA.Acquire(deadline(t), duration, leasedlock.WithRenew(interval)); !errors.Is(err, leasedlock.ErrRenewing) {
		t.Errorf("renewing twice: %v, want ErrRenewing", err)
	}

	// While it is renewed B never gets it, and its tokens only rise.
	last := token(t, ofA.Lease)
	for end := time.Now().Add(2 * duration); time.Now().Before(end); {
		if acquire(t, ofB.Lease, duration) {
			t.Fatal("B got a lease that A renews")
		}
		current := token(t, ofA.Lease)
		if current.Compare(last) < 0 {
			t.Fatalf("A's token fell from %v to %v", last, current)
		}
		last = current
		time.Sleep(interval / 2)
	}

	b.set(t, name, "another client")
	eventually(t, "A notices that it lost the lease", func() bool {
		_, err := ofA.Token(deadline(t))
		return errors.Is(err, leasedlock.ErrNoLease)
	})
	mustBeHeldBy(t, ofA.Lease, "another client")
}

// Lock waits for KEYNOTIFY's DELETE, so the next in line has it as soon as it is
// unlocked.
func TestSDKLockHandedOverOnUnlock(t *testing.T) {
	t.Parallel()
	a, b := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	ctx := deadline(t)
	name := uniqueKey("handed")
	ofA, ofB := newLock(a, name), newLock(b, name)
	witness := connectSDK(t, shared(t)).watch(t, name)

	if err := ofA.Lock(ctx, time.Hour); err != nil {
		t.Fatalf("A locks: %v", err)
	}
	held := token(t, ofA.Lease)
	receive(t, witness, "the notification of A's lock")
	locked := make(chan error, 1)
	go func() { locked <- ofB.Lock(ctx, time.Hour) }()

	// B has tried and waits; trying leaves the key as it is.
	select {
	case err := <-locked:
		t.Fatalf("B's Lock returned (%v) while A holds it", err)
	case <-time.After(200 * time.Millisecond):
	}
	mustBeHeldBy(t, ofB.Lease, a.ID())

	if err := ofA.Unlock(ctx); err != nil {
		t.Fatalf("A unlocks: %v", err)
	}
	if err := receive(t, locked, "B's Lock after A's Unlock"); err != nil {
		t.Fatalf("B locks: %v", err)
	}
	mustBeHeldBy(t, ofA.Lease, b.ID())
	mustRise(t, "the next holder", held, token(t, ofB.Lease))
}

// Without an unlock, the lock passes on when it expires, and fencing keeps the
// former holder, who may not know yet, from writing.
func TestSDKLockHandedOverOnExpiry(t *testing.T) {
	t.Parallel()
	a, b := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	ctx := deadline(t)
	name, protected := uniqueKey("expired"), uniqueKey("protected")
	ofA, ofB := newLock(a, name), newLock(b, name)
	const duration = 500 * time.Millisecond

	start := time.Now()
	if err := ofA.Lock(ctx, duration); err != nil {
		t.Fatalf("A locks: %v", err)
	}
	a.set(t, protected, "by A", statestore.WithFencingToken(token(t, ofA.Lease)))

	if err := ofB.Lock(ctx, time.Minute); err != nil {
		t.Fatalf("B locks: %v", err)
	}
	if waited := time.Since(start); waited < duration {
		t.Errorf("B had the lock after %v, A's lasts %v", waited, duration)
	}
	mustBeHeldBy(t, ofA.Lease, b.ID())
	mustRise(t, "the next holder", token(t, ofA.Lease), token(t, ofB.Lease))

	b.set(t, protected, "by B", statestore.WithFencingToken(token(t, ofB.Lease)))
	_, err := a.Set(ctx, protected, "by A, too late", statestore.WithFencingToken(token(t, ofA.Lease)))
	mustFailWith(t, "the former holder's write", err, storeerrors.FencingTokenLowerVersion)
	if value, _ := a.get(t, protected); value != "by B" {
		t.Errorf("protected key holds %q", value)
	}
}

func TestSDKLockTimesOut(t *testing.T) {
	t.Parallel()
	a, b := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	name := uniqueKey("timeout")
	if err := newLock(a, name).Lock(deadline(t), time.Minute); err != nil {
		t.Fatalf("A locks: %v", err)
	}
	ctx, cancel := context.WithTimeout(deadline(t), 200*time.Millisecond)
	defer cancel()
	if err := newLock(b, name).Lock(ctx, time.Minute); err == nil {
		t.Error("B locked what A holds")
	}
}

// Under contention there is one holder at a time: a plain read, add one, write
// by each of them loses nothing.
func TestSDKLockContention(t *testing.T) {
	t.Parallel()
	const clients, rounds = 4, 5
	name, counter := uniqueKey("contended"), uniqueKey("counter")

	var all sync.WaitGroup
	for range clients {
		c := connectSDK(t, shared(t))
		l := newLock(c, name)
		ctx := deadline(t)
		all.Go(func() {
			for range rounds {
				if err := addOneUnder(ctx, l, c, counter); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()

	c := connectSDK(t, shared(t))
	if value, _ := c.get(t, counter); value != fmt.Sprint(clients*rounds) {
		t.Errorf("counted %s, want %d", value, clients*rounds)
	}
	mustBeHeldBy(t, newLock(c, name).Lease, "")
}

func addOneUnder(ctx context.Context, l lock, c *sdkClient, counter string) error {
	if err := l.Lock(ctx, time.Minute); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	res, err := c.Get(ctx, counter)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	n, _ := strconv.Atoi(res.Value)
	if _, err := c.Set(ctx, counter, strconv.Itoa(n+1)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := l.Unlock(ctx); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// Edit is the SDK's own read-modify-write under a lock, fenced with its token.
func TestSDKLockEdit(t *testing.T) {
	t.Parallel()
	const clients, rounds = 3, 4
	name, counter := uniqueKey("editing"), uniqueKey("edited")
	addOne := func(_ context.Context, value string, present bool) (string, bool, error) {
		if !present {
			return "1", true, nil
		}
		n, err := strconv.Atoi(value)
		return strconv.Itoa(n + 1), true, err
	}

	var all sync.WaitGroup
	for range clients {
		l := newLock(connectSDK(t, shared(t)), name)
		ctx := deadline(t)
		all.Go(func() {
			for range rounds {
				if err := l.Edit(ctx, counter, time.Minute, addOne); err != nil {
					t.Errorf("edit: %v", err)
					return
				}
			}
		})
	}
	all.Wait()

	c := connectSDK(t, shared(t))
	if value, _ := c.get(t, counter); value != fmt.Sprint(clients*rounds) {
		t.Errorf("counted %s, want %d", value, clients*rounds)
	}
	_, err := c.Set(deadline(t), counter, "unfenced")
	mustFailWith(t, "a write beside Edit", err, storeerrors.MissingFencingToken)

	remove := func(context.Context, string, bool) (string, bool, error) { return "", false, nil }
	if err := newLock(c, name).Edit(deadline(t), counter, time.Minute, remove); err != nil {
		t.Errorf("edit that deletes: %v", err)
	}
	if _, version := c.get(t, counter); !version.IsZero() {
		t.Error("the edited key is still there")
	}
}

func TestSDKLeaseObserve(t *testing.T) {
	needsOneConnection(t)
	t.Parallel()
	observer, holder := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	name := uniqueKey("observed")
	observed, held := newLock(observer, name), newLock(holder, name)

	if err := observed.ObserveStart(deadline(t)); err != nil {
		t.Fatalf("ObserveStart: %v", err)
	}
	changes, done := observed.Observe()
	defer done()

	if !acquire(t, held.Lease, time.Minute) {
		t.Fatal("a free lease was not to be had")
	}
	if c := receive(t, changes, "the change of holder"); !c.Held || c.Holder != holder.ID() {
		t.Errorf("observed %+v, want held by %q", c, holder.ID())
	}
	if err := held.Release(deadline(t)); err != nil {
		t.Fatalf("release: %v", err)
	}
	if c := receive(t, changes, "the release"); c.Held {
		t.Errorf("observed %+v, want released", c)
	}
	if !acquire(t, held.Lease, 100*time.Millisecond) {
		t.Fatal("a free lease was not to be had")
	}
	if c := receive(t, changes, "the next change of holder"); !c.Held || c.Holder != holder.ID() {
		t.Errorf("observed %+v, want held by %q", c, holder.ID())
	}
	if c := receive(t, changes, "the expiry"); c.Held {
		t.Errorf("observed %+v, want expired", c)
	}
	if err := observed.ObserveStop(deadline(t)); err != nil {
		t.Errorf("ObserveStop: %v", err)
	}
}
