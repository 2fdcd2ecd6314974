package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// want gives a command, waits for its reply and checks it.
func (c *client) want(reply, text string) *statestore.Reply {
	c.w.t.Helper()
	r := c.wait(text)
	if got := show(r); got != reply {
		c.w.t.Errorf("%s -> %s, want %s", text, got, reply)
	}
	return r
}

// store is a STORE on the version that the key has.
func (c *client) store(reply, key, state, message, options string) *statestore.Reply {
	c.w.t.Helper()
	version := "-"
	if r := c.wait("LOAD " + key + " no-such-message"); !r.Version.IsZero() {
		version = r.Version.String()
	}
	return c.want(reply, fmt.Sprintf("STORE %s %s %s %s %s", key, state, message, version, options))
}

// rows counts the rows on disk that begin with a prefix.
func (w *world) rows(prefix string) (n int) {
	w.t.Helper()
	w.settle()
	if err := w.j.Iterate([]byte(prefix+"|"), []byte(prefix+"}"), func(_, _ []byte) bool { n++; return true }); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// overlaid counts the messages that are in memory once everything has been applied.
func (w *world) overlaid() (n int) {
	w.rows("r") // a reader has what is durable applied
	w.e.dropApplied(math.MaxInt)
	for i := range w.e.stripes {
		st := &w.e.stripes[i]
		n += st.overlay.Len()
	}
	return n
}

// indexed counts the messages that the index has with the deadline of their rows, and those that
// have a row of it for nothing.
func (w *world) indexed() (n int) {
	w.t.Helper()
	all, _, err := rows.ReadIndex(w.j, []byte(rows.IndexPrefix), []byte(rows.AfterIndex), math.MaxInt, math.MaxInt)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, x := range all {
		for _, name := range x.Names {
			value, _, err := w.j.Probe(nil, append([]byte(rows.MemoPrefix), name...))
			if err != nil {
				w.t.Fatal(err)
			}
			m, _ := rows.DecodeMemo(value, 0)
			if !x.Shared || m.Shared && m.DiskMs == x.DiskMs {
				n++
			}
		}
	}
	return n
}

// wantRemembered checks the figure, the messages on disk, and that the index has each of them.
func (w *world) wantRemembered(n int) {
	w.t.Helper()
	messages, index := w.rows("r"), w.indexed()
	got := w.e.Stats().Remembered
	if got.Messages != int64(n) || messages != n || index != n {
		w.t.Errorf("%d messages are counted, %d are on disk with %d in the index; want %d", got.Messages, messages, index, n)
	}
	if read, err := rows.CountRemembered(w.j); err != nil || read != got {
		w.t.Errorf("the count says %+v; on disk are %+v, %v", got, read, err)
	}
}

func TestRememberedMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c, other := w.client("c"), w.client("other")
	c.want("0 nil nil", "LOAD k m1")
	first := c.store("OK", "k", "a", "m1", "CTX=captured").Version
	if got := c.want("1 nil captured", "LOAD k m1").Version; got != first {
		t.Errorf("LOAD of a duplicate carries %v, want %v", got, first)
	}
	if got := c.want("0", "STORE k a m1 -").Version; got != first {
		t.Errorf("a repeated STORE carries %v, want the version that it produced, %v", got, first)
	}
	c.store("OK", "k", "b", "m2", "")
	c.want("1 a nil", "LOAD k m2")

	changed := other.wait("SET k by-another-client").Version
	if got := c.want("0 by-another-client nil", "LOAD k m3").Version; got != changed {
		t.Errorf("LOAD after the SET of another client carries %v, want %v", got, changed)
	}
	if got := c.want("conflict", "STORE k c m3 "+first.String()).Version; got != changed {
		t.Errorf("a STORE that came too late carries %v, want %v", got, changed)
	}
	c.want("1", "DONE k m2")
	c.want("0", "DONE k m3")
	c.want("2 nil nil", "LOAD k m2")
	c.want("1 nil captured", "LOAD k m1")
	w.wantRemembered(2)
	if n := w.overlaid(); n != 0 {
		t.Errorf("%d messages are in memory although they are on disk", n)
	}
}

