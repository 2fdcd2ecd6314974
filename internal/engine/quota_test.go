package engine

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/ahead"
	"github.com/holdfast-mqtt/holdfast/internal/engine/notice"
	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// bound gives a command and returns what it has run into.
func (c *client) bound(text string) statestore.Bound {
	c.w.t.Helper()
	r := c.wait(text)
	if exceeded := r.Kind == statestore.Error && r.Fault == statestore.QuotaExceeded; exceeded != (r.Bound != statestore.NoBound) {
		c.w.t.Errorf("%.100s -> %s with bound %v", text, show(r), r.Bound)
	}
	return r.Bound
}

// wantBounds gives commands and checks what each has run into.
func (c *client) wantBounds(steps ...any) {
	c.w.t.Helper()
	for i := 0; i < len(steps); i += 2 {
		if got := c.bound(steps[i].(string)); got != steps[i+1] {
			c.w.t.Errorf("%s: %.100s has run into %v, want %v", c.name, steps[i], got, steps[i+1])
		}
	}
}

const (
	none = statestore.NoBound
	kib  = 1 << 10
)

func text(n int) string { return strings.Repeat("x", n) }

// A quota error says which quota it is.
func TestQuotaErrorNamesItsBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxKeys: 3, MaxBytes: 100, MaxRemembered: 2*2 + 64, MaxWatches: 2, MaxWatchBytes: watchCost("k") + watchCost("")})
	a := w.client("a")
	a.wantBounds(
		"SET a 1", none, "SET b "+text(90), none,
		"SET b "+text(100), statestore.MaxBytes,
		"STORE c v m -", none,
	)
	a.wantBounds(
		"STORE a v m2 "+a.wait("GET a").Version.String(), statestore.MaxRemembered,
		"SET d v", statestore.MaxKeys,
		"WATCH k", none, "WATCH k", none,
		"WATCH l", statestore.MaxWatchBytes, "STOP k", none, "WATCH l", none,
	)
	b := w.client("b")
	b.wantBounds("WATCH k", none)
	w.e.o.MaxWatches = 1
	b.wantBounds("WATCH l", statestore.MaxWatches)
	w.disk.SetSpace(1<<20, 100<<30)
	w.j.CheckSpace()
	a.wantBounds("SET a 2", statestore.DiskReserve)
}

// A key whose time has come gives its room to the write that needs it, although the
// loop has not got to it.
func TestExpiredKeysMakeRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxKeys: 200, MaxBytes: 200 * 100, MaxClientKeys: 190})
	a, b := w.client("a"), w.client("b")
	for i := range 190 {
		a.wantBounds(fmt.Sprintf("SET k%d v PX=100", i), none)
	}
	a.wantBounds("SET more v", statestore.MaxKeysOfClient)
	w.clock.advance(100)
	a.wantBounds("SET more v", none)
	for i := range 199 {
		b.do(fmt.Sprintf("SET l%d v PX=100", i))
	}
	w.clock.advance(100)
	b.wantBounds("STORE other v m -", none, "SET large "+text(19_000), none)
}

// A key with PX is there for at least as long, also where the clock's reading is not a
// whole millisecond.
func TestKeysNeverExpireEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	clock := &fineClock{fakeClock: w.clock}
	w.e.clock = clock
	a := w.client("a")
	clock.sinceNs.Store(999_999)
	a.do("SET k v PX=10")
	a.do("STORE s v m - KEEP=10")
	clock.sinceNs.Add(10_000_000 - 1)
	w.settle()
	w.log.take()
	a.do("GET k")
	a.do("LOAD s m")
	w.settle()
	w.expect("a: GET k -> v", "a: LOAD s m -> 1 nil nil")
	clock.sinceNs.Add(2)
	a.do("GET k")
	a.do("LOAD s m")
	w.settle()
	w.expect("a: GET k -> nil", "a: LOAD s m -> 0 v nil")
}

// fineClock is a fakeClock with nanoseconds.
type fineClock struct {
	*fakeClock
	sinceNs atomic.Int64
}

func (c *fineClock) SinceStart() time.Duration { return time.Duration(c.sinceNs.Load()) }

