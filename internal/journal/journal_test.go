package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/journal/uptime"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// calling is a Waiter that calls a function.
type calling struct{ f func() }

func (c *calling) Durable(Seq) { c.f() }

func waiterFunc(f func()) Waiter { return &calling{f} }

func mustOpen(t testing.TB, o Options) *Journal {
	t.Helper()
	if o.Dir == "" {
		o.Dir = "data"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Fatal == nil {
		o.Fatal = func(err error) { t.Errorf("commit failed: %v", err) }
	}
	j, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// mustCreate makes a journal, for a test that opens it with little patience: it would be
// lost at once on a machine that takes longer to create one.
func mustCreate(t testing.TB, fs FS) {
	t.Helper()
	mustClose(t, mustOpen(t, Options{FS: fs}))
}

func mustClose(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func put(j *Journal, key, value string, w Waiter) Seq {
	a := j.Begin()
	a.Set([]byte(key), []byte(value))
	return a.End(w)
}

// putAndWait returns when the row is durable and the batch complete.
func putAndWait(j *Journal, key, value string) {
	done := make(chan struct{})
	s := put(j, key, value, waiterFunc(func() { close(done) }))
	<-done
	awaitComplete(j, s)
}

// awaitComplete returns when the batch is complete: its callbacks have returned.
func awaitComplete(j *Journal, s Seq) {
	for {
		called := make(chan struct{})
		if !j.Await(s, waiterFunc(func() { close(called) })) {
			return
		}
		<-called
	}
}

// check is what package backup makes of OpenDamaged and CheckTables.
func check(o Options) (*Journal, []datadir.Damage, error) {
	j, damage, err := OpenDamaged(o)
	if j != nil {
		damage = append(damage, j.CheckTables(func(int64) {})...)
	}
	return j, damage, err
}

func content(t testing.TB, j *Journal) map[string]string {
	t.Helper()
	rows := map[string]string{}
	if err := j.Iterate([]byte("k"), []byte("l"), func(k, v []byte) bool {
		rows[string(k)] = string(v)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestRowsAreThereAfterReopening(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/not/yet/there"
	j := mustOpen(t, Options{Dir: dir})
	putAndWait(j, "ka", "1")
	putAndWait(j, "kb", "2")
	a := j.Begin()
	k, v := a.SetDeferred(2, 3)
	copy(k, "kc")
	copy(v, "333")
	a.Delete([]byte("ka"))
	a.Set([]byte("kx1"), nil)
	a.DeleteRange([]byte("kx"), []byte("ky"))
	a.End(nil)
	mustClose(t, j)

	j = mustOpen(t, Options{Dir: dir})
	defer mustClose(t, j)
	got := content(t, j)
	if len(got) != 2 || got["kb"] != "2" || got["kc"] != "333" {
		t.Errorf("after reopening: %v", got)
	}
	if v, found, err := j.Get([]byte("kb")); string(v) != "2" || !found || err != nil {
		t.Errorf("Get = %q, %v, %v", v, found, err)
	}
	if _, found, err := j.Get([]byte("ka")); found || err != nil {
		t.Errorf("Get of a deleted row = %v, %v", found, err)
	}
}

// Pebble does not put a batch of half a memtable into the memtable, and keeps
// its memory: the batch must not be used again with it.
func TestVeryLargeRows(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir()}
	j := mustOpen(t, o)
	large := func(c string) string { return strings.Repeat(c, 17<<20) }
	for _, c := range []string{"a", "b"} {
		putAndWait(j, "k"+c, large(c))
		putAndWait(j, "ksmall"+c, c)
	}
	mustClose(t, j)
	j = mustOpen(t, o)
	defer mustClose(t, j)
	got := content(t, j)
	for _, c := range []string{"a", "b"} {
		if got["k"+c] != large(c) || got["ksmall"+c] != c {
			t.Errorf("%s: %d bytes came back, and %q", c, len(got["k"+c]), got["ksmall"+c])
		}
	}
}

func TestIterateStopsAndKeepsItsView(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem()})
	defer mustClose(t, j)
	for _, k := range []string{"k1", "k2", "k3", "k4"} {
		putAndWait(j, k, "old")
	}
	var seen []string
	err := j.Iterate([]byte("k"), []byte("l"), func(k, v []byte) bool {
		if len(seen) == 0 {
			putAndWait(j, "k2", "new")
		}
		seen = append(seen, string(k)+"="+string(v))
		return len(seen) < 3
	})
	if err != nil || fmt.Sprint(seen) != "[k1=old k2=old k3=old]" {
		t.Errorf("seen %v, %v", seen, err)
	}
}

func TestNothingIsCalledBeforeTheSync(t *testing.T) {
	t.Parallel()
	d := journaltest.NewDisk(vfs.NewMem())
	j := mustOpen(t, Options{FS: d})
	defer mustClose(t, j)

	// Given a disk that does not answer, when rows are appended and awaited
	d.Hold()
	var calls atomic.Int32
	count := waiterFunc(func() { calls.Add(1) })
	s := put(j, "k1", "v", count)
	if !j.Await(s, count) {
		t.Error("Await says that an unsynced batch is complete")
	}
	d.AwaitSync()

	// then readers don't see them, and no waiter is called
	if got := content(t, j); len(got) != 0 {
		t.Errorf("before the sync there is %v", got)
	}
	if j.Complete() >= s || calls.Load() != 0 {
		t.Errorf("complete %d, %d calls, before the sync of batch %d", j.Complete(), calls.Load(), s)
	}

	// and once the disk answers, all waiters are.
	d.Release(nil)
	awaitComplete(j, s)
	if got := content(t, j)["k1"]; calls.Load() != 2 || got != "v" {
		t.Errorf("%d calls after the sync, want 2; k1 = %q", calls.Load(), got)
	}
	if j.Await(s, count) || calls.Load() != 2 {
		t.Error("Await of a complete batch must return false and not call")
	}
}

func TestCallbacksComeInOrder(t *testing.T) {
	t.Parallel()
	d := journaltest.NewDisk(vfs.NewMem())
	var idle atomic.Int32
	j := mustOpen(t, Options{FS: d, Idle: func() { idle.Add(1) }})
	d.Hold()

	// Given several batches, each with several waiters, some late
	type at struct {
		seq   Seq
		index int
	}
	var want, got []at // got belongs to the committer until Close
	next := map[Seq]int{}
	add := func(await Seq) Seq {
		var me at
		w := waiterFunc(func() { got = append(got, me) })
		if await != 0 {
			me = at{await, next[await]}
			j.Await(await, w)
		} else {
			a := j.Begin()
			me = at{a.Seq(), next[a.Seq()]}
			a.Set([]byte("k"), nil)
			a.End(w)
		}
		next[me.seq]++
		want = append(want, me)
		return me.seq
	}
	for range 2 {
		for range 3 {
			add(0)
		}
		if len(next) <= 1 {
			d.AwaitSync()
		}
	}
	for s := Seq(1); s <= j.Last(); s++ {
		add(s)
	}
	d.Release(nil)
	mustClose(t, j)

	// then they are called by batch, and within one as they registered.
	seen := map[Seq]int{}
	var last Seq
	for _, g := range got {
		if g.seq < last || g.index != seen[g.seq] {
			t.Fatalf("order of calls: %v", got)
		}
		last = g.seq
		seen[g.seq]++
	}
	if len(got) != len(want) {
		t.Errorf("%d calls, want %d", len(got), len(want))
	}
	if idle.Load() != int32(len(next)) {
		t.Errorf("Idle was called %d times for %d batches", idle.Load(), len(next))
	}
}

// An answer of false must mean that every callback of that batch has returned,
// however late its waiter came.
func TestAwaitAgainstComplete(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem()})
	const writers, rounds = 8, 300
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range rounds {
				var registered, called atomic.Int32
				w := waiterFunc(func() { called.Add(1) })
				registered.Add(1)
				s := put(j, "k", "v", w)
				for range 20 {
					registered.Add(1)
					if !j.Await(s, w) {
						registered.Add(-1)
						break
					}
					runtime.Gosched()
				}
				awaitComplete(j, s)
				if called.Load() != registered.Load() {
					t.Errorf("batch %d is complete, %d of %d callbacks have run", s, called.Load(), registered.Load())
				}
				if j.Complete() < s {
					t.Errorf("Await said that batch %d is complete, Complete says %d", s, j.Complete())
				}
			}
		})
	}
	wg.Wait()
	mustClose(t, j)
}