// Protocol, section 8: remembered through restarts and crashes, and also when the
// key is deleted or expires meanwhile.
func TestMessagesOutliveTheKeyAndTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "deleted", "a", "m", "CTX=x")
	c.store("OK", "deleted", "b", "n", "CTX=y")
	c.want("1", "DEL deleted")
	c.store("OK", "expired", "a", "m", "")
	c.want("OK", "SET expired b PX=10")
	c.store("OK", "kept", "a", "m", "")
	c.want("1", "DONE kept m")
	w.clock.advance(10)
	w.e.ExpireDue()
	w.settle()
	for name, again := range map[string]func(){"at once": func() {}, "after a restart": w.restart, "after a crash": w.crash} {
		again()
		c := w.client(name)
		c.want("1 a y", "LOAD deleted n")
		c.want("1 nil x", "LOAD deleted m")
		c.want("0 nil nil", "LOAD deleted o")
		c.want("1 nil nil", "LOAD expired m")
		c.want("2 nil nil", "LOAD kept m")
		c.want("0", "STORE deleted b n -")
		w.wantRemembered(4)
	}
}

// STORE with DEL deletes its key, which need not exist, and remembers the message in the
// same batch; DONE leaves a context of its own. Both outlive the process.
func TestStoreThatDeletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "a", "m", "")
	c.do("WATCH k")
	w.settle()
	w.log.take()
	deleted := c.store("OK", "k", "a", "n", "DEL CTX=x").Version
	w.settle()
	if log := w.log.take(); !slices.Contains(log, "c: event k deleted") {
		t.Errorf("no watcher is told of the deletion: %q", log)
	}
	c.want("nil", "GET k")
	if got := c.want("1 a x", "LOAD k n").Version; got != deleted {
		t.Errorf("LOAD carries %v, want the version of the deletion, %v", got, deleted)
	}
	c.store("OK", "never", "a", "m", "DEL")
	c.store("OK", "brief", "a", "m", "PX=10")
	c.want("a", "GET brief")
	c.want("1", "DONE k n CTX=digest")
	w.clock.advance(10)
	c.want("nil", "GET brief")
	w.e.ExpireDue()
	w.settle()
	if n := w.records(); n != 1 {
		t.Errorf("%d records are in memory, want that of the watched key", n)
	}
	if s := w.e.Stats(); s.Keys != 0 || s.Bytes != 0 {
		t.Errorf("%d keys with %d bytes are counted, want none", s.Keys, s.Bytes)
	}
	for _, again := range []func(){w.restart, w.crash} {
		again()
		c := w.client("again")
		c.want("2 nil digest", "LOAD k n")
		c.want("1 nil nil", "LOAD never m")
		c.want("1 nil nil", "LOAD brief m")
		c.want("0 nil nil", "LOAD k o")
		w.wantRemembered(4)
	}
}

// STORE clears PX; its notifications are SET's, in SET's order.
func TestOtherClientsSeeAStoreAsASet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c, other := w.client("c"), w.client("other")
	c.want("OK", "SET k a PX=100")
	c.wait("WATCH k")
	other.wait("WATCH k")
	w.log.take()
	version := w.e.Stats().Last.String()
	c.want("OK", "STORE k b m "+version)
	w.settle()
	w.expect("c: event k = b", "c: STORE k b m "+version+" -> OK", "other: event k = b")
	w.clock.advance(1000)
	w.e.ExpireDue()
	c.want("b", "GET k")
	c.want("OK", "SET k c PX=100")
	w.clock.advance(100)
	w.log.take()
	c.want("OK", "STORE k d m2 -") // the expired key is deleted first
	w.settle()
	w.expect("c: event k deleted", "c: event k = d", "c: STORE k d m2 - -> OK", "other: event k deleted", "other: event k = d")
	c.want("1 nil nil", "LOAD k m2")
}