// A key belongs to the client that has written it last: its keys and their bytes are
// bounded, whatever becomes of them, and other clients have bounds of their own.
func TestQuotaOfAClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxClientKeys: 3, MaxClientBytes: 100})
	a, b := w.client("a"), w.client("b")
	keys, size := statestore.MaxKeysOfClient, statestore.MaxBytesOfClient
	a.wantBounds("SET a1 v", none, "SET a2 v PX=100", none, "SET a3 v", none, "SET a4 v", keys, "STORE a4 v m -", keys)
	a.wantBounds("SET a1 "+text(92), none, "SET a1 "+text(93), size)
	// What it deletes, and what expires, is not its own any more.
	a.wantBounds("DEL a3", none, "SET a4 v", none, "SET a5 v", keys)
	w.clock.advance(100)
	w.e.ExpireDue()
	a.wantBounds("SET a5 v", none, "SET a6 v", keys)
	// A key that another client overwrites is that client's,
	b.wantBounds("SET b1 v", none, "SET b2 v", none, "SET a1 v", none, "SET a4 v", keys)
	a.wantBounds("SET a6 v", none, "SET a7 v", keys)
	// also where the store does not grow.
	b.wantBounds("DEL b1", none, "SET a6 w", none)
	a.wantBounds("SET a7 "+text(90), none, "SET a8 v", keys)
	// Keys that were loaded at the start have no owner.
	w.restart()
	w.client("a").wantBounds("SET a8 v", none, "SET a9 v", none, "SET a1 v", none, "SET a5 v", keys)
}

// A client that fills the store doesn't lock out those that hold little.
func TestFullStoreHasRoomForOtherClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxKeys: 64})
	a, b := w.client("a"), w.client("b")
	for i := range 64 {
		a.wantBounds(fmt.Sprintf("SET a%d v", i), none)
	}
	a.wantBounds("SET more v", statestore.MaxKeys)
	for i := range 4 {
		b.wantBounds(fmt.Sprintf("SET b%d v", i), none)
	}
	b.wantBounds("SET more v", statestore.MaxKeys) // that is a sixteenth
	w.client("c").wantBounds("SET more v", statestore.MaxKeys)
}

// That the store is full is logged with the client that holds most, and not with each
// write that is refused.
func TestFullStoreNamesTheLargestClient(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	w := newWorld(t, Options{MaxKeys: 3})
	w.e.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	a, b := w.client("a"), w.client("b")
	a.wantBounds("SET a1 v", none)
	b.wantBounds("SET b1 v", none, "SET b2 v", none)
	for range 3 {
		a.wantBounds("SET a2 v", statestore.MaxKeys)
	}
	if n := strings.Count(log.String(), "the store is full"); n != 1 || !strings.Contains(log.String(), "setting=max-keys") || !strings.Contains(log.String(), "client=b client_keys=2") {
		t.Errorf("log:\n%s", log.String())
	}
	w.clock.advance(notice.Again.Milliseconds() + 1)
	a.wantBounds("SET a2 v", statestore.MaxKeys)
	if n := strings.Count(log.String(), "the store is full"); n != 2 {
		t.Errorf("%d lines after a minute, want 2", n)
	}
}

// Remembered messages: a warning from four fifths of the bound on, and at the bound what it
// means, each of them once a minute.
func TestRememberedMessagesNearTheirBound(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	w := newWorld(t, Options{MaxRemembered: 10 * (2*3 + 64)})
	w.e.Close() // it looks by itself; here the test does
	w.e.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c := w.client("c")
	said := func(text string, want int) {
		t.Helper()
		w.e.ForgetDue()
		if n := strings.Count(log.String(), text); n != want {
			t.Errorf("%d lines say %q, want %d; log:\n%s", n, text, want, log.String())
		}
	}
	for i := range 7 {
		c.store("OK", fmt.Sprint("k", i), "v", "m", "")
	}
	said("come near their bound", 0)
	c.store("OK", "k7", "v", "m", "")
	said("come near their bound", 1)
	said("come near their bound", 1)
	c.store("OK", "k8", "v", "m", "")
	c.store("OK", "k9", "v", "m", "")
	said("is full of remembered messages", 0)
	c.wantBounds("STORE kk v m -", statestore.MaxRemembered)
	said("is full of remembered messages", 1)
	w.clock.advance(notice.Again.Milliseconds() + 1)
	said("come near their bound", 2)
}

