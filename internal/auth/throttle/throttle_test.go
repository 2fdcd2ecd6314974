package throttle

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// clock is a clock that stands still unless it is moved.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func newFailures(entries int) (*Failures, *clock) {
	c := &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	return NewFailures(Options{Burst: 3, Interval: time.Second, Entries: entries, Now: c.Now}), c
}

func prefix(s string) netip.Prefix {
	return Network(&net.TCPAddr{IP: net.ParseIP(s), Port: 1234})
}

// fail lets logins fail until they are no longer allowed, and says how many that were.
func fail(f *Failures, addr netip.Prefix, user string) (n int) {
	for ; f.Allowed(addr, user); n++ {
		f.Failed(addr, user)
	}
	return n
}

func TestFailuresOfOneUser(t *testing.T) {
	t.Parallel()
	f, c := newFailures(100)
	here, there := prefix("192.0.2.1"), prefix("192.0.2.2")
	if n := fail(f, here, "alice"); n != 3 {
		t.Errorf("%d failures in a row, want 3", n)
	}
	if !f.Allowed(here, "bob") || !f.Allowed(there, "alice") {
		t.Error("another user, or another address, is held up too")
	}
	c.now = c.now.Add(999 * time.Millisecond)
	if f.Allowed(here, "alice") {
		t.Error("allowed before its time")
	}
	c.now = c.now.Add(time.Millisecond)
	if n := fail(f, here, "alice"); n != 1 {
		t.Errorf("%d failures after a second, want 1", n)
	}
	c.now = c.now.Add(time.Hour)
	if n := fail(f, here, "alice"); n != 3 {
		t.Errorf("%d failures after an hour, want 3", n)
	}
}

func TestFailuresOfOneAddress(t *testing.T) {
	t.Parallel()
	f, c := newFailures(100)
	here := prefix("192.0.2.1")
	users := 0
	for ; f.Allowed(here, fmt.Sprint("user", users)); users++ {
		f.Failed(here, fmt.Sprint("user", users))
	}
	if users != 30 {
		t.Errorf("%d user names failed in a row, want 30", users)
	}
	c.now = c.now.Add(100 * time.Millisecond)
	if n := fail(f, here, "fresh"); n != 1 {
		t.Errorf("%d more after 100 ms, want 1", n)
	}
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		if got := prefix(c.a) == prefix(c.b); got != c.same {
			t.Errorf("%s and %s count as one: %v, want %v", c.a, c.b, got, c.same)
		}
	}
	if Network(nil).IsValid() || Network(&net.UnixAddr{Name: "x"}).IsValid() {
		t.Error("what has no address has a network")
	}
}

// The table has its bound and no entry more, and what has run out goes first.
func TestFailuresAreBounded(t *testing.T) {
	t.Parallel()
	f, c := newFailures(100)
	for i := range 50 { // two entries each
		f.Failed(prefix(fmt.Sprintf("192.0.2.%d", i)), "x")
	}
	if f.Len() != 100 {
		t.Fatalf("%d entries, want 100", f.Len())
	}
	f.Failed(prefix("198.51.100.1"), "x")
	if f.Len() > 100 {
		t.Errorf("%d entries, want at most 100", f.Len())
	}
	for i := range 1000 {
		f.Failed(prefix(fmt.Sprintf("2001:db8:%x::1", i)), "x")
		if f.Len() > 100 {
			t.Fatalf("%d entries, want at most 100", f.Len())
		}
	}
	c.now = c.now.Add(time.Hour)
	here := prefix("203.0.113.1")
	fail(f, here, "x")
	for i := range 20 {
		f.Failed(prefix(fmt.Sprintf("198.51.100.%d", i)), "x")
	}
	if f.Allowed(here, "x") {
		t.Error("an entry that counts went before those that have run out")
	}
}

func TestChecksRunAtMostSoMany(t *testing.T) {
	t.Parallel()
	c := NewChecks(2, 1000, time.Minute)
	var mu sync.Mutex
	var running, most int
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if err := c.Begin(prefix(fmt.Sprintf("192.0.2.%d", i%7)), nil); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			mu.Lock()
			running--
			mu.Unlock()
			c.End()
		})
	}
	all.Wait()
	if most > 2 || c.free != 2 || c.Waiting() != 0 || len(c.queues) != 0 || len(c.turns) != 0 {
		t.Errorf("%d ran at once; left: %+v", most, c)
	}
}

// An address with many logins lets one of another address pass after one of its own.
func TestChecksTakeTurnsByAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewChecks(1, 80, time.Minute)
		if err := c.Begin(prefix("192.0.2.1"), nil); err != nil {
			t.Fatal(err)
		}
		var order []string
		var all sync.WaitGroup
		enter := func(addr string) {
			all.Go(func() {
				if err := c.Begin(prefix(addr), nil); err != nil {
					t.Error(err)
				}
				order = append(order, addr) // only one is inside
				c.End()
			})
			synctest.Wait()
		}
		for range 5 {
			enter("192.0.2.1")
		}
		enter("192.0.2.2")
		c.End()
		all.Wait()
		if order[1] != "192.0.2.2" {
			t.Errorf("the turns were %v, want the other address second", order)
		}
	})
}

func TestChecksGiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewChecks(1, 16, time.Second)
		a, b := prefix("192.0.2.1"), prefix("192.0.2.2")
		if err := c.Begin(a, nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := c.Begin(a, nil); !errors.Is(err, ErrBusy) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want ErrBusy after a second", err, time.Since(began))
		}
		stop := make(chan struct{})
		close(stop)
		if err := c.Begin(a, stop); !errors.Is(err, ErrBusy) {
			t.Errorf("stopped: got %v, want ErrBusy", err)
		}
		// Two of one address wait, and not a third; another address has its own two.
		var all sync.WaitGroup
		for _, addr := range []netip.Prefix{a, a, b, b} {
			all.Go(func() { _ = c.Begin(addr, nil) })
		}
		synctest.Wait()
		began = time.Now()
		if err := c.Begin(a, nil); !errors.Is(err, ErrBusy) || time.Since(began) != 0 {
			t.Errorf("a third one: got %v after %v, want ErrBusy at once", err, time.Since(began))
		}
		all.Wait()
		if c.Waiting() != 0 || len(c.turns) != 0 {
			t.Errorf("left: %+v", c)
		}
		c.End()
		if c.free != 1 {
			t.Error("the place is lost")
		}
	})
}

// All together are bounded as well.
func TestChecksBoundAllThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewChecks(1, 4, time.Second)
		_ = c.Begin(prefix("192.0.2.1"), nil)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { _ = c.Begin(prefix(fmt.Sprintf("192.0.2.%d", i)), nil) })
		}
		synctest.Wait()
		if err := c.Begin(prefix("192.0.2.9"), nil); !errors.Is(err, ErrBusy) || c.Waiting() != 4 {
			t.Errorf("got %v with %d waiting, want ErrBusy with 4", err, c.Waiting())
		}
		all.Wait()
	})
}
