package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func mustLoad(t *testing.T, c *client.Client, k, messageID string) client.LoadResult {
	t.Helper()
	m, err := c.Load(within(t, patience), k, messageID)
	if err != nil {
		t.Fatalf("Load(%q, %q): %v", k, messageID, err)
	}
	return m
}

func wantMessage(t *testing.T, got, want client.LoadResult) {
	t.Helper()
	if got.Status != want.Status || got.Version != want.Version || !sameOrNil(got.State, want.State) || !sameOrNil(got.Captured, want.Captured) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func sameOrNil(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func mustStore(t *testing.T, c *client.Client, k, state, messageID string, version hlc.Timestamp, opts ...client.StoreOption) client.StoreResult {
	t.Helper()
	r, err := c.Store(within(t, patience), k, []byte(state), messageID, version, opts...)
	if err != nil {
		t.Fatalf("Store(%q, %q): %v", k, messageID, err)
	}
	return r
}

func TestEachMessageIsProcessedOnce(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")

	first := mustLoad(t, c, k, "m1")
	wantMessage(t, first, client.LoadResult{Status: client.NewMessage})
	stored := mustStore(t, c, k, "", "m1", first.Version, client.Captured([]byte("noon")))
	if stored.Outcome != client.Stored || stored.Version.IsZero() {
		t.Errorf("Store: %+v", stored)
	}
	wantMessage(t, mustLoad(t, c, k, "m1"), client.LoadResult{Status: client.Duplicate, Captured: []byte("noon"), Version: stored.Version})
	if again := mustStore(t, c, k, "x", "m1", first.Version); again != (client.StoreResult{Outcome: client.AlreadyStored, Version: stored.Version}) {
		t.Errorf("the same Store again: %+v", again)
	}

	second := mustLoad(t, c, k, "m2")
	wantMessage(t, second, client.LoadResult{Status: client.NewMessage, State: []byte{}, Version: stored.Version})
	if late := mustStore(t, c, k, "x", "m2", first.Version); late != (client.StoreResult{Outcome: client.VersionConflict, Version: stored.Version, Keep: 7 * 24 * time.Hour}) {
		t.Errorf("a Store that comes too late: %+v", late)
	}
	next := mustStore(t, c, k, "b", "m2", second.Version, client.Captured(nil), client.Keep(time.Hour))
	wantMessage(t, mustLoad(t, c, k, "m2"), client.LoadResult{Status: client.Duplicate, State: []byte{}, Captured: []byte{}, Version: next.Version})

	for id, want := range map[string]bool{"m2": true, "m3": false} {
		if remembered, err := c.Done(within(t, patience), k, id); err != nil || remembered != want {
			t.Errorf("Done(%s): %v, %v", id, remembered, err)
		}
	}
	wantMessage(t, mustLoad(t, c, k, "m2"), client.LoadResult{Status: client.Confirmed, Version: next.Version})
	if v := mustGet(t, c, k); string(v.Bytes) != "b" || v.Version != next.Version {
		t.Errorf("the key holds %q with %v", v.Bytes, v.Version)
	}
}

// What a Store asks for beside its state: how long the message is remembered, the key's
// deletion or expiry.
func TestStoreOptions(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	if r := mustStore(t, c, k, "a", "m1", hlc.Timestamp{}, client.Keep(time.Hour)); r.Outcome != client.Stored || r.Keep != 0 {
		t.Errorf("an hour is granted: %+v", r)
	}
	never := hlc.Timestamp{Wall: 1, Node: "nothing"}
	if r := mustStore(t, c, k, "", "probe", never, client.Keep(1000*24*time.Hour)); r.Outcome != client.VersionConflict || r.Keep != 30*24*time.Hour {
		t.Errorf("1,000 days are not granted: %+v", r)
	}
	deleted := mustStore(t, c, k, "", "m2", mustGet(t, c, k).Version, client.DeleteState())
	if _, found, err := c.Get(within(t, patience), k); found || err != nil {
		t.Errorf("the key is found after its deletion (%v)", err)
	}
	wantMessage(t, mustLoad(t, c, k, "m2"), client.LoadResult{Status: client.Duplicate, State: []byte("a"), Version: deleted.Version})
	mustStore(t, c, k, "b", "m3", hlc.Timestamp{}, client.StateExpiry(20*time.Millisecond))
	eventually(t, "the key expires", func() bool { _, found, _ := c.Get(within(t, patience), k); return !found })
	for _, bad := range [][]client.StoreOption{{client.StateExpiry(0)}, {client.StateExpiry(1), client.DeleteState()}} {
		if _, err := c.Store(within(t, patience), k, nil, "m4", hlc.Timestamp{}, bad...); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("invalid options: %v", err)
		}
	}
}

// A late Done of a message that was forgotten, and stored again under the same ID,
// confirms nothing. Done leaves a value with the message.
func TestDoneOfAVersion(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	first := mustStore(t, c, k, "a", "m", hlc.Timestamp{}, client.Keep(20*time.Millisecond)).Version
	eventually(t, "the message is new again", func() bool { return mustLoad(t, c, k, "m").Status == client.NewMessage })
	second := mustStore(t, c, k, "b", "m", first).Version
	for _, step := range []struct {
		version    hlc.Timestamp
		remembered bool
		want       client.LoadResult
	}{
		{first, false, client.LoadResult{Status: client.Duplicate, State: []byte("a"), Version: second}},
		{second, true, client.LoadResult{Status: client.Confirmed, Captured: []byte("digest"), Version: second}},
	} {
		remembered, err := c.Done(within(t, patience), k, "m", client.OfVersion(step.version), client.Leave([]byte("digest")))
		if err != nil || remembered != step.remembered {
			t.Errorf("Done of %v: %v, %v", step.version, remembered, err)
		}
		wantMessage(t, mustLoad(t, c, k, "m"), step.want)
	}
}

func TestMessagesAreForgottenInTime(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	version := mustStore(t, c, k, "a", "m", hlc.Timestamp{}, client.Keep(30*time.Millisecond)).Version
	eventually(t, "the message is new again", func() bool { return mustLoad(t, c, k, "m").Status == client.NewMessage })
	if r := mustStore(t, c, k, "b", "m", version); r.Outcome != client.Stored {
		t.Errorf("%+v", r)
	}
}

func TestFencedStore(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	old := mustStore(t, c, key(t, "lock"), "", "m", hlc.Timestamp{}).Version
	token := mustStore(t, c, key(t, "lock"), "", "n", old).Version
	mustStore(t, c, k, "a", "m", hlc.Timestamp{}, client.Fencing(token))
	if _, err := c.Store(within(t, patience), k, nil, "n", hlc.Timestamp{}, client.Fencing(old)); !errors.Is(err, client.ErrTokenTooLow) {
		t.Errorf("a Store with an old token: %v", err)
	}
	if _, err := c.Store(within(t, patience), k, nil, "m", hlc.Timestamp{}); !errors.Is(err, client.ErrTokenRequired) {
		t.Errorf("a Store without a token: %v", err)
	}
	if m := mustLoad(t, c, k, "m"); m.Status != client.Duplicate {
		t.Errorf("Load needs no token: %+v", m)
	}
}

func TestBadMessageArguments(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k, ctx := key(t, "k"), within(t, patience)
	if _, err := c.Store(ctx, k, nil, "m", hlc.Timestamp{}, client.Keep(0)); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("Keep(0): %v", err)
	}
	if _, err := c.Load(ctx, k, ""); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("Load without a message: %v", err)
	}
	if _, err := c.Store(ctx, k, nil, "", hlc.Timestamp{}); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("Store without a message: %v", err)
	}
	if _, err := c.Done(ctx, k, ""); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("Done without a message: %v", err)
	}
	if _, err := c.Load(ctx, "", "m"); !errors.Is(err, client.ErrEmptyKey) {
		t.Errorf("Load without a key: %v", err)
	}
}