// However many come late, the batch completes: Admit holds them up meanwhile.
func TestLateWaitersAreHeldUpAfterAFewRounds(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem()})
	defer mustClose(t, j)
	var heldUp []bool
	var s Seq
	var again Waiter
	again = waiterFunc(func() {
		heldUp = append(heldUp, j.slow.Load())
		if len(heldUp) < patientRounds+4 {
			j.Await(s, again)
		}
	})
	a := j.Begin()
	s = a.Seq()
	a.Set([]byte("k"), nil)
	a.End(again)
	awaitComplete(j, s)
	j.Admit() // goes through again
	for round, got := range heldUp {
		if want := round > patientRounds; got != want {
			t.Errorf("round %d: held up %v, want %v", round, got, want)
		}
	}
}

func TestCallbackMayAppendAndAwait(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem()})
	defer mustClose(t, j)
	done := make(chan struct{})
	var first Seq
	a := j.Begin()
	a.Set([]byte("k1"), nil)
	first = a.Seq()
	a.End(waiterFunc(func() {
		if !j.Await(first, waiterFunc(func() { put(j, "k2", "", waiterFunc(func() { close(done) })) })) {
			t.Error("the batch must not be complete while its callbacks run")
		}
	}))
	<-done
	if got := content(t, j); len(got) != 2 {
		t.Errorf("rows: %v", got)
	}
}

func TestCrashKeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 0))
			fs := vfs.NewCrashableMem()
			for range 4 { // each life begins with what the last crash left
				fs = liveAndCrash(t, fs, rng)
			}
		})
	}
}

// liveAndCrash writes to a journal from several goroutines, takes the machine's
// power at some point, and checks what is left: every acknowledged pair of
// rows, and no half of any pair.
func liveAndCrash(t *testing.T, fs *vfs.MemFS, rng *rand.Rand) *vfs.MemFS {
	const writers = 4
	j := mustOpen(t, Options{FS: fs})
	var power sync.RWMutex // read-held while an acknowledgement is noted
	var off bool
	var acked [writers]uint64
	crashAfter := uint64(rng.IntN(300))
	var total atomic.Uint64
	crash := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for id := range writers {
		wg.Go(func() {
			for n := uint64(1); ; n++ {
				durable := make(chan struct{})
				a := j.Begin()
				for _, row := range []string{"a", "b"} {
					a.Set(fmt.Appendf(nil, "k%d%s", id, row), binary.BigEndian.AppendUint64(nil, n))
				}
				a.End(waiterFunc(func() { close(durable) }))
				<-durable
				power.RLock()
				if off {
					power.RUnlock()
					return
				}
				acked[id] = n
				power.RUnlock()
				if total.Add(1) > crashAfter {
					once.Do(func() { close(crash) })
				}
			}
		})
	}
	<-crash
	power.Lock()
	off = true
	left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	power.Unlock()
	wg.Wait()
	mustClose(t, j)

	j = mustOpen(t, Options{FS: left})
	defer mustClose(t, j)
	for id := range writers {
		a, _, _ := j.Get(fmt.Appendf(nil, "k%da", id))
		b, _, _ := j.Get(fmt.Appendf(nil, "k%db", id))
		if string(a) != string(b) {
			t.Errorf("writer %d: a pair of rows was torn: %x and %x", id, a, b)
		}
		if len(a) == 8 && binary.BigEndian.Uint64(a) < acked[id] || a == nil && acked[id] > 0 {
			t.Errorf("writer %d: row %d was acknowledged, found %x", id, acked[id], a)
		}
	}
	return left
}

