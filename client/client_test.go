package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestWhatIsSetIsWhatIsRead(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
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
		set, err := c.Set(within(t, patience), k, value)
		if err != nil {
			t.Fatalf("%s: Set: %v", name, err)
		}
		got := mustGet(t, c, k)
		if !bytes.Equal(got.Bytes, value) || got.Bytes == nil {
			t.Errorf("%s: read %d bytes, want the %d that were set", name, len(got.Bytes), len(value))
		}
		if got.Version != set.Version || set.Version.IsZero() {
			t.Errorf("%s: read version %v, want %v", name, got.Version, set.Version)
		}
	}
}

func TestMissingKey(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	ctx := within(t, patience)
	if v, found, err := c.Get(ctx, key(t, "k")); found || err != nil || v.Bytes != nil {
		t.Errorf("Get: %v, %v, %v", v, found, err)
	}
	if d, err := c.Del(ctx, key(t, "k")); d != (client.Deletion{}) || err != nil {
		t.Errorf("Del: %+v, %v", d, err)
	}
	if d, err := c.Del(ctx, key(t, "k"), client.IfValue([]byte("x"))); d != (client.Deletion{}) || err != nil {
		t.Errorf("Del on condition of a value: %+v, %v", d, err)
	}
}

func TestDeletions(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	ctx := within(t, patience)
	k := key(t, "k")
	set, err := c.Set(ctx, k, []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	version := set.Version
	if d, err := c.Del(ctx, k, client.IfValue([]byte("b"))); !errors.Is(err, client.ErrNotApplied) || d != (client.Deletion{Version: version}) {
		t.Errorf("Del on condition of another value: %+v, %v; want ErrNotApplied, version %v", d, err, version)
	}
	if d, err := c.Del(ctx, k, client.IfValue([]byte("a"))); err != nil || d != (client.Deletion{Deleted: true, Version: version}) {
		t.Errorf("Del on condition of the value: %+v, %v; want deleted, version %v", d, err, version)
	}
	mustSet(t, c, k, "")
	if d, err := c.Del(ctx, k, client.IfValue(nil)); err != nil || !d.Deleted || d.Version.Compare(version) <= 0 {
		t.Errorf("Del on condition of the empty value: %+v, %v; want deleted, with a later version than %v", d, err, version)
	}
	mustSet(t, c, k, "")
	if d, err := c.Del(ctx, k); err != nil || !d.Deleted || d.Version.Compare(version) <= 0 {
		t.Errorf("Del: %+v, %v; want deleted, with a later version than %v", d, err, version)
	}
}

func TestSetConditions(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	for _, test := range []struct {
		name    string
		stored  string // "": no such key
		options func(stored hlc.Timestamp) []client.SetOption
		applied bool
	}{
		{"absent on nothing", "", opts(client.IfAbsent()), true},
		{"absent on a key", "old", opts(client.IfAbsent()), false},
		{"absent or equal on nothing", "", opts(client.IfAbsentOrEqual()), true},
		{"absent or equal on another value", "old", opts(client.IfAbsentOrEqual()), false},
		{"absent or equal on the same value", "new", opts(client.IfAbsentOrEqual()), true},
		{"absent or equal, with an expiry", "old", opts(client.IfAbsentOrEqual(), client.Expiry(time.Minute)), false},
		{"absent or the stored value", "old", opts(client.IfAbsentOrValue([]byte("old"))), true},
		{"absent or another value", "old", opts(client.IfAbsentOrValue([]byte("older"))), false},
		{"absent or a value, on nothing", "", opts(client.IfAbsentOrValue([]byte("old"))), true},
		{"absent or an option's name", "PX", opts(client.IfAbsentOrValue([]byte("PX")), client.Expiry(time.Minute)), true},
		{"absent or empty", "old", opts(client.IfAbsentOrValue(nil)), false},
		{"the stored value", "old", opts(client.IfValue([]byte("old"))), true},
		{"another value", "old", opts(client.IfValue([]byte("older"))), false},
		{"a value on nothing", "", opts(client.IfValue([]byte("old"))), false},
		{"an empty value on nothing", "", opts(client.IfValue(nil)), false},
		{"the stored value and version", "old", func(v hlc.Timestamp) []client.SetOption {
			return []client.SetOption{client.IfValue([]byte("old")), client.IfVersion(v)}
		}, true},
		{"the stored value, another version", "old", func(v hlc.Timestamp) []client.SetOption {
			v.Wall--
			return []client.SetOption{client.IfValue([]byte("old")), client.IfVersion(v)}
		}, false},
		{"this version", "old", func(v hlc.Timestamp) []client.SetOption { return []client.SetOption{client.IfVersion(v)} }, true},
		{"an older version", "old", func(v hlc.Timestamp) []client.SetOption {
			v.Wall--
			return []client.SetOption{client.IfVersion(v)}
		}, false},
		{"a version on nothing", "", opts(client.IfVersion(hlc.Timestamp{Wall: 1, Node: "n"})), false},
		{"the zero version means absent", "", opts(client.IfVersion(hlc.Timestamp{})), true},
		{"all must hold", "old", func(v hlc.Timestamp) []client.SetOption {
			return []client.SetOption{client.IfAbsent(), client.IfVersion(v)}
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
			set, err := c.Set(within(t, patience), k, []byte("new"), test.options(before)...)
			switch {
			case test.applied && err != nil:
				t.Fatal(err)
			case !test.applied && !errors.Is(err, client.ErrNotApplied):
				t.Fatalf("%v, want ErrNotApplied", err)
			case !test.applied && set.Version != before:
				t.Errorf("not applied, version %v; want that of the stored value, %v", set.Version, before)
			case test.applied && set.Version.Compare(before) <= 0:
				t.Errorf("applied, version %v; want a later one than %v", set.Version, before)
			}
		})
	}
}

func opts(o ...client.SetOption) func(hlc.Timestamp) []client.SetOption {
	return func(hlc.Timestamp) []client.SetOption { return o }
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	version := client.IfVersion(hlc.Timestamp{Wall: 1, Node: "n"})
	ctx := within(t, patience)
	set := func(o ...client.SetOption) error {
		_, err := c.Set(ctx, key(t, "k"), nil, o...)
		return err
	}
	for _, test := range []struct {
		err  error
		says []string // what is wrong, and what would be right
	}{
		{set(client.IfAbsent(), client.IfAbsentOrEqual()), []string{"IfAbsent and IfAbsentOrEqual exclude each other", "give one"}},
		{set(client.IfValue(nil), client.IfAbsent()), []string{"IfValue and IfAbsent exclude each other", "give one"}},
		{set(client.IfAbsent(), client.IfAbsent()), []string{"IfAbsent is given twice", "give it once"}},
		{set(version, version), []string{"IfVersion is given twice", "give it once"}},
		{set(client.Expiry(0)), []string{"Expiry(0s)", "must be positive"}},
		{set(client.Expiry(-time.Second)), []string{"Expiry(-1s)", "must be positive"}},
		{func() error {
			_, err := c.Del(ctx, key(t, "k"), client.IfValue(nil), client.IfValue(nil))
			return err
		}(), []string{"IfValue is given twice", "give it once"}},
		{func() error {
			_, err := c.Store(ctx, key(t, "k"), nil, "m", hlc.Timestamp{}, client.Keep(0))
			return err
		}(), []string{"Keep(0s)", "must be positive"}},
		{func() error {
			_, err := c.Watch(ctx, key(t, "k"), client.Queue(0))
			return err
		}(), []string{"Queue(0)", "at least 1"}},
	} {
		if !errors.Is(test.err, client.ErrInvalidOption) {
			t.Errorf("%v, want ErrInvalidOption", test.err)
			continue
		}
		for _, part := range test.says {
			if !strings.Contains(test.err.Error(), part) {
				t.Errorf("%q does not say %q", test.err, part)
			}
		}
	}
}

// Each option of a connection says what is wrong with its value, and what would be right.
func TestInvalidConnectionOptions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		option client.Option
		says   []string
	}{
		{client.WithClientID("a/b"), []string{`WithClientID("a/b")`, "without '/', '+', '#'"}},
		{client.WithTimeout(0), []string{"WithTimeout(0s)", "must be positive"}},
		{client.WithKeepAlive(time.Millisecond), []string{"WithKeepAlive(1ms)", "from 1s to 65535s"}},
		{client.WithSessionExpiry(0), []string{"WithSessionExpiry(0s)", "from 1s to"}},
		{client.WithLogger(nil), []string{"WithLogger(nil)", "leave the option out"}},
		{client.WithMaxPacketSize(1), []string{"WithMaxPacketSize(1)", "from 1024 to 268435460"}},
		{client.WithBackoff(2, 1), []string{"WithBackoff(2ns, 1ns)", "no smaller"}},
	} {
		_, err := client.New("localhost", test.option)
		if !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("%v, want ErrInvalidOption", err)
			continue
		}
		for _, part := range test.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	}
}

