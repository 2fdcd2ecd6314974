package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func watch(t *testing.T, c *client.Client, k string, opts ...client.WatchOption) *client.Watch {
	t.Helper()
	w, err := c.Watch(context.Background(), k, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func TestWatchTellsEveryChangeInOrder(t *testing.T) {
	t.Parallel()
	c, other := dial(t, testserver.Shared().Addr), dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	w := watch(t, c, k)
	const changes = 30 // fewer than the queue holds
	for i := range changes {
		by := []*client.Client{c, other}[i%2]
		mustSet(t, by, k, fmt.Sprint(i))
	}
	if _, err := other.Del(within(t, patience), k); err != nil {
		t.Fatal(err)
	}
	var last hlc.Timestamp
	for i := range changes {
		e := next(t, w)
		if e.Kind != client.KeySet || string(e.Value) != fmt.Sprint(i) || e.Gap || e.Key != k {
			t.Fatalf("event %d: %+v", i, e)
		}
		if e.Version.Compare(last) <= 0 {
			t.Fatalf("event %d has version %v after %v", i, e.Version, last)
		}
		last = e.Version
	}
	if e := next(t, w); e.Kind != client.KeyDeleted || e.Version.Compare(last) <= 0 || e.Gap {
		t.Errorf("last event: %+v, want a deletion later than %v", e, last)
	}
}

func TestWatchesOfOneKeyShareARegistration(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	first, second := watch(t, c, k), watch(t, c, k)
	mustSet(t, c, k, "1")
	next(t, first)
	next(t, second)

	// One of them ends; the other goes on.
	first.Close()
	mustSet(t, c, k, "2")
	if e := next(t, second); string(e.Value) != "2" {
		t.Errorf("event %+v", e)
	}
	if _, open := <-first.Chan(); open || first.Err() != nil {
		t.Errorf("the closed watch: open %v, error %v", open, first.Err())
	}

	// The last one ends, and the key is watched anew.
	second.Close()
	mustSet(t, c, k, "3")
	third := watch(t, c, k)
	mustSet(t, c, k, "4")
	if e := next(t, third); string(e.Value) != "4" || e.Gap {
		t.Errorf("event %+v, want only what came after the watch", e)
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := c.Watch(ctx, key(t, "k"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case _, open := <-w.Chan():
		if open || !errors.Is(w.Err(), context.Canceled) {
			t.Errorf("open %v, error %v; want ended by Canceled", open, w.Err())
		}
	case <-time.After(patience):
		t.Error("the watch goes on")
	}
}

// A loop over the events can be left and begun again. It ends with the reason, if there
// is one.
func TestWatchEvents(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	ctx, cancel := context.WithCancel(within(t, patience))
	w, err := c.Watch(ctx, k)
	if err != nil {
		t.Fatal(err)
	}
	closed := watch(t, c, k)
	var got string
	for _, value := range []string{"a", "b"} {
		mustSet(t, c, k, value)
		for e, err := range w.Events() {
			if err != nil {
				t.Fatal(err)
			}
			got += string(e.Value)
			break
		}
	}
	if got != "ab" {
		t.Errorf("got %q", got)
	}
	cancel()
	last := errors.New("none")
	for e, err := range w.Events() {
		if last = err; e.Kind != 0 {
			t.Errorf("%+v", e)
		}
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("the loop ended with %v, want Canceled", last)
	}
	closed.Close()
	n := 0
	for _, err := range closed.Events() { // what waited still comes
		if n++; err != nil {
			t.Errorf("after Close: %v", err)
		}
	}
	if n != 2 {
		t.Errorf("%d events after Close, want the two that waited", n)
	}
}

// A watch is of one key: an asterisk stands for itself.
func TestWatchHasNoPatterns(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "*")
	w := watch(t, c, k)
	mustSet(t, c, key(t, "a"), "another key")
	mustSet(t, c, k, "this key")
	if e := next(t, w); e.Key != k || string(e.Value) != "this key" {
		t.Errorf("%+v", e)
	}
}

func TestWatchOfAnImpossibleKey(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	if _, err := c.Watch(within(t, patience), ""); !errors.Is(err, client.ErrEmptyKey) {
		t.Errorf("%v, want ErrEmptyKey", err)
	}
	if _, err := c.Watch(within(t, patience), string(make([]byte, 40_000))); !errors.Is(err, client.ErrSyntax) {
		t.Errorf("a key too long for a notification: %v, want ErrSyntax", err)
	}
}

// What happens while the connection is down is told once it is up again.
func TestWatchClosesTheGap(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		before  string // "": no such key
		away    func(*testing.T, *client.Client, string)
		want    client.EventKind // 0: no event
		value   string
		version bool // the event has one
	}{
		{"a change", "old", func(t *testing.T, c *client.Client, k string) { mustSet(t, c, k, "new") }, client.KeySet, "new", true},
		{"a new key", "", func(t *testing.T, c *client.Client, k string) { mustSet(t, c, k, "new") }, client.KeySet, "new", true},
		{"two changes", "old", func(t *testing.T, c *client.Client, k string) {
			mustSet(t, c, k, "lost")
			mustSet(t, c, k, "new")
		}, client.KeySet, "new", true},
		{"the same value again", "old", func(t *testing.T, c *client.Client, k string) { mustSet(t, c, k, "old") }, client.KeySet, "old", true},
		{"a deletion", "old", func(t *testing.T, c *client.Client, k string) {
			if _, err := c.Del(within(t, patience), k); err != nil {
				t.Fatal(err)
			}
		}, client.KeyDeleted, "", false},
		{"nothing", "old", func(*testing.T, *client.Client, string) {}, 0, "", false},
		{"nothing on no key", "", func(*testing.T, *client.Client, string) {}, 0, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Shared()
			p := startProxy(t, s.Addr)
			c, other := dial(t, p.addr, fastRetry()), dial(t, s.Addr)
			k := key(t, "k")
			if test.before != "" {
				mustSet(t, other, k, test.before)
			}
			w, second := watch(t, c, k), watch(t, c, k)

			p.refuse(true)
			p.cut()
			eventually(t, "the client has noticed", func() bool {
				_, _, err := c.Get(within(t, 5*time.Millisecond), k)
				return errors.Is(err, client.ErrNotConnected)
			})
			test.away(t, other, k)
			p.refuse(false)

			if test.want != 0 {
				for _, w := range []*client.Watch{w, second} {
					e := next(t, w)
					if e.Kind != test.want || string(e.Value) != test.value || !e.Gap || e.Version.IsZero() == test.version {
						t.Errorf("event %+v, want %v %q with Gap", e, test.want, test.value)
					}
				}
			}
			// From now on it is as before.
			third := watch(t, c, k)
			mustSet(t, other, k, "after")
			for _, w := range []*client.Watch{w, second, third} {
				if e := next(t, w); string(e.Value) != "after" || e.Gap {
					t.Errorf("event %+v, want the change after the gap", e)
				}
			}
		})
	}
}

// Whatever breaks and whenever, the last event is the last state.
func TestWatchUnderFire(t *testing.T) {
	t.Parallel()
	s := testserver.Shared()
	p := startProxy(t, s.Addr)
	c, other := dial(t, p.addr, fastRetry()), dial(t, s.Addr)
	k := key(t, "k")
	w := watch(t, c, k)
	const changes = 400
	for i := range changes {
		if i%40 == 20 {
			p.cut()
		}
		mustSet(t, other, k, fmt.Sprint(i))
	}
	var last hlc.Timestamp
	for {
		e := next(t, w)
		if e.Version.Compare(last) <= 0 {
			t.Fatalf("version %v after %v", e.Version, last)
		}
		last = e.Version
		if string(e.Value) == fmt.Sprint(changes-1) {
			return
		}
	}
}

// A consumer that doesn't consume finds the newest state when it comes back.
func TestSlowConsumerGetsTheNewest(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	slow, quick := watch(t, c, k, client.Queue(2)), watch(t, c, k)
	for i := range 21 {
		mustSet(t, c, k, fmt.Sprint(i))
	}
	for i := range 21 { // then all have been told to both
		if e := next(t, quick); string(e.Value) != fmt.Sprint(i) || e.Gap {
			t.Fatalf("the quick one's event %d: %+v", i, e)
		}
	}
	var e client.Event
	gaps := 0
	for string(e.Value) != "20" {
		if e = next(t, slow); e.Gap {
			gaps++
		}
	}
	if gaps == 0 {
		t.Error("the slow one was not told of its gap")
	}
}

// More keys than registrations are worked on at once.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	s := testserver.Shared()
	p := startProxy(t, s.Addr)
	c, other := dial(t, p.addr, fastRetry()), dial(t, s.Addr)
	watches := make([]*client.Watch, 300)
	for i := range watches {
		watches[i] = watch(t, c, key(t, fmt.Sprint(i)))
	}
	p.cut()
	for i := range watches {
		mustSet(t, other, key(t, fmt.Sprint(i)), "v")
	}
	for i, w := range watches {
		if e := next(t, w); e.Key != key(t, fmt.Sprint(i)) || string(e.Value) != "v" {
			t.Fatalf("watch %d: %+v", i, e)
		}
	}
}