func TestFailedSyncIsFatalOnceAndSilent(t *testing.T) {
	t.Parallel()
	d := journaltest.NewDisk(vfs.NewMem())
	fatal := make(chan error, 10)
	j := mustOpen(t, Options{FS: d, Fatal: func(err error) { fatal <- err }})
	d.Hold()
	var calls atomic.Int32
	count := waiterFunc(func() { calls.Add(1) })
	j.Await(put(j, "k", "v", count), count)
	d.AwaitSync()
	put(j, "k", "v", count)
	d.Release(errors.New("input/output error"))

	err := <-fatal
	if !strings.Contains(err.Error(), "input/output error") || !strings.Contains(err.Error(), "journal data") {
		t.Errorf("Fatal(%v)", err)
	}
	if got := j.Close(); !errors.Is(got, err) {
		t.Errorf("Close = %v, want what Fatal got", got)
	}
	if calls.Load() != 0 || j.Complete() != 0 || len(fatal) != 0 {
		t.Errorf("after the failure: %d callbacks, complete %d, %d more calls of Fatal", calls.Load(), j.Complete(), len(fatal))
	}
	j.Admit()       // neither of them
	j.WaitDurable() // hangs
}

func TestWatchdogGivesUpOnAHangingDisk(t *testing.T) {
	t.Parallel()
	d := journaltest.NewDisk(vfs.NewMem())
	mustCreate(t, d)
	fatal := make(chan error, 10)
	j := mustOpen(t, Options{
		FS:            d,
		Fatal:         func(err error) { fatal <- err },
		CommitTimeout: 20 * time.Millisecond,
	})
	d.Hold()
	cause := errors.New("no space left on device")
	j.backgroundError(cause)
	put(j, "k", "v", waiterFunc(func() { t.Error("called back after the journal gave up") }))
	err := <-fatal
	if !strings.Contains(err.Error(), "has not reached the disk within 20ms") || !errors.Is(err, cause) {
		t.Errorf("Fatal(%v)", err)
	}
	d.Release(nil)
	if err := j.Close(); err == nil {
		t.Error("Close of a failed journal returned nil")
	}
}