// No reply shows what could still be lost: neither a STORE's own, nor that of a
// LOAD, STORE or DONE that has found the message in memory only.
func TestMessageRepliesWaitForWhatTheyLookedAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.want("OK", "SET other v")
	w.settle()
	w.disk.Hold()
	var waiting []*answer
	for _, text := range []string{"STORE k a m -", "LOAD k m", "STORE k a m -", "LOAD k new", "DONE k m", "LOAD k m", "STORE k b n -", "DONE k m"} {
		waiting = append(waiting, c.do(text))
	}
	for _, a := range waiting {
		if a.replied() {
			t.Errorf("%s was answered before the disk had it", a.label)
		}
	}
	for _, text := range []string{"LOAD other m", "LOAD missing m"} {
		if a := w.client("d").do(text); !a.replied() {
			t.Errorf("%s waits for what it has not looked at", a.label)
		}
	}
	w.disk.Release(nil)
	for i, want := range []string{"OK", "1 nil nil", "0", "0 a nil", "1", "2 nil nil", "conflict", "1"} {
		<-waiting[i].done
		if got := show(&waiting[i].reply); got != want {
			t.Errorf("%s -> %s, want %s", waiting[i].label, got, want)
		}
	}
	w.wantRemembered(1)
	if n := w.overlaid(); n != 0 {
		t.Errorf("%d messages are still in memory", n)
	}
	if a := c.do("LOAD k m"); !a.replied() || a.waited {
		t.Error("LOAD of what is on disk is not answered at once")
	}
}

// Many STOREs at the same time with one version: exactly one is applied. STOREs of other
// messages are answered that the key has another version, and STOREs of the same message
// with the version that the applied one produced.
func TestStoresRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	for round := range 30 {
		base := "-"
		if round > 0 {
			base = w.client("c").wait("GET k").Version.String()
		}
		var applied, conflicts, repeated atomic.Int64
		versions := make([]string, 12)
		var wg sync.WaitGroup
		for i := range 12 {
			c := w.client("c")
			wg.Go(func() {
				r := c.wait(fmt.Sprintf("STORE k v%d-%d m%d-%d %s", round, i%3, round, i%3, base))
				versions[i] = r.Version.String()
				switch show(r) {
				case "OK":
					applied.Add(1)
				case "conflict":
					conflicts.Add(1)
				case "0":
					repeated.Add(1)
				}
			})
		}
		wg.Wait()
		if applied.Load() != 1 || conflicts.Load() != 8 || repeated.Load() != 3 {
			t.Fatalf("round %d: %d applied, %d too late, %d repeated; want 1, 8, 3", round, applied.Load(), conflicts.Load(), repeated.Load())
		}
		for i := range versions {
			if versions[i] != versions[0] {
				t.Fatalf("round %d: versions %v, want the winner's for all", round, versions)
			}
		}
	}
	w.wantRemembered(30)
}

func TestRememberedMessagesHaveABound(t *testing.T) {
	t.Parallel()
	const first, second = 2*3 + 64, 2*3 + 1 + 64 // k and m1; k, m2 and the value before
	w := newWorld(t, Options{MaxRemembered: first + second})
	c := w.client("c")
	full := statestore.QuotaExceeded.Error()
	c.store("OK", "k", "a", "m1", "KEEP=100")
	c.store("OK", "k", "b", "m2", "")
	c.store(full, "k", "c", "m3", "")
	c.want("b", "GET k")
	c.store("0", "k", "c", "m1", "")
	c.want("1", "DONE k m2")
	c.store(full, "k", "c", "m3", "") // DONE has freed a byte, and m3 counts 71
	c.want("OK", "SET k d")
	w.clock.advance(100)
	c.store("OK", "k", "e", "m1", "KEEP=100") // takes its own place, and the byte
	c.store(full, "k", "f", "m3", "")
	w.clock.advance(100)
	w.e.ForgetDue()
	c.store("OK", "k", "f", "m3", "")
	if s := w.e.Stats(); s.Remembered.Messages != 2 || s.Remembered.Bytes != first+second || s.MaxRemembered != first+second || s.Forgotten != 1 {
		t.Errorf("%+v", s)
	}
	w.wantRemembered(2)
}

func TestDeniedMessageCommandsDoNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	for _, text := range []string{"LOAD k m", "STORE k a m -", "DONE k m"} {
		cmd := parse(t, text, startMs)
		cmd.Denied = true
		a := &answer{c: c, label: text, done: make(chan struct{})}
		c.run(cmd, a)
		<-a.done
		if a.reply.Fault != statestore.NotAuthorized {
			t.Errorf("%s -> %s", text, show(&a.reply))
		}
	}
	w.wantRemembered(0)
}

// Looking up messages has nothing applied to the database, be they new or stored a
// moment ago, and however often they change; and when everything has been applied
// nothing is kept of them.
func TestLookUpsOfMessagesApplyNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	before := w.j.Applied()
	for i := range 100 {
		m := fmt.Sprint("m", i)
		c.want("0 nil nil", fmt.Sprint("LOAD k", i, " ", m))
		c.want("OK", fmt.Sprint("STORE k", i, " a ", m, " -"))
		c.want("1 nil nil", fmt.Sprint("LOAD k", i, " ", m))
		c.want("1", fmt.Sprint("DONE k", i, " ", m))
		c.want("2 nil nil", fmt.Sprint("LOAD k", i, " ", m))
	}
	if got := w.j.Applied(); got != before {
		t.Errorf("batches up to %d were applied", got)
	}
	if n := w.overlaid(); n != 0 || w.j.Applied() == before {
		t.Errorf("%d messages are kept in memory although they were applied", n)
	}
	c.want("2 nil nil", "LOAD k7 m7")
	w.crash()
	w.client("c").want("2 nil nil", "LOAD k7 m7")
}

// A row that cannot be read must not look like a new message.
func TestUnreadableMessageIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.j.Begin()
	a.Set(rows.AppendMemoRow(nil, []byte("k"), []byte("m")), []byte{99})
	a.End(nil)
	w.rows("r") // which has it applied
	c := w.client("c")
	for _, text := range []string{"LOAD k m", "STORE k a m -", "DONE k m"} {
		c.want(statestore.Unreadable.Error(), text)
	}
	c.want("nil", "GET k")
}

// After the journal is closed nothing can be looked up: that is no new message.
func TestLoadAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "a", "m", "")
	e := w.e
	w.stop()
	c.want(statestore.Unreadable.Error(), "LOAD k another")
	if e.ForgetDue() {
		t.Error("there is more to forget")
	}
}

// The power is cut after every single reply of a story, and at random moments of
// what is not yet written. Whatever was replied holds in the next life; and key and
// message are always of one commit.
func TestCrashAtEveryPointOfAStory(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(8, 8))
	w := newWorld(t, Options{})
	c := w.client("c")
	// Message i makes the state i, and captures ci; every third is done.
	const story = 24
	for i := range story {
		if i%5 == 4 {
			c.want("1", "DEL k")
		}
		c.store("OK", "k", fmt.Sprint(i), fmt.Sprint("m", i), fmt.Sprint("CTX=c", i))
		checkCrash(t, w.mem.CrashClone(vfs.CrashCloneCfg{}), i+1, i/3)
		if i%3 == 2 {
			c.want("1", fmt.Sprint("DONE k m", i))
			checkCrash(t, w.mem.CrashClone(vfs.CrashCloneCfg{}), i+1, i/3+1)
		}
		under := c.do(fmt.Sprintf("STORE k under%d u%d -", i, i)) // never applied: the key is there
		checkCrash(t, w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}), i+1, i/3)
		<-under.done
	}
}

// checkCrash opens what the disk has: messages 0 to stored-1 were replied to, and
// the first done of every third of them were confirmed.
func checkCrash(t *testing.T, disk *vfs.MemFS, stored, done int) {
	t.Helper()
	w := &world{t: t, mem: disk, clock: newFakeClock(), log: &logbook{}}
	w.start()
	defer w.stop()
	c := w.client("c")
	for i := range stored {
		before := fmt.Sprint(i - 1)
		if i == 0 || i%5 == 4 {
			before = "nil"
		}
		want := fmt.Sprintf("1 %s c%d", before, i)
		got := show(c.wait(fmt.Sprint("LOAD k m", i)))
		if confirmed := i%3 == 2; confirmed && i/3 < done {
			want = "2 nil nil"
		} else if confirmed && got == "2 nil nil" {
			want = got // DONE was under way
		}
		if got != want {
			t.Errorf("after a crash with %d stored: m%d -> %s, want %s", stored, i, got, want)
		}
	}
	c.want(fmt.Sprint(stored-1), "GET k")
	w.wantRemembered(stored)
}

