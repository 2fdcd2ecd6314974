package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestOneHolderAtATime(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	a, b := dial(t, address), dial(t, address)
	mustBeHeldBy(t, a, "l", "")

	// When A acquires it, its token is the key's version, and B gets nothing.
	first := acquire(t, a, "l")
	mustBeHeldBy(t, b, "l", first.Holder())
	if v, _, err := b.Get(within(t), "l"); err != nil || v.Version != first.Token() {
		t.Errorf("the key has version %v, %v; the token is %v", v.Version, err, first.Token())
	}
	if _, err := lease.Acquire(within(t), b, "l"); !errors.Is(err, lease.ErrTaken) {
		t.Errorf("B acquires what A holds: %v, want ErrTaken", err)
	}
	// The same client excludes itself.
	if _, err := lease.Acquire(within(t), a, "l"); !errors.Is(err, lease.ErrTaken) {
		t.Errorf("A acquires again what it holds: %v, want ErrTaken", err)
	}
	if left := first.Remaining(); left <= 0 || left > lease.DefaultTTL*9/10 {
		t.Errorf("%v remain", left)
	}

	// When A releases it, B gets it, under a higher token.
	release(t, first)
	mustEnd(t, first, lease.ErrReleased)
	if first.Remaining() != 0 {
		t.Error("time remains of a released lease")
	}
	second := acquire(t, b, "l")
	if second.Token().Compare(first.Token()) <= 0 {
		t.Errorf("the second token is %v, the first was %v", second.Token(), first.Token())
	}
	release(t, first) // again: harmless
	mustBeHeldBy(t, a, "l", second.Holder())
}

func TestRenewalsKeepALease(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	const ttl = 3 * time.Second // a busy machine can hold the test up for a second
	w := watch(t, c, "l")
	began := time.Now()
	l := acquire(t, c, "l", lease.WithTTL(ttl))
	last := hlc.Timestamp{}
	for time.Since(began) < ttl+ttl/2 {
		select {
		case e := <-w.Chan():
			if e.Kind != client.KeySet || e.Version.Compare(last) <= 0 {
				t.Fatalf("event %+v after version %v, want a renewal", e, last)
			}
			last = e.Version
		case <-time.After(patience):
			t.Fatal("it isn't renewed")
		}
	}
	if l.Err() != nil {
		t.Errorf("lost: %v", l.Err())
	}
	// The token is that of the acquisition, through all renewals.
	if l.Token().Compare(last) >= 0 {
		t.Errorf("token %v, the last renewal's version is %v", l.Token(), last)
	}
}

// Whatever fails, the context ends before the store can give the lease away.
func TestContextEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*network){
		"no request arrives": (*network).holdRequests,
		"connection broken":  (*network).refuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testserver.Start(t).Addr
			c, n := through(t, address)
			other := dial(t, address)
			l := acquire(t, c, "l", lease.WithTTL(3*time.Second), lease.WithMargin(1500*time.Millisecond))
			ended := make(chan time.Time, 1)
			context.AfterFunc(l.Context(), func() { ended <- time.Now() })
			w := watch(t, other, "l")

			fail(n)

			await(t, w, client.KeyDeleted)
			given := time.Now()
			select {
			case at := <-ended:
				if !at.Before(given) {
					t.Errorf("the context ended %v after the lease", at.Sub(given))
				}
			default:
				t.Error("the lease is over and its context is not")
			}
			mustEnd(t, l, lease.ErrLost)
			if err := l.Release(within(t)); !errors.Is(err, lease.ErrLost) {
				t.Errorf("release: %v, want ErrLost", err)
			}
		})
	}
}

// A holder who hears nothing can't know that its renewals arrive.
func TestContextEndsWithoutAnswers(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address)
	l := acquire(t, c, "l", lease.WithTTL(400*time.Millisecond))
	n.holdAnswers()
	mustEnd(t, l, lease.ErrLost)
}

func TestLeaseSurvivesABrokenConnection(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address)
	w := watch(t, dial(t, address), "l")
	l := acquire(t, c, "l", lease.WithTTL(3*time.Second))
	for range 3 {
		n.cut()
		await(t, w, client.KeySet)
	}
	if l.Err() != nil {
		t.Errorf("lost: %v", l.Err())
	}
	release(t, l)
}

// A renewal that was carried out, and whose answer was lost, is found to be our
// own.
func TestRenewalWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address)
	w := watch(t, dial(t, address), "l")
	l := acquire(t, c, "l", lease.WithTTL(3*time.Second))
	if e := await(t, w, client.KeySet); e.Version != l.Token() {
		t.Fatalf("the first event is %+v, want the acquisition", e)
	}

	n.holdAnswers()
	await(t, w, client.KeySet)
	n.cut()
	n.heal()

	await(t, w, client.KeySet)
	if l.Err() != nil {
		t.Errorf("lost: %v", l.Err())
	}
	release(t, l)
	mustBeHeldBy(t, c, "l", "")
}

func TestLeaseSurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	s := testserver.Start(t, func(c *server.Config) { c.Listen = []string{testserver.FreeAddress()} })
	c := dial(t, s.Addr)
	l := acquire(t, c, "l", lease.WithTTL(6*time.Second))
	s.Restart()
	w := watch(t, dial(t, s.Addr), "l")
	await(t, w, client.KeySet)
	if l.Err() != nil {
		t.Errorf("lost: %v", l.Err())
	}
	if _, err := lease.Acquire(within(t), c, "l"); !errors.Is(err, lease.ErrTaken) {
		t.Errorf("acquiring it again: %v, want ErrTaken", err)
	}
}

// Acquire asks again when the connection breaks, and gets what it has.
func TestAcquireWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address)
	w := watch(t, dial(t, address), "l")
	n.holdAnswers()
	l := start(func() (*lease.Lease, error) { return lease.Acquire(within(t), c, "l") })
	first := await(t, w, client.KeySet)
	n.cut()
	n.heal()
	if held := l.wait(t); held.Token().Compare(first.Version) < 0 || held.Holder() != string(first.Value) {
		t.Errorf("held by %q with token %v; the first request was carried out as %+v", held.Holder(), held.Token(), first)
	}
}

// An Acquire that is given up while its request is under way leaves no lock behind.
func TestAcquireGivenUp(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address)
	w := watch(t, dial(t, address), "l")
	n.holdAnswers()
	ctx, cancel := context.WithCancel(within(t))
	l := startLocking(ctx, newLock(t, c, "l", lease.WithTTL(forever)))
	await(t, w, client.KeySet)
	cancel()
	await(t, w, client.KeyDeleted)
	l.mustFail(t, context.Canceled)
}

// A lease can be broken by deleting its key: the holder is told.
func TestBrokenLease(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(*testing.T, *client.Client){
		"deleted": func(t *testing.T, c *client.Client) {
			if d, err := c.Del(within(t), "l"); err != nil || !d.Deleted {
				t.Fatalf("%+v, %v", d, err)
			}
		},
		"set":                   func(t *testing.T, c *client.Client) { mustSet(t, c, "l", "another holder") },
		"deleted and had again": func(t *testing.T, c *client.Client) { _, _ = c.Del(within(t), "l"); acquire(t, c, "l") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testserver.Start(t).Addr
			c, other := dial(t, address), dial(t, address)
			l := acquire(t, c, "l", lease.WithTTL(forever))
			breakIt(t, other)
			holder := value(t, other, "l")
			mustEnd(t, l, lease.ErrLost)
			if err := l.Release(within(t)); !errors.Is(err, lease.ErrLost) {
				t.Errorf("release: %v, want ErrLost", err)
			}
			mustBeHeldBy(t, other, "l", holder)
		})
	}
}

// Release deletes its own value only, and says when that was gone.
func TestReleaseOfALeaseOfAnotherHolder(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	l := acquire(t, c, "l", lease.WithTTL(forever))
	mustSet(t, c, "l", "another holder")
	if err := l.Release(within(t)); !errors.Is(err, lease.ErrLost) {
		t.Errorf("release: %v, want ErrLost", err)
	}
	mustBeHeldBy(t, c, "l", "another holder")
}

func TestReleaseWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address)
	w := watch(t, dial(t, address), "l")
	l := acquire(t, c, "l", lease.WithTTL(forever))
	n.holdAnswers()
	released := make(chan error, 1)
	go func() { released <- l.Release(within(t)) }()
	await(t, w, client.KeyDeleted)
	n.cut()
	n.heal()
	if err := <-released; err != nil {
		t.Errorf("release: %v", err)
	}
}

func TestReleaseCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c, n := through(t, address)
	l := acquire(t, c, "l", lease.WithTTL(forever))
	n.refuse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx); err == nil {
		t.Fatal("released without a connection")
	}
	n.heal()
	release(t, l)
	mustBeHeldBy(t, c, "l", "")
}

// The same holder, as after a restart, takes its lease over; the one from before
// is lost and releases nothing.
func TestSameHolderTakesOver(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	before, after := dial(t, address), dial(t, address)
	first := acquire(t, before, "l", lease.WithHolder("me"), lease.WithTTL(forever))
	second := acquire(t, after, "l", lease.WithHolder("me"), lease.WithTTL(forever))
	mustEnd(t, first, lease.ErrLost)
	if err := first.Release(within(t)); !errors.Is(err, lease.ErrLost) {
		t.Errorf("release: %v, want ErrLost", err)
	}
	mustBeHeldBy(t, before, "l", "me")
	if second.Err() != nil || second.Token().Compare(first.Token()) <= 0 {
		t.Errorf("the second: %v, token %v; the first token was %v", second.Err(), second.Token(), first.Token())
	}
	release(t, second)
	mustBeHeldBy(t, before, "l", "")
}