// A Store or Done that was sent and not answered is of unknown outcome, like any
// write; sent again it comes out right.
func TestMessagesAndABrokenConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		do   func(ctx context.Context, c *client.Client, k string) error
		want error
	}{
		{"Load", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Load(ctx, k, "m")
			return err
		}, nil},
		{"Store", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Store(ctx, k, nil, "m", hlc.Timestamp{})
			return err
		}, client.ErrUnknownOutcome},
		{"Done", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Done(ctx, k, "m")
			return err
		}, client.ErrUnknownOutcome},
		{"Store, retried", func(ctx context.Context, c *client.Client, k string) error {
			r, err := c.Store(ctx, k, nil, "m", hlc.Timestamp{}, client.RetryWrites())
			if err == nil && r.Outcome == client.VersionConflict {
				err = errors.New("its own earlier try was in its way")
			}
			return err
		}, nil},
		{"Done, retried", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Done(ctx, k, "m", client.RetryWrites())
			return err
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, testserver.Shared().Addr)
			c := dial(t, p.addr, fastRetry())
			k := key(t, "k")
			p.hold()
			answer := make(chan error, 1)
			go func() { answer <- test.do(within(t, patience), c, k) }()
			eventually(t, "the request is under way", func() bool { return p.passed(k) })
			p.cut()
			p.release()
			if err := <-answer; !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			// Whatever became of it, starting over brings it to its end.
			if m := mustLoad(t, c, k, "m"); m.Status == client.NewMessage {
				mustStore(t, c, k, "", "m", m.Version)
			}
			if m := mustLoad(t, c, k, "m"); m.Status == client.NewMessage {
				t.Errorf("%+v", m)
			}
		})
	}
}