// Exactly once, through crashes: workers take messages that come twice and in any
// order, LOAD, append the message's ID to the state, STORE, sometimes DONE. The
// power is cut at some moment of every life, and what was under way is tried again
// in the next. In the end every message is in the state of its key once, and the
// state that is remembered for it is the one right before.
func TestExactlyOnceAcrossCrashes(t *testing.T) {
	t.Parallel()
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			exactlyOnce(t, seed)
		})
	}
}

func exactlyOnce(t *testing.T, seed uint64) {
	const keys, messages, lives = 3, 60, 6
	rng := rand.New(rand.NewPCG(seed, 5))
	mem := vfs.NewCrashableMem()
	replied := map[string]string{} // message -> version that a STORE was answered with
	for range lives {
		w := &world{t: t, mem: mem, clock: newFakeClock(), log: &logbook{}}
		w.start()
		mem = processUntilPowerIsCut(w, rng, keys, messages, replied)
		w.stop()
	}
	w := &world{t: t, mem: mem, clock: newFakeClock(), log: &logbook{}}
	w.start()
	defer w.stop()
	c := w.client("c")
	for i := range messages {
		processOnce(c, i%keys, i)
	}
	for k := range keys {
		state := string(c.wait(fmt.Sprint("GET k", k)).Value)
		for i := k; i < messages; i += keys {
			id := fmt.Sprintf("<%d>", i)
			if n := strings.Count(state, id); n != 1 {
				t.Errorf("message %d is %d times in %s", i, n, state)
				continue
			}
			r := c.wait(fmt.Sprintf("LOAD k%d m%d", k, i))
			if version, ok := replied[fmt.Sprint("m", i)]; ok && version != r.Version.String() {
				t.Errorf("message %d was stored with version %s, now it has %v", i, version, r.Version)
			}
			if before, _, _ := strings.Cut(state, id); r.Count == statestore.Duplicate && string(r.Value) != before {
				t.Errorf("before message %d the state was %q, remembered is %q", i, before, r.Value)
			}
		}
	}
	w.wantRemembered(messages)
}

// processOnce is what a consumer does with a message, and returns the version
// that it was told.
func processOnce(c *client, key, i int) string {
	for {
		r := c.wait(fmt.Sprintf("LOAD k%d m%d", key, i))
		if r.Count != statestore.NewMessage {
			return r.Version.String()
		}
		base := "-"
		if !r.Version.IsZero() {
			base = r.Version.String()
		}
		stored := c.wait(fmt.Sprintf("STORE k%d %s<%d> m%d %s CTX=c%d", key, r.Value, i, i, base, i))
		if stored.Kind != statestore.Conflict {
			return stored.Version.String()
		}
	}
}

func processUntilPowerIsCut(w *world, rng *rand.Rand, keys, messages int, replied map[string]string) *vfs.MemFS {
	var mu sync.Mutex
	var off atomic.Bool
	var count atomic.Int64
	cut := make(chan struct{})
	enough := int64(5 + rng.IntN(40))
	var wg sync.WaitGroup
	for range 4 {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 6))
		wg.Go(func() {
			c := w.client("c")
			for !off.Load() {
				i := rng.IntN(messages)
				version := processOnce(c, i%keys, i)
				mu.Lock()
				if !off.Load() {
					replied[fmt.Sprint("m", i)] = version
				}
				mu.Unlock()
				if rng.IntN(3) == 0 {
					c.wait(fmt.Sprintf("DONE k%d m%d", i%keys, i))
				}
				if count.Add(1) == enough {
					close(cut)
				}
			}
		})
	}
	<-cut
	mu.Lock()
	left := w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	off.Store(true)
	mu.Unlock()
	wg.Wait()
	return left
}

