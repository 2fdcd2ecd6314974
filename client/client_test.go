package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/hlc"
)

func TestWhatIsSetIsWhatIsRead(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for name, value := range map[string][]byte{
		"text":         []byte("hello"),
		"empty":        {},
		"every byte":   every,
		"looks RESP":   []byte("$-1\r\n*2\r\n"),
		"one MB":       bytes.Repeat([]byte("0123456789abcdef"), 60_000),
		"\x00\xff\r\n": []byte("under a key that is not text"),
	} {
		k := key(t, name)
		version, applied, err := c.Set(within(t, patience), k, value)
		if err != nil || !applied {
			t.Fatalf("%s: Set: applied %v, error %v", name, applied, err)
		}
		got := mustGet(t, c, k)
		if !bytes.Equal(got.Bytes, value) || got.Bytes == nil {
			t.Errorf("%s: read %d bytes, want the %d that were set", name, len(got.Bytes), len(value))
		}
		if got.Version != version || version.IsZero() {
			t.Errorf("%s: read version %v, want %v", name, got.Version, version)
		}
	}
}

func TestMissingKey(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	ctx := within(t, patience)
	if v, found, err := c.Get(ctx, key(t, "k")); found || err != nil || v.Bytes != nil {
		t.Errorf("Get: %v, %v, %v", v, found, err)
	}
	if d, err := c.Del(ctx, key(t, "k")); d != (client.Deletion{}) || err != nil {
		t.Errorf("Del: %+v, %v", d, err)
	}
	if d, err := c.VDel(ctx, key(t, "k"), []byte("x")); d != (client.Deletion{}) || err != nil {
		t.Errorf("VDel: %+v, %v", d, err)
	}
}

func TestDeletions(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	ctx := within(t, patience)
	k := key(t, "k")
	version, _, err := c.Set(ctx, k, []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := c.VDel(ctx, k, []byte("b")); err != nil || d != (client.Deletion{Found: true, Version: version}) {
		t.Errorf("VDel with another value: %+v, %v; want found, not deleted, version %v", d, err, version)
	}
	if d, err := c.VDel(ctx, k, []byte("a")); err != nil || d != (client.Deletion{Deleted: true, Found: true, Version: version}) {
		t.Errorf("VDel: %+v, %v; want deleted, version %v", d, err, version)
	}
	mustSet(t, c, k, "")
	if d, err := c.Del(ctx, k); err != nil || !d.Deleted || !d.Found || d.Version.Compare(version) <= 0 {
		t.Errorf("Del: %+v, %v; want deleted, with a later version than %v", d, err, version)
	}
}

func TestSetConditions(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	for _, test := range []struct {
		name    string
		stored  string // "": no such key
		options func(stored hlc.Timestamp) []client.SetOption
		applied bool
	}{
		{"NX on nothing", "", opts(client.NX()), true},
		{"NX on a key", "old", opts(client.NX()), false},
		{"NEX on nothing", "", opts(client.NEX()), true},
		{"NEX on another value", "old", opts(client.NEX()), false},
		{"NEX on the same value", "new", opts(client.NEX()), true},
		{"NEX with an expiry", "old", opts(client.NEX(), client.Expiry(time.Minute)), false},
		{"compare with the stored value", "old", opts(client.NEXCompare([]byte("old"))), true},
		{"compare with another value", "old", opts(client.NEXCompare([]byte("older"))), false},
		{"compare with an option's name", "PX", opts(client.NEXCompare([]byte("PX")), client.Expiry(time.Minute)), true},
		{"compare with nothing", "old", opts(client.NEXCompare(nil)), false},
		{"absent on nothing", "", opts(client.IfAbsent()), true},
		{"absent on a key", "old", opts(client.IfAbsent()), false},
		{"this version", "old", func(v hlc.Timestamp) []client.SetOption { return []client.SetOption{client.IfVersion(v)} }, true},
		{"an older version", "old", func(v hlc.Timestamp) []client.SetOption {
			v.Wall--
			return []client.SetOption{client.IfVersion(v)}
		}, false},
		{"a version on nothing", "", opts(client.IfVersion(hlc.Timestamp{Wall: 1, Node: "n"})), false},
		{"the zero version means absent", "", opts(client.IfVersion(hlc.Timestamp{})), true},
		{"all must hold", "old", func(v hlc.Timestamp) []client.SetOption {
			return []client.SetOption{client.NX(), client.IfVersion(v)}
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := key(t, "k")
			var before hlc.Timestamp
			if test.stored != "" {
				mustSet(t, c, k, test.stored)
				before = mustGet(t, c, k).Version
			}
			version, applied, err := c.Set(within(t, patience), k, []byte("new"), test.options(before)...)
			if err != nil || applied != test.applied {
				t.Fatalf("applied %v, error %v; want %v", applied, err, test.applied)
			}
			if !applied && version != before {
				t.Errorf("not applied, version %v; want that of the stored value, %v", version, before)
			}
			if applied && version.Compare(before) <= 0 {
				t.Errorf("applied, version %v; want a later one than %v", version, before)
			}
		})
	}
}

func opts(o ...client.SetOption) func(hlc.Timestamp) []client.SetOption {
	return func(hlc.Timestamp) []client.SetOption { return o }
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	for name, o := range map[string][]client.SetOption{
		"NX and NEX":        {client.NX(), client.NEX()},
		"no lifetime":       {client.Expiry(0)},
		"negative lifetime": {client.Expiry(-time.Second)},
		"two versions":      {client.IfAbsent(), client.IfVersion(hlc.Timestamp{Wall: 1, Node: "n"})},
	} {
		if _, _, err := c.Set(within(t, patience), key(t, name), nil, o...); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("%s: %v, want ErrInvalidOption", name, err)
		}
	}
	if _, err := c.Watch(within(t, patience), key(t, "k"), client.Queue(0)); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("a queue of 0: %v, want ErrInvalidOption", err)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	k := key(t, "k")
	w, err := c.Watch(within(t, patience), k)
	if err != nil {
		t.Fatal(err)
	}
	mustSet(t, c, k, "short-lived", client.Expiry(30*time.Millisecond))
	if e := next(t, w); e.Kind != client.KeySet {
		t.Fatalf("first event: %+v, want the set", e)
	}
	if e := next(t, w); e.Kind != client.KeyDeleted {
		t.Fatalf("second event: %+v, want the deletion", e)
	}
	if _, found, err := c.Get(within(t, patience), k); found || err != nil {
		t.Errorf("after the deadline: found %v, error %v", found, err)
	}
}