// Nothing is kept of a client that holds no key and is gone.
func TestOwnersAreForgotten(t *testing.T) {
	t.Parallel()
	pool := memory.NewPool(1 << 30)
	w := newWorld(t, Options{Memory: pool})
	before := pool.UsedBy(memory.Keys)
	for i := range 10 {
		c := w.client(fmt.Sprintf("c%d", i))
		c.wait(fmt.Sprintf("SET k%d v", i))
		if i%2 == 0 {
			c.wait(fmt.Sprintf("DEL k%d", i))
		}
		c.Close()
		c.Close()
	}
	a := w.client("a")
	for i := range 10 {
		if i%4 == 1 {
			a.wait(fmt.Sprintf("DEL k%d", i)) // 1, 5, 9
		}
	}
	a.Close()
	w.e.mu.Lock()
	owners, numbers := w.e.quota.Owners()
	w.e.mu.Unlock()
	if owners != 2 || numbers > 7 {
		t.Errorf("%d owners of %d numbers, want those of k3 and k7", owners, numbers)
	}
	w.client("b").wait("DEL k3")
	w.client("b").wait("DEL k7")
	w.settle()
	if after := pool.UsedBy(memory.Keys); after > before+64*(64<<10) {
		t.Errorf("%d bytes of keys are charged, %d before", after, before)
	}
}

// The memory of the process bounds keys and watches. At the bound what grows is
// refused, and everything else goes on.
func TestMemoryBoundsTheStore(t *testing.T) {
	t.Parallel()
	pool := memory.NewPool(16 << 20) // 12 MiB for state
	w := newWorld(t, Options{Memory: pool})
	a := w.client("a")
	n := 0
	for ; a.bound(fmt.Sprintf("SET large%d %s", n, text(256*kib))) == none; n++ {
	}
	if n < 20 || n > 48 {
		t.Errorf("%d values of 256 KiB fit into 12 MiB", n)
	}
	a.wantBounds(
		"SET large0 "+text(256*kib), none, // doesn't grow
		"SET large0 "+text(512*kib), statestore.MaxMemory,
		"STORE new "+text(256*kib)+" m -", statestore.MaxMemory,
		"GET large0", none, "DEL large0", none, "DEL large1", none,
		"SET large0 "+text(256*kib), none,
	)
	for i := range n {
		a.wait(fmt.Sprintf("DEL large%d", i))
	}
	w.settle()
	small := pool.UsedBy(memory.Keys)
	a.wantBounds("SET large0 "+text(256*kib), none)
	a.wait("DEL large0")
	w.settle()
	if after := pool.UsedBy(memory.Keys); after != small {
		t.Errorf("%d bytes are charged for keys, %d before one came and went", after, small)
	}

	// Small records are charged by their chunks.
	for n = 0; a.bound(fmt.Sprintf("SET small%d %s", n, text(12*kib))) == none; n++ {
		if n > kib {
			t.Fatal("more than 12 MiB of small records are accepted")
		}
	}
	used := pool.Used()
	if used < 11<<20 || used > 13<<20 {
		t.Errorf("%d bytes are charged at the bound of 12 MiB", used)
	}
	// Watches too; there is room for nothing now.
	watched := strings.Repeat("w", 32*kib)
	if got := a.bound("WATCH " + watched); got != statestore.MaxMemory {
		t.Errorf("a watch has run into %v", got)
	}
	for i := range n {
		a.do(fmt.Sprintf("DEL small%d", i))
	}
	w.settle()
	a.wantBounds("WATCH "+watched, none)
	if got := pool.UsedBy(memory.Watches); got != watchCost(watched) {
		t.Errorf("%d bytes are charged for a watch, want %d", got, watchCost(watched))
	}
	a.wantBounds("STOP "+watched, none, "WATCH "+watched, none)
	a.Close()
	a.Close()
	if got := pool.UsedBy(memory.Watches); got != 0 {
		t.Errorf("%d bytes are charged for watches that are gone", got)
	}
	// What is remembered is charged until the disk has it.
	b := w.client("b")
	b.wantBounds("STORE k v m - CTX="+text(kib), none)
	w.overlaid()
	if got := pool.UsedBy(memory.Remembered); got != 0 {
		t.Errorf("%d bytes are charged for a message that is on disk", got)
	}
}

