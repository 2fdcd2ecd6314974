package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// watchPattern watches the keys that begin with a prefix, and looks for new ones often.
func watchPattern(t *testing.T, c *client.Client, prefix string, opts ...client.WatchOption) *client.Watch {
	t.Helper()
	opts = append([]client.WatchOption{client.Rescan(10 * time.Millisecond)}, opts...)
	w, err := c.WatchPattern(context.Background(), client.LiteralPattern(prefix)+"*", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func TestWatchPattern(t *testing.T) {
	t.Parallel()
	s := testserver.Shared()
	c, other := dial(t, s.Addr), dial(t, s.Addr)
	prefix := key(t, "[a]*?/") // LiteralPattern takes none of it for a pattern
	there, later := prefix+"there", prefix+"later"
	mustSet(t, other, there, "1")
	mustSet(t, other, key(t, "a-/other"), "1")
	w := watchPattern(t, c, prefix)
	wantEvent := func(k, value string, gap bool) {
		t.Helper()
		e := next(t, w)
		if got := fmt.Sprintf("%v %s %s", e.Kind, e.Key, e.Value); got != fmt.Sprintf("%v %s %s", client.KeySet, k, value) || e.Gap != gap {
			t.Fatalf("%+v, want a set of %s to %s, gap: %v", e, k, value, gap)
		}
	}

	// A key that was there gives an event for each change, as with Watch.
	mustSet(t, other, there, "2")
	wantEvent(there, "2", false)
	// A new key gives one with the value that it has when it is found, and from then on one
	// for each change.
	mustSet(t, other, later, "1")
	wantEvent(later, "1", true)
	mustSet(t, other, later, "2")
	wantEvent(later, "2", false)
	// So does a key that is deleted, and comes again.
	if _, err := other.Del(within(t, patience), later); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Kind != client.KeyDeleted || e.Key != later || e.Version.IsZero() {
		t.Fatalf("%+v, want the deletion of %s", e, later)
	}
	mustSet(t, other, later, "3")
	if e := next(t, w); e.Key != later || string(e.Value) != "3" {
		t.Fatalf("%+v, want %s again", e, later)
	}
	w.Close()
	for range w.Chan() {
		t.Error("an event after the last change")
	}
	if err := w.Err(); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// A lost connection loses no state: neither of keys that were watched nor of keys that come
// meanwhile.
func TestWatchPatternReconnects(t *testing.T) {
	t.Parallel()
	s := testserver.Shared()
	p := startProxy(t, s.Addr)
	c, other := dial(t, p.addr, fastRetry()), dial(t, s.Addr)
	prefix := key(t, "")
	const keys = 100
	for i := range keys {
		mustSet(t, other, fmt.Sprint(prefix, i), "old")
	}
	w := watchPattern(t, c, prefix, client.Queue(3*keys))
	p.refuse(true)
	p.cut()
	want := map[string]string{prefix + "new": "set new"}
	mustSet(t, other, prefix+"new", "new")
	for i := range keys {
		k := fmt.Sprint(prefix, i)
		if i%2 == 0 {
			mustSet(t, other, k, "new")
			want[k] = "set new"
		} else if _, err := other.Del(within(t, patience), k); err != nil {
			t.Fatal(err)
		} else {
			want[k] = "deleted "
		}
	}
	p.refuse(false)
	for len(want) > 0 {
		e := next(t, w)
		if got := fmt.Sprintf("%v %s", e.Kind, e.Value); got != want[e.Key] || !e.Gap {
			t.Fatalf("%+v, want %q with Gap", e, want[e.Key])
		}
		delete(want, e.Key)
	}
	// And everything goes on.
	mustSet(t, other, prefix+"new", "newer")
	if e := next(t, w); string(e.Value) != "newer" || e.Gap {
		t.Errorf("%+v, want the next change", e)
	}
}

// A consumer that does not take events for a while gets the newest state of each key.
func TestWatchPatternWithASlowConsumer(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	prefix := key(t, "")
	const keys, rounds = 10, 20
	for i := range keys {
		mustSet(t, c, fmt.Sprint(prefix, i), "0")
	}
	w := watchPattern(t, c, prefix, client.Queue(1))
	for n := range rounds {
		for i := range keys {
			mustSet(t, c, fmt.Sprint(prefix, i), fmt.Sprint(n))
		}
	}
	last := fmt.Sprint(rounds - 1)
	events, gaps := 0, 0
	for left := keys; left > 0; events++ {
		e := next(t, w)
		if e.Gap {
			gaps++
		}
		if string(e.Value) == last {
			left--
		}
	}
	if events == keys*rounds || gaps == 0 {
		t.Errorf("%d events, %d of them with Gap; fewer than %d can wait", events, gaps, keys*rounds)
	}
}

// The server's bound of watches: as many keys as it allows are watched; one more is refused
// when the watch begins, and ends it later.
func TestWatchPatternAtTheBoundOfWatches(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--max-watches", "2")
	c, other := dial(t, s.Addr), dial(t, s.Addr)
	mustSet(t, other, "a/1", "1")
	mustSet(t, other, "a/2", "1")
	w := watchPattern(t, c, "a/")
	mustSet(t, other, "a/2", "2")
	if e := next(t, w); e.Key != "a/2" || e.Gap {
		t.Errorf("%+v, want the change of a/2", e)
	}
	mustSet(t, other, "a/3", "1")
	for _, err := range w.Events() {
		if err != nil && !errors.Is(err, client.ErrQuotaExceeded) {
			t.Errorf("the watch ended with %v, want ErrQuotaExceeded", err)
		}
	}
	if !errors.Is(w.Err(), client.ErrQuotaExceeded) {
		t.Errorf("Err: %v, want ErrQuotaExceeded", w.Err())
	}
	if _, err := c.WatchPattern(within(t, patience), "a/*"); !errors.Is(err, client.ErrQuotaExceeded) {
		t.Errorf("a new watch of three keys: %v, want ErrQuotaExceeded", err)
	}
}

func TestWatchPatternEnds(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	mustSet(t, c, key(t, "k"), "v")
	ctx, cancel := context.WithCancel(context.Background())
	byContext, err := c.WatchPattern(ctx, key(t, "*"))
	if err != nil {
		t.Fatal(err)
	}
	byClient := watchPattern(t, c, key(t, ""))
	empty := watchPattern(t, c, key(t, "none"))
	cancel()
	for range byContext.Chan() {
		t.Error("an event without a change")
	}
	if !errors.Is(byContext.Err(), context.Canceled) {
		t.Errorf("after its context: %v", byContext.Err())
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*client.Watch{byClient, empty} {
		if _, open := <-w.Chan(); open || !errors.Is(w.Err(), client.ErrClosed) {
			t.Errorf("after Close of the client: open %v, %v", open, w.Err())
		}
	}
	if _, err := c.WatchPattern(context.Background(), "*"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("with a closed client: %v", err)
	}
}

func TestWatchPatternRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	for _, test := range []struct {
		pattern string
		opts    []client.WatchOption
		want    error
	}{
		{"[", nil, client.ErrSyntax},
		{"", nil, client.ErrSyntax},
		{"\xff", nil, client.ErrSyntax},
		{"\xff", []client.WatchOption{client.BinaryKeys()}, nil},
		{"a", []client.WatchOption{client.Rescan(10*time.Millisecond - 1)}, client.ErrInvalidOption},
		{"a", []client.WatchOption{client.Rescan(0)}, client.ErrInvalidOption},
		{"a", []client.WatchOption{client.Rescan(10 * time.Millisecond)}, nil},
		{"a", []client.WatchOption{client.Queue(0)}, client.ErrInvalidOption},
	} {
		w, err := c.WatchPattern(within(t, patience), test.pattern, test.opts...)
		if !errors.Is(err, test.want) {
			t.Errorf("%q with %d options: %v, want %v", test.pattern, len(test.opts), err, test.want)
		}
		if err == nil {
			w.Close()
		}
	}
	for _, o := range []client.WatchOption{client.Rescan(time.Second), client.BinaryKeys()} {
		if _, err := c.Watch(within(t, patience), "k", o); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("Watch with an option of WatchPattern: %v, want ErrInvalidOption", err)
		}
	}
}