// Every error text that a request of this client can bring about.
func TestStoreErrors(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--max-keys", "3")
	c := dial(t, s.addr)
	fast := dial(t, s.addr, client.WithClock(hlc.NewClock("fast", hlc.WithWall(func() uint64 {
		return uint64(time.Now().Add(2 * time.Minute).UnixMilli())
	}))))
	token := func(ahead time.Duration) hlc.Timestamp {
		return hlc.Timestamp{Wall: uint64(time.Now().Add(ahead).UnixMilli()), Counter: 1, Node: "test"}
	}
	mustSet(t, c, "fenced", "x", client.Fencing(token(0)))
	mustSet(t, c, "k1", "x")
	mustSet(t, c, "k2", "x")

	set := func(c *client.Client, k string, o ...client.SetOption) func(context.Context) error {
		return func(ctx context.Context) error {
			_, _, err := c.Set(ctx, k, []byte("y"), o...)
			return err
		}
	}
	raw := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error { return c.Raw(ctx, args...) }
	}
	for _, test := range []struct {
		name string
		do   func(context.Context) error
		want error
	}{
		{"a clock that is ahead", set(fast, "k1"), client.ErrTimestampAhead},
		{"no token on a fenced key", set(c, "fenced"), client.ErrTokenRequired},
		{"a lower token", set(c, "fenced", client.Fencing(token(-time.Hour))), client.ErrTokenTooLow},
		{"a token from the future", set(c, "k1", client.Fencing(token(time.Hour))), client.ErrTokenAhead},
		{"a token that is none", set(c, "k1", client.Fencing(hlc.Timestamp{})), client.ErrMalformedTimestamp},
		{"a deletion without the token", func(ctx context.Context) error { _, err := c.Del(ctx, "fenced"); return err }, client.ErrTokenRequired},
		{"one key too many", set(c, "k3"), client.ErrQuotaExceeded},
		{"an empty key", set(c, ""), client.ErrEmptyKey},
		{"an empty key, read", func(ctx context.Context) error { _, _, err := c.Get(ctx, ""); return err }, client.ErrEmptyKey},
		{"a malformed pattern", func(ctx context.Context) error { return scanError(ctx, c, "[") }, client.ErrSyntax},
		{"an unknown option", raw("SET", "k1", "v", "XX"), client.ErrSyntax},
		{"an unknown command", raw("FROBNICATE", "k1"), client.ErrUnknownCommand},
		{"too few arguments", raw("GET"), client.ErrWrongArgumentCount},
		{"a made-up scan token", raw("SCAN", "*", "made up"), client.ErrMalformedToken},
	} {
		err := test.do(within(t, patience))
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		var e *client.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %T, want a *client.Error", test.name, err)
		}
	}
}