// Exactly once through kill -9: handlers take messages that come twice and in any
// order while the server is killed again and again. In the end each message is in
// the state of its key once, and what every one of them was told is still so.
func TestExactlyOnceThroughKills(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--listen", testserver.FreeAddress())
	c := dial(t, s.Addr, fastRetry(), client.RetryWrites())
	const keys, messages, handlers, kills = 3, 120, 6, 5
	var mu sync.Mutex
	told := map[int]hlc.Timestamp{} // under mu: the version of each message
	handle := func(i int) {
		version := processOnce(t, c, fmt.Sprint("k", i%keys), i)
		mu.Lock()
		defer mu.Unlock()
		if before, ok := told[i]; ok && before != version {
			t.Errorf("message %d had version %v, now it has %v", i, before, version)
		}
		told[i] = version
	}
	var wg sync.WaitGroup
	var handled atomic.Int64
	stop := make(chan struct{})
	for id := range handlers {
		rng := rand.New(rand.NewPCG(uint64(id), 7))
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				i := rng.IntN(messages)
				handle(i)
				if rng.IntN(3) == 0 {
					if _, err := c.Done(within(t, patience), fmt.Sprint("k", i%keys), fmt.Sprint(i)); err != nil {
						t.Error(err)
					}
				}
				handled.Add(1)
			}
		})
	}
	for n := range kills {
		eventually(t, "messages are handled", func() bool { return handled.Load() > int64(10*(n+1)) })
		s.Restart()
	}
	close(stop)
	wg.Wait()
	for i := range messages {
		handle(i)
	}
	for k := range keys {
		state := string(mustGet(t, c, fmt.Sprint("k", k)).Bytes)
		for i := k; i < messages; i += keys {
			if n := strings.Count(state, fmt.Sprintf("<%d>", i)); n != 1 {
				t.Errorf("message %d is %d times in %s", i, n, state)
			}
		}
	}
}

// processOnce is what a handler does with a message; it returns the version that
// the message produced.
func processOnce(t *testing.T, c *client.Client, k string, i int) hlc.Timestamp {
	for {
		m := mustLoad(t, c, k, fmt.Sprint(i))
		if m.Status != client.NewMessage {
			return m.Version
		}
		r := mustStore(t, c, k, fmt.Sprintf("%s<%d>", m.State, i), fmt.Sprint(i), m.Version)
		if r.Outcome != client.VersionConflict {
			return r.Version
		}
	}
}

func TestNamesOfOutcomes(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		client.NewMessage.String(): "new", client.Duplicate.String(): "duplicate", client.Confirmed.String(): "confirmed",
		client.MessageStatus(9).String(): "status 9", client.Stored.String(): "stored", client.AlreadyStored.String(): "already stored",
		client.VersionConflict.String(): "version conflict", client.StoreOutcome(0).String(): "outcome 0",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