// What hangs is named, also when no batch is complete yet.
func TestWhatIsStuck(t *testing.T) {
	t.Parallel()
	now := time.Hour
	began := now - time.Minute
	at := func(t time.Duration) *uptime.Clock { return uptime.NewOf(func() time.Duration { return t }) }
	for _, c := range []struct {
		name string
		set  func(j *Journal)
		want string // empty: nothing is stuck
	}{
		{"nothing", func(*Journal) {}, ""},
		{"a write", func(j *Journal) { j.sealed = &batch{seq: 1, sealed: began} }, "batch 1 has not reached the disk"},
		{"a write that has just begun", func(j *Journal) { j.sealed = &batch{seq: 1, sealed: now} }, ""},
		{"callbacks", func(j *Journal) { j.sealed, j.durable = &batch{seq: 1, sealed: began}, 1 }, "callbacks of batch 1"},
		{"the committer, for Pebble", func(j *Journal) { j.sealed, j.waitsForPebble = &batch{seq: 1, sealed: began}, true }, "tables have not reached the disk"},
		{"rows for a reader", func(j *Journal) { j.giving.Begin(at(began)) }, "tables have not reached the disk"},
		{"an fsync at the interval", func(j *Journal) { j.syncing.Begin(at(began)) }, "the log has not reached the disk"},
		{"a write, while rows have just been given", func(j *Journal) {
			j.sealed = &batch{seq: 1, sealed: began}
			j.giving.Begin(at(now))
		}, "batch 1 has not reached the disk"},
		{"a write to a log that waits for other machines", func(j *Journal) {
			j.sealed = &batch{seq: 1, sealed: began}
			j.o.Log = func(LogOptions) (Log, error) { return nil, nil }
		}, ""},
	} {
		j := &Journal{}
		c.set(j)
		if err := j.stuck(now, time.Second); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestAdmitBlocksWhileTheBatchIsTooLarge(t *testing.T) {
	t.Parallel()
	d := journaltest.NewDisk(vfs.NewMem())
	j := mustOpen(t, Options{FS: d, BatchBytes: 1000})
	defer mustClose(t, j)
	d.Hold()
	put(j, "k", "v", nil)
	d.AwaitSync()
	j.Admit() // a small batch is filling: goes through
	put(j, "k", strings.Repeat("x", 2000), nil)

	// The large batch can only be sealed once an earlier one is complete.
	completeThen := make(chan Seq)
	asking := make(chan struct{})
	go func() {
		close(asking)
		j.Admit()
		completeThen <- j.Complete()
	}()
	<-asking
	for range 100 {
		runtime.Gosched() // lets it ask before the disk answers; nothing depends on it
	}
	d.Release(nil)
	if s := <-completeThen; s == 0 {
		t.Error("Admit let a writer through while the batch was over its bound")
	}
}

func TestCloseDrains(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	d := journaltest.NewDisk(fs)
	j := mustOpen(t, Options{FS: d})
	d.Hold()
	var calls atomic.Int32
	for i := range 10 {
		put(j, fmt.Sprint("k", i), "v", waiterFunc(func() {
			calls.Add(1)
			j.Await(j.Last(), waiterFunc(func() { calls.Add(1) }))
		}))
		if i < 1 {
			d.AwaitSync()
		}
	}
	closed := make(chan error)
	go func() { closed <- j.Close() }()
	d.Release(nil)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if calls.Load() < 10 {
		t.Errorf("%d of 10 callbacks have run when Close returned", calls.Load())
	}

	// What comes after Close is dropped and not acknowledged.
	never := waiterFunc(func() { t.Error("acknowledged after Close") })
	s := put(j, "klate", "v", never)
	if !j.Await(s, never) {
		t.Error("Await says that a dropped append is durable")
	}
	j.Admit()
	if err := j.Iterate(nil, nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Iterate after Close: %v", err)
	}
	if err := j.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v", err)
	}

	j = mustOpen(t, Options{FS: fs})
	defer mustClose(t, j)
	if got := content(t, j); len(got) != 10 {
		t.Errorf("%d rows after reopening, want 10", len(got))
	}
}

// The committer may wait for the applier to take rows after Close was called, too.
func TestCloseKeepsTheApplierUntilTheEnd(t *testing.T) {
	t.Parallel()
	d := journaltest.NewDisk(vfs.NewMem())
	j := mustOpen(t, Options{FS: d})
	d.Hold()
	put(j, "k1", strings.Repeat("v", maxPendingBytes+1), nil)
	d.AwaitSync()
	put(j, "k2", "waits until k1 is in Pebble", nil)
	closed := make(chan error)
	go func() { closed <- j.Close() }()
	<-j.ending.Done()
	for range 20 {
		select {
		case j.toApply <- struct{}{}: // it still listens
		case <-j.failed:
			t.Fatal("the applier has ended before the committer")
		}
	}
	d.Release(nil)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem()})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := put(j, "k", "v", waiterFunc(func() {}))
				j.Await(s, waiterFunc(func() {}))
				j.Admit()
				_ = j.Iterate(nil, nil, func(k, v []byte) bool { return true })
			}
		})
	}
	putAndWait(j, "kx", "v")
	mustClose(t, j)
	close(stop)
	wg.Wait()
}

func TestMetaTravelsWithItsBatch(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	var version atomic.Int64
	meta := func(dst []byte, _ Seq) []byte { return fmt.Appendf(dst, "version %d", version.Load()) }
	j := mustOpen(t, Options{FS: fs, Meta: meta})
	if j.Meta() != nil {
		t.Errorf("a new journal has meta %q", j.Meta())
	}
	version.Store(7)
	putAndWait(j, "k", "v")
	version.Store(8) // no batch carries this one
	left := fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, j)

	// An owner that comes later does not lose it, and replaces it from then on.
	j = mustOpen(t, Options{FS: left})
	if string(j.Meta()) != "version 7" {
		t.Errorf("recovered %q", j.Meta())
	}
	putAndWait(j, "k", "v")
	mustClose(t, j)
	j = mustOpen(t, Options{FS: left})
	if string(j.Meta()) != "version 7" {
		t.Errorf("recovered %q after batches without Meta", j.Meta())
	}
	j.SetMeta(meta)
	putAndWait(j, "k", "v")
	mustClose(t, j)
	j = mustOpen(t, Options{FS: left})
	defer mustClose(t, j)
	if string(j.Meta()) != "version 8" {
		t.Errorf("recovered %q after SetMeta", j.Meta())
	}
}