// Wall clocks don't matter: the client corrects the timestamps of one that is too far ahead.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	clock := func(skew time.Duration) client.Option {
		return client.WithClock(hlc.NewClock("skewed", hlc.WithMaxSkew(2*forever), hlc.WithWall(func() uint64 {
			return uint64(time.Now().Add(skew).UnixMilli())
		})))
	}
	w := watch(t, dial(t, address), "l")
	l := acquire(t, dial(t, address, clock(-forever)), "l", lease.WithTTL(2*time.Second))
	for range 4 {
		await(t, w, client.KeySet)
	}
	if l.Err() != nil {
		t.Errorf("a clock behind: %v", l.Err())
	}
	release(t, l)
	ahead, err := newLock(t, dial(t, address, clock(forever)), "l").Lock(within(t))
	if err != nil {
		t.Fatalf("a clock ahead: %v", err)
	}
	release(t, ahead)
}

func TestClientClosedWhileHolding(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	l := acquire(t, c, "l", lease.WithTTL(500*time.Millisecond))
	_ = c.Close()
	mustEnd(t, l, lease.ErrLost)
}

func TestBind(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	parent, cancelParent := context.WithCancel(context.Background())
	l := acquire(t, c, "l")
	ended := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(patience):
			t.Fatal("it goes on")
			return nil
		}
	}
	one, cancelOne := l.Bind(parent)
	cancelOne()
	if err := ended(one); !errors.Is(err, context.Canceled) || l.Err() != nil {
		t.Errorf("its own end: %v, the lease %v", err, l.Err())
	}
	two, cancelTwo := l.Bind(parent)
	defer cancelTwo()
	cancelParent()
	if err := ended(two); !errors.Is(err, context.Canceled) || l.Err() != nil {
		t.Errorf("the parent's end: %v, the lease %v", err, l.Err())
	}
	three, cancelThree := l.Bind(context.Background())
	defer cancelThree()
	release(t, l)
	if err := ended(three); !errors.Is(err, lease.ErrReleased) {
		t.Errorf("the lease's end: %v, want ErrReleased", err)
	}
}

func TestImpossibleOptions(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	for want, opts := range map[string][]lease.Option{
		"WithTTL(0s): it must be at least 10ms":                                {lease.WithTTL(0)},
		"WithTTL(30ns): it must be at least 10ms":                              {lease.WithTTL(30)},
		"WithMargin(-1s): it must be from 0 to half of the TTL, which is 30s":  {lease.WithMargin(-time.Second)},
		"WithMargin(-1ns): it must be from 0 to half of the TTL, which is 30s": {lease.WithMargin(-1)},
		"WithMargin(501ms): it must be from 0 to half of the TTL, which is 1s": {lease.WithTTL(time.Second), lease.WithMargin(501 * time.Millisecond)},
	} {
		if _, err := lease.Acquire(within(t), c, "l", opts...); !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := lease.Acquire(within(t), c, ""); !errors.Is(err, client.ErrEmptyKey) {
		t.Errorf("no name: %v, want ErrEmptyKey", err)
	}
}

func TestObserve(t *testing.T) {
	t.Parallel()
	address := testserver.Start(t).Addr
	c := dial(t, address)
	changes := make(chan lease.Change, 100)
	ctx, cancel := context.WithCancel(within(t))
	end := make(chan error, 1)
	go func() {
		for change, err := range lease.Observe(ctx, dial(t, address), "l") {
			if err != nil {
				end <- err
				return
			}
			changes <- change
		}
	}()
	want := func(change lease.Change) {
		t.Helper()
		select {
		case got := <-changes:
			if got != change {
				t.Errorf("observed %+v, want %+v", got, change)
			}
		case <-time.After(patience):
			t.Fatalf("never observed %+v", change)
		}
	}
	want(lease.Change{})
	w := watch(t, c, "l")
	l := acquire(t, c, "l", lease.WithTTL(2*time.Second))
	want(lease.Change{Held: true, Holder: l.Holder()})
	for range 3 { // renewals, which are no change
		await(t, w, client.KeySet)
	}
	release(t, l)
	want(lease.Change{})
	mustSet(t, c, "l", "dying", client.Expiry(20*time.Millisecond))
	want(lease.Change{Held: true, Holder: "dying"})
	want(lease.Change{})
	cancel()
	if err := <-end; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v, want Canceled", err)
	}
}