func scanError(ctx context.Context, c *client.Client, pattern string) error {
	for _, err := range c.Scan(ctx, pattern) {
		if err != nil {
			return err
		}
	}
	return nil
}

// A request that the server would not read is not sent, and harms nobody.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--max-packet-size", "65536")
	c := dial(t, s.addr)
	_, _, err := c.Set(within(t, patience), "k", make([]byte, 65536))
	if !errors.Is(err, client.ErrTooLarge) {
		t.Fatalf("%v, want ErrTooLarge", err)
	}
	mustSet(t, c, "k", strings.Repeat("x", 60_000))
}

// Many goroutines on one connection, each with its own answers.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	ctx := within(t, 2*patience)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := range 40 {
				k, value := key(t, fmt.Sprint(g)), fmt.Sprintf("%d-%d", g, i)
				version, applied, err := c.Set(ctx, k, []byte(value))
				if err != nil || !applied {
					t.Errorf("Set: %v, %v", applied, err)
					return
				}
				v, found, err := c.Get(ctx, k)
				if err != nil || !found || string(v.Bytes) != value || v.Version != version {
					t.Errorf("Get: %q %v %v %v, want %q %v", v.Bytes, v.Version, found, err, value, version)
					return
				}
			}
		})
	}
	wg.Wait()
}

// More requests than the server takes at once wait their turn.
func TestMoreRequestsThanReceiveMaximum(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--receive-maximum", "3")
	c := dial(t, s.addr)
	ctx := within(t, 2*patience)
	var wg sync.WaitGroup
	for g := range 100 {
		wg.Go(func() {
			if _, applied, err := c.Set(ctx, fmt.Sprint(g), nil); err != nil || !applied {
				t.Errorf("Set: %v, %v", applied, err)
			}
		})
	}
	wg.Wait()
	mustGet(t, c, "99")
}

// Requests whose callers have given up give their place back.
func TestGivenUpRequestsFreeTheirSlots(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--receive-maximum", "2")
	p := startProxy(t, s.addr)
	c := dial(t, p.addr)
	p.hold()
	for range 5 {
		if _, _, err := c.Get(within(t, 20*time.Millisecond), "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Get of a silent server: %v, want DeadlineExceeded", err)
		}
	}
	p.release()
	mustSet(t, c, "k", "v")
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	p := startProxy(t, sharedServer(t).addr)
	c := dial(t, p.addr, client.WithTimeout(time.Second))
	p.hold()
	short := 30 * time.Millisecond

	if _, _, err := c.Get(within(t, short), key(t, "k")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("Get: %v, want DeadlineExceeded and no unknown outcome", err)
	}
	if _, _, err := c.Set(within(t, short), key(t, "k"), nil); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("Set: %v, want DeadlineExceeded and an unknown outcome", err)
	}
	canceled, cancel := context.WithCancel(context.Background())
	time.AfterFunc(short, cancel)
	if _, _, err := c.Get(canceled, key(t, "k")); !errors.Is(err, context.Canceled) {
		t.Errorf("Get, canceled: %v", err)
	}
	start := time.Now()
	if _, _, err := c.Get(context.Background(), key(t, "k")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get without a deadline: %v, want the client's timeout", err)
	}
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("the client's timeout of 1 s came after %v", took)
	}
}