// Who puts the versions ahead of the clock is named, once; and with the first write
// after the clock has caught up they are back at it.
func TestVersionsAheadOfTheClock(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	w := newWorld(t, Options{})
	w.e.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	var said ahead.Warnings
	fast, other := w.client("fast"), w.client("other")
	set := func(c *client, aheadMs int64) statestore.Reply {
		a := &answer{c: c, label: "SET", done: make(chan struct{})}
		c.run(parse(t, "SET k v", startMs+w.clock.sinceMs.Load()+aheadMs), a)
		<-a.done
		w.e.warnOfClock(&said)
		return a.reply
	}
	set(fast, 59_900)
	set(other, 0)
	set(fast, 59_950)
	if s := w.e.Stats(); s.AheadBy != "fast" || s.AheadMs != 59_950 {
		t.Errorf("ahead by %d ms because of %q", s.AheadMs, s.AheadBy)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "client=fast") {
		t.Errorf("log:\n%s", log.String())
	}
	w.clock.advance(59_951)
	if got := set(other, -1000); got.Version.Wall != startMs+59_951 || got.Version.Counter != 1 {
		t.Errorf("got version %v, want the clock's", got.Version)
	}
	if s := w.e.Stats(); s.AheadBy != "" || s.AheadMs != 0 {
		t.Errorf("ahead by %d ms because of %q", s.AheadMs, s.AheadBy)
	}
}

// A record whose token alone is larger than a slot may be is kept like any other: the
// shard's lock is held while it is written.
func TestTokenLargerThanASlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("a")
	node := strings.Repeat("n", 17_000)
	for _, value := range []string{"v", strings.Repeat("v", table.MaxSlot)} {
		cmd := parse(t, "SET k "+value+" PX=1000", startMs)
		cmd.Token = statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: startMs, Counter: 1, Node: node}}
		a := &answer{c: c, label: "SET", done: make(chan struct{})}
		c.run(cmd, a)
		<-a.done
		w.log.take()
		if got := c.wait("GET k"); string(got.Value) != value {
			t.Fatalf("got a value of %d bytes, want %d", len(got.Value), len(value))
		}
		w.log.take()
		c.wait("SET k w")
		w.expect("a: SET k w -> " + statestore.TokenRequired.Error())
	}
	w.restart()
	w.log.take()
	w.client("a").wait("DEL k")
	w.expect("a: DEL k -> " + statestore.TokenRequired.Error())
}

// A client that connects again has the keys that it had: its first write on the new
// connection is judged like any other.
func TestQuotaOfAClientHoldsOnANewConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxKeys: 320, MaxClientKeys: 30})
	first := w.client("a")
	for i := range 30 {
		first.wantBounds(fmt.Sprintf("SET k%d v", i), none)
	}
	first.wantBounds("SET more v", statestore.MaxKeysOfClient)
	first.Close()
	for i := range 3 {
		again := w.client("a")
		again.wantBounds(fmt.Sprintf("SET more%d v", i), statestore.MaxKeysOfClient, "SET k1 w", none, "SET more v", statestore.MaxKeysOfClient)
		again.Close()
	}
}

// Without a setting the bound of remembered messages is a quarter of what the disk has free
// and they have already; another one is in force at once, and the default again without one.
func TestBoundOfRememberedMessagesFollowsTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	if got, want := w.e.Stats().MaxRemembered, int64(8<<30); got != want { // a file system in memory has no size
		t.Errorf("%d bytes, want %d", got, want)
	}
	c := w.client("c")
	c.store("OK", "k", "a", "m", "CTX="+text(1000))
	w.disk.SetSpace(40<<30, 100<<30)
	w.j.CheckSpace()
	const fitted = (40<<30 - 256<<20 + 1000 + 2*2 + 64) / 4
	if got := w.e.quota.FitRemembered(w.j.Free()); got != fitted {
		t.Errorf("%d bytes on a disk with 40 GiB free, want %d", got, int64(fitted))
	}
	w.e.fitted = fitted
	w.e.SetBounds(quota.Limits{Keys: 10, Bytes: 1 << 20, Remembered: 100})
	c.wantBounds("STORE l v m -", statestore.MaxRemembered, "SET l v", none)
	w.e.SetBounds(quota.Limits{Keys: 10, Bytes: 1 << 20})
	c.wantBounds("STORE n v m -", none)
	if got := w.e.Stats().MaxRemembered; got != fitted {
		t.Errorf("the bound is %d again, want %d", got, int64(fitted))
	}
}