// A directory that was written before messages were remembered has no such rows.
func TestDirectoryWithoutRememberedMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.client("c").want("OK", "SET k a")
	w.restart()
	w.wantRemembered(0)
	c := w.client("c")
	c.want("0 a nil", "LOAD k m")
	c.store("OK", "k", "b", "m", "")
	c.want("1 a nil", "LOAD k m")
}

func BenchmarkLoadOfANewMessage(b *testing.B) {
	e := openBench(b, vfs.Default, b.TempDir())
	fillMessages(b, e, 1_000_000)
	s := newCaller(e)
	cmd := parse(b, "LOAD key-1 x", 0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		cmd.Message = fmt.Appendf(cmd.Message[:0], "new-%d", i)
		s.do(cmd)
	}
}

func BenchmarkStore(b *testing.B) {
	e := openBench(b, vfs.Default, b.TempDir())
	b.ReportAllocs()
	fillMessages(b, e, b.N)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "stores/s")
}

// useVersionOfKey has a STORE ask for the version that its key has.
func useVersionOfKey(e *Local, cmd *statestore.Command) {
	sh, hash := e.shard(cmd.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.Get(cmd.Key, hash)
	if cmd.Version.Absent = !r.Live(); r.Live() {
		cmd.Version.At = sh.table.Version(r)
	}
}

// fillMessages stores n messages with 64 bytes of state and 40 of context.
func fillMessages(b *testing.B, e *Local, n int) {
	s := newCaller(e)
	cmd := parse(b, "STORE k v m -", e.clock.WallMs())
	cmd.Value, cmd.Context = make([]byte, 64), make([]byte, 40)
	for i := range n {
		cmd.Key = fmt.Appendf(cmd.Key[:0], "key-%d", i%100_000)
		cmd.Message = fmt.Appendf(cmd.Message[:0], "urn:message/%d", i)
		useVersionOfKey(e, cmd)
		s.do(cmd)
	}
	settle(e)
}

// The counts of remembered messages travel with the rows that they count: whatever a crash
// leaves of what was under way, they are those of the rows.
func TestCountsOfRememberedMessagesSurviveCrashes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 11))
		w := newWorld(t, Options{})
		var clients sync.WaitGroup
		var left *vfs.MemFS
		for i := range 8 {
			c := w.client(fmt.Sprint("c", i))
			clients.Go(func() {
				for n := range 30 {
					c.wait(fmt.Sprintf("STORE k%d-%d v m - KEEP=%d CTX=context", i, n, 1+n%2*1000))
					c.wait(fmt.Sprintf("DONE k%d-%d m CTX=c", i, n))
					switch {
					case i == 0 && n == 20:
						left = w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
					case i == 0 && n%10 == 5:
						w.clock.advance(1)
						w.e.ForgetDue()
					}
				}
			})
		}
		clients.Wait()
		after := &world{t: t, mem: left, clock: newFakeClock(), log: &logbook{}}
		after.start()
		after.wantRemembered(int(after.e.Stats().Remembered.Messages))
		after.stop()
		w.wantRemembered(int(w.e.Stats().Remembered.Messages))
	}
}

// What an earlier version of the program has written has no counts; the start makes them.
func TestMessagesAreCountedThatNoRecordCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "a", "m1", "CTX=context")
	last := c.store("OK", "k", "b", "m2", "").Version
	w.j.SetMeta(func(dst []byte, _ journal.Seq) []byte { return last.Append(append(dst, 1)) })
	w.settle()
	want := w.e.Stats().Remembered
	w.restart()
	if got := w.e.Stats().Remembered; got != want || got.Messages != 2 {
		t.Errorf("%+v are counted, want %+v", got, want)
	}
	w.client("c").wait("SET other v") // writes the record
	w.restart()
	if meta, err := rows.DecodeMeta(w.j.Meta()); err != nil || !meta.Counted || meta.Remembered != want {
		t.Errorf("the record says %+v, %v; want %+v", meta, err, want)
	}
	w.wantRemembered(2)
}