func TestDialFails(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, address string
		want          error
	}{
		{"nobody there", "127.0.0.1:1", syscall.ECONNREFUSED},
		{"another protocol", "http://localhost", client.ErrInvalidOption},
		{"no host", "mqtt://", client.ErrInvalidOption},
	} {
		if _, err := client.Dial(within(t, patience), test.address); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	if _, err := client.Dial(within(t, patience), "localhost", client.WithClientID("a/b")); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("a client ID with a slash: %v, want ErrInvalidOption", err)
	}
}

// New does not wait; its requests do, and say why if it takes too long.
func TestNewConnectsInTheBackground(t *testing.T) {
	t.Parallel()
	p := startProxy(t, sharedServer(t).addr)
	p.refuse(true)
	c, err := client.New(p.addr, client.WithBackoff(time.Millisecond, 20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _, err = c.Set(within(t, 100*time.Millisecond), key(t, "k"), nil)
	if !errors.Is(err, client.ErrNotConnected) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("Set without a server: %v, want ErrNotConnected", err)
	}
	p.refuse(false)
	mustSet(t, c, key(t, "k"), "v")
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--ws", "127.0.0.1:0")
	c := dial(t, "ws://"+s.ws+"/mqtt")
	mustSet(t, c, "k", strings.Repeat("x", 100_000))
	if v := mustGet(t, dial(t, s.addr), "k"); len(v.Bytes) != 100_000 {
		t.Errorf("read %d bytes, want 100000", len(v.Bytes))
	}
}

// A write after a read is later than what was read, whatever this clock says.
func TestTheClockFollowsTheServer(t *testing.T) {
	t.Parallel()
	c := dial(t, sharedServer(t).addr)
	clock := hlc.NewClock("slow", hlc.WithWall(func() uint64 { return uint64(time.Now().Add(-30 * time.Second).UnixMilli()) }))
	slow := dial(t, sharedServer(t).addr, client.WithClock(clock))
	mustSet(t, c, key(t, "k"), "v")
	seen := mustGet(t, slow, key(t, "k")).Version
	if now := clock.Now(); now.Compare(seen) <= 0 {
		t.Errorf("the clock says %v after it has seen %v", now, seen)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	p := startProxy(t, sharedServer(t).addr)
	c := dial(t, p.addr)
	w, err := c.Watch(context.Background(), key(t, "k"))
	if err != nil {
		t.Fatal(err)
	}
	p.hold()
	before := p.sent()
	failed := make(chan error, 2)
	go func() { _, _, err := c.Get(within(t, patience), key(t, "k")); failed <- err }()
	go func() { _, _, err := c.Set(within(t, patience), key(t, "k"), nil); failed <- err }()
	eventually(t, "two requests are under way", func() bool { return p.sent() > before+300 })

	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := <-failed; !errors.Is(err, client.ErrClosed) {
			t.Errorf("a request under way: %v, want ErrClosed", err)
		}
	}
	if _, open := <-w.Events(); open || !errors.Is(w.Err(), client.ErrClosed) {
		t.Errorf("the watch: open %v, error %v; want ended by ErrClosed", open, w.Err())
	}
	if _, _, err := c.Get(context.Background(), "k"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Get after Close: %v", err)
	}
	if _, err := c.Watch(context.Background(), "k"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Watch after Close: %v", err)
	}
}

// Not parallel: it counts the goroutines of the whole process.
func TestCloseLeavesNothingBehind(t *testing.T) {
	s := startServer(t)
	p := startProxy(t, s.addr)
	idle := runtime.NumGoroutine()
	for range 5 {
		c, err := client.Dial(within(t, patience), p.addr, client.WithBackoff(time.Millisecond, time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		for i := range 100 {
			if _, err := c.Watch(ctx, fmt.Sprint(i%70)); err != nil {
				t.Fatal(err)
			}
		}
		p.cut()
		if _, _, err := c.Get(within(t, patience), "k"); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		cancel()
	}
	p.cut()
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= idle })
}