func TestOneProcessAtATime(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"disk": {Dir: t.TempDir()}, "memory": {Dir: "data", FS: vfs.NewMem()}} {
		t.Run(name, func(t *testing.T) {
			j := mustOpen(t, o)
			_, err := Open(o)
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), o.Dir) {
				t.Errorf("second Open: %v", err)
			}
			mustClose(t, j)
			mustClose(t, mustOpen(t, o))
		})
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if _, err := Open(Options{Dir: "data", FS: fs, ReadOnly: true}); !errors.Is(err, ErrForeign) {
		t.Errorf("read-only Open of nothing: %v", err)
	}
	j := mustOpen(t, Options{FS: fs})
	putAndWait(j, "k", "v")
	mustClose(t, j)
	j = mustOpen(t, Options{FS: fs, ReadOnly: true})
	if got := content(t, j); got["k"] != "v" {
		t.Errorf("rows: %v", got)
	}
	mustClose(t, j)
}

func TestDirectoriesThatAreRefused(t *testing.T) {
	t.Parallel()
	ours := func(format string) func(*testing.T, vfs.FS) {
		return func(t *testing.T, fs vfs.FS) {
			mustClose(t, mustOpen(t, Options{FS: fs}))
			edit(t, fs, pebbleFormat, func(db *pebble.DB) error {
				return db.Set(formatKey, []byte(format), pebble.Sync)
			})
		}
	}
	for _, c := range []struct {
		name  string
		given func(*testing.T, vfs.FS)
		want  error
		says  string
	}{
		{"a later format", ours("holdfast 3"), ErrNewerFormat, "use a newer version"},
		{"a format that is no number", ours("holdfast x"), ErrForeign, `"holdfast x"`},
		{"another program's format", ours("cellar 1"), ErrForeign, `"cellar 1"`},
		{"a file", func(t *testing.T, fs vfs.FS) {
			file(t, fs, "data/thesis.doc")
		}, ErrForeign, "choose an empty directory"},
		{"a Pebble database", func(t *testing.T, fs vfs.FS) {
			edit(t, fs, pebbleFormat, func(db *pebble.DB) error { return db.Set([]byte("x"), nil, pebble.Sync) })
		}, ErrForeign, "choose another directory"},
		{"a later Pebble", func(t *testing.T, fs vfs.FS) {
			mustClose(t, mustOpen(t, Options{FS: fs}))
			file(t, fs, "data/marker.format-version.000999.999")
		}, ErrNewerFormat, "newer version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			if err := fs.MkdirAll("data", 0o755); err != nil {
				t.Fatal(err)
			}
			c.given(t, fs)
			_, err := Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler)})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open: %v", err)
			}
			// And the lock is not left behind.
			if _, again := Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler)}); errors.Is(again, ErrLocked) {
				t.Errorf("Open again: %v", again)
			}
		})
	}
}

func TestForeignDatabaseOfAnOlderPebbleIsNotUpgraded(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	edit(t, fs, pebble.FormatMinSupported, func(db *pebble.DB) error { return db.Set([]byte("x"), nil, pebble.Sync) })
	if _, err := Open(Options{Dir: "data", FS: fs}); !errors.Is(err, ErrForeign) {
		t.Errorf("Open: %v", err)
	}
	desc, err := pebble.Peek("data", fs)
	if err != nil || desc.FormatMajorVersion != pebble.FormatMinSupported {
		t.Errorf("its format is now %v, %v", desc, err)
	}
}

func TestEmptyDatabaseIsTakenOver(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem() // what a crash right after creation leaves
	edit(t, fs, pebbleFormat, func(db *pebble.DB) error { return nil })
	mustClose(t, mustOpen(t, Options{FS: fs}))
}

// Raising Pebble raises FormatNewest; whether to follow is a decision about
// every directory in the field, not a side effect of an update.
func TestFormatIsTheNewestOfThePinnedPebble(t *testing.T) {
	t.Parallel()
	if pebbleFormat != pebble.FormatNewest {
		t.Errorf("pinned format %v, newest %v", pebbleFormat, pebble.FormatNewest)
	}
}

func edit(t *testing.T, fs vfs.FS, format pebble.FormatMajorVersion, f func(*pebble.DB) error) {
	t.Helper()
	db, err := pebble.Open("data", &pebble.Options{FS: fs, FormatMajorVersion: format, Logger: pebblefile.Silent{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f(db), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T, fs vfs.FS, name string) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