// Arguments that every server would refuse are refused without asking one; a PUBLISH with
// such a topic would end the connection.
func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	ctx, addr := within(t, patience), testserver.Shared().Addr
	c, k := dial(t, addr), key(t, "k")
	const valid = "a/valid/topic"
	s, err := client.DialSession(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, port := client.New("localhost:65536")
	_, rescan := c.WatchPattern(ctx, k, client.Rescan(0))
	_, load := c.Load(ctx, k, "")
	_, store := c.Store(ctx, k, nil, "", hlc.Timestamp{})
	_, done := c.Done(ctx, k, "")
	for says, err := range map[string]error{
		"port 65536: want a number from 1 to 65535":                    port,
		"Rescan(0s): it must be at least 10ms":                         rescan,
		"load \"" + k + "\": invalid option: the message ID is empty":  load,
		"store \"" + k + "\": invalid option: the message ID is empty": store,
		"done \"" + k + "\": invalid option: the message ID is empty":  done,
		`topic "a/+": it must be UTF-8`:                                s.Publish(ctx, client.Message{Topic: valid}, client.Message{Topic: "a/+"}),
		`topic "": it must be UTF-8 and not empty`:                     s.Publish(ctx, client.Message{}),
		`response topic "#": it must be UTF-8`:                         s.Publish(ctx, client.Message{Topic: valid, ResponseTopic: "#"}),
		"expiry -1ns: it must not be negative":                         s.Publish(ctx, client.Message{Topic: valid, Expiry: -1}),
	} {
		if !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want ErrInvalidOption that says %s", err, says)
		}
	}
	if err := s.Publish(ctx, client.Message{Topic: valid}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Of many clients that expect the same value, one replaces it, and no change is lost.
func TestIfValueIsAtomic(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	k := key(t, "k")
	mustSet(t, c, k, "0")
	const writers, rounds = 4, 25
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < rounds; {
				v, _, err := c.Get(within(t, patience), k)
				if err != nil {
					t.Error(err)
					return
				}
				n, _ := strconv.Atoi(string(v.Bytes))
				_, err = c.Set(within(t, patience), k, fmt.Append(nil, n+1), client.IfValue(v.Bytes))
				switch {
				case err == nil:
					done++
				case !errors.Is(err, client.ErrNotApplied):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := string(mustGet(t, c, k).Bytes); got != fmt.Sprint(writers*rounds) {
		t.Errorf("%s, want %d", got, writers*rounds)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
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

// A client whose machine's clock is two minutes ahead is told the time by the server, and
// says so in its log; its writes are carried out.
func TestClockThatIsAheadIsCorrected(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	clock := hlc.NewClock("fast", hlc.WithWall(func() uint64 { return uint64(time.Now().Add(2 * time.Minute).UnixMilli()) }))
	c := dial(t, testserver.Shared().Addr, client.WithClock(clock), client.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	k := key(t, "k")
	mustSet(t, c, k, "a")
	stored := mustStore(t, c, k, "b", "m", mustGet(t, c, k).Version)
	if stored.Outcome != client.Stored {
		t.Errorf("Store: %+v", stored)
	}
	if ahead := clock.Ahead(); ahead < time.Minute || ahead > 3*time.Minute {
		t.Errorf("the clock is said to be %v ahead, want about two minutes", ahead)
	}
	_ = c.Close()
	if text := log.String(); strings.Count(text, "clock is ahead of the server's") != 1 {
		t.Errorf("log: %s", text)
	}
}

// Every error text that a request of this client can bring about.
func TestStoreErrors(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--max-keys", "3")
	c := dial(t, s.Addr)
	token := func(ahead time.Duration) hlc.Timestamp {
		return hlc.Timestamp{Wall: uint64(time.Now().Add(ahead).UnixMilli()), Counter: 1, Node: "test"}
	}
	mustSet(t, c, "fenced", "x", client.Fencing(token(0)))
	mustSet(t, c, "k1", "x")
	mustSet(t, c, "k2", "x")

	set := func(c *client.Client, k string, o ...client.SetOption) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Set(ctx, k, []byte("y"), o...)
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
		if isQuota := test.want == client.ErrQuotaExceeded; isQuota != strings.Contains(err.Error(), "--max-keys") {
			t.Errorf("%s: %v", test.name, err)
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

// A request that the server would not read is not sent, and harms no other request.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--max-packet-size", "65536")
	c := dial(t, s.Addr)
	_, err := c.Set(within(t, patience), "k", make([]byte, 65536))
	if !errors.Is(err, client.ErrTooLarge) {
		t.Fatalf("%v, want ErrTooLarge", err)
	}
	mustSet(t, c, "k", strings.Repeat("x", 60_000))
}

// Many goroutines on one connection, each with its own answers.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	ctx := within(t, 2*patience)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := range 40 {
				k, value := key(t, fmt.Sprint(g)), fmt.Sprintf("%d-%d", g, i)
				set, err := c.Set(ctx, k, []byte(value))
				if err != nil {
					t.Errorf("Set: %v", err)
					return
				}
				v, found, err := c.Get(ctx, k)
				if err != nil || !found || string(v.Bytes) != value || v.Version != set.Version {
					t.Errorf("Get: %q %v %v %v, want %q %v", v.Bytes, v.Version, found, err, value, set.Version)
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
	s := testserver.Run(t, "--receive-maximum", "3")
	c := dial(t, s.Addr)
	ctx := within(t, 2*patience)
	var wg sync.WaitGroup
	for g := range 100 {
		wg.Go(func() {
			if _, err := c.Set(ctx, fmt.Sprint(g), nil); err != nil {
				t.Errorf("Set: %v", err)
			}
		})
	}
	wg.Wait()
	mustGet(t, c, "99")
}

// Requests whose callers have given up give their place back.
func TestGivenUpRequestsFreeTheirSlots(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--receive-maximum", "2")
	p := startProxy(t, s.Addr)
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
	p := startProxy(t, testserver.Shared().Addr)
	const timeout = 3 * time.Second // in which a busy machine connects as well
	c := dial(t, p.addr, client.WithTimeout(timeout))
	p.hold()
	short := 30 * time.Millisecond

	if _, _, err := c.Get(within(t, short), key(t, "k")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("Get: %v, want DeadlineExceeded and no unknown outcome", err)
	}
	for d := short; ; d *= 2 { // a busy machine may not send the request within a short time
		value := fmt.Sprint("not answered within ", d)
		_, err := c.Set(within(t, d), key(t, "k"), []byte(value))
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrUnknownOutcome) && p.passed(value) || d > patience {
			t.Fatalf("Set: %v, want DeadlineExceeded and an unknown outcome", err)
		}
		if errors.Is(err, client.ErrUnknownOutcome) {
			break
		}
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
	if took := time.Since(start); took < timeout*9/10 {
		t.Errorf("the client's timeout of %v came after %v", timeout, took)
	}
}

func TestDialFails(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, address string
		want          error
	}{
		{"no server there", "127.0.0.1:1", syscall.ECONNREFUSED},
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
	p := startProxy(t, testserver.Shared().Addr)
	p.refuse(true)
	c, err := client.New(p.addr, client.WithBackoff(time.Millisecond, 20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Set(within(t, 100*time.Millisecond), key(t, "k"), nil)
	if !errors.Is(err, client.ErrNotConnected) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("Set without a server: %v, want ErrNotConnected", err)
	}
	p.refuse(false)
	mustSet(t, c, key(t, "k"), "v")
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--ws", "127.0.0.1:0")
	c := dial(t, "ws://"+s.WebSocket+"/mqtt")
	mustSet(t, c, "k", strings.Repeat("x", 100_000))
	if v := mustGet(t, dial(t, s.Addr), "k"); len(v.Bytes) != 100_000 {
		t.Errorf("read %d bytes, want 100000", len(v.Bytes))
	}
}

// A write after a read is later than what was read, whatever this clock says.
func TestTheClockFollowsTheServer(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Shared().Addr)
	clock := hlc.NewClock("slow", hlc.WithWall(func() uint64 { return uint64(time.Now().Add(-30 * time.Second).UnixMilli()) }))
	slow := dial(t, testserver.Shared().Addr, client.WithClock(clock))
	mustSet(t, c, key(t, "k"), "v")
	seen := mustGet(t, slow, key(t, "k")).Version
	if now := clock.Now(); now.Compare(seen) <= 0 {
		t.Errorf("the clock says %v after it has seen %v", now, seen)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testserver.Shared().Addr)
	c := dial(t, p.addr)
	w, err := c.Watch(context.Background(), key(t, "k"))
	if err != nil {
		t.Fatal(err)
	}
	p.hold()
	failed := make(chan error, 2)
	go func() { _, _, err := c.Get(within(t, patience), key(t, "k")); failed <- err }()
	go func() { _, err := c.Set(within(t, patience), key(t, "k"), nil); failed <- err }()
	eventually(t, "two requests are under way", func() bool { return p.passed("\r\nGET\r\n") && p.passed("\r\nSET\r\n") })

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
	if _, open := <-w.Chan(); open || !errors.Is(w.Err(), client.ErrClosed) {
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
	s := testserver.Run(t)
	p := startProxy(t, s.Addr)
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
