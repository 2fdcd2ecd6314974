package journal

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// ledger is what a test's rows are: the nth pair that is appended has the number n, and
// pairs are never changed; one row more has the number of the last. So what a crash
// leaves can be judged by itself: it must be the first pairs, whole, without a gap, as
// many as were acknowledged or more, and nothing older over something newer.
type ledger struct {
	appended atomic.Int64
	acked    atomic.Int64
	size     int // of a value
}

func (l *ledger) append(j *Journal, then func()) {
	n := l.appended.Add(1)
	a := j.Begin()
	for _, half := range []string{"a", "b"} {
		a.Set(fmt.Appendf(nil, "k|%06d%s", n, half), l.value(n))
	}
	a.Set([]byte("last"), l.value(n))
	a.End(waiterFunc(func() {
		l.acked.Store(n)
		if then != nil {
			then()
		}
	}))
}

func (l *ledger) value(n int64) []byte {
	return fmt.Appendf(nil, "%0*d", l.size, n)
}

// audit counts the pairs that j has, and says what is wrong with them.
func (l *ledger) audit(t testing.TB, j *Journal) (pairs int64) {
	t.Helper()
	rows := content(t, j)
	pairs = int64(len(rows) / 2)
	for n := int64(1); n <= (int64(len(rows))+1)/2; n++ {
		a, b := rows[fmt.Sprintf("k|%06da", n)], rows[fmt.Sprintf("k|%06db", n)]
		if a != b || a != string(l.value(n)) {
			t.Fatalf("of %d rows, pair %d is %q and %q", len(rows), n, a, b)
		}
	}
	last, _, err := j.Get([]byte("last"))
	if err != nil || pairs > 0 && string(last) != string(l.value(pairs)) {
		t.Fatalf("of %d pairs the last is %q, %v", pairs, last, err)
	}
	return pairs
}

// crash is what the disk held when the power failed, and how many pairs may be on it.
type crash struct {
	left        *vfs.MemFS
	least, most int64
	before      string // the operation that did not come to pass
}

// The power fails before every single step that a journal takes on the disk: while it is
// created, writes, begins segments, has tables written, uses segments again, stops,
// and starts again from what it left.
func TestCrashBeforeEveryStep(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	mem := vfs.NewCrashableMem()
	l := &ledger{size: 40}
	var mu sync.Mutex
	var crashes []crash
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !journaltest.ChangesDisk(op) || !strings.HasPrefix(op.Path, "data") {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		c := crash{least: l.acked.Load(), before: fmt.Sprintf("operation %d on %s", op.Kind, op.Path)}
		c.left = journaltest.PowerOff(mem, len(crashes)%3*50, rng)
		c.most = l.appended.Load()
		crashes = append(crashes, c)
		return nil
	}))
	for range 2 {
		j := mustOpen(t, Options{FS: fs, SegmentBytes: 400})
		for n := range 7 {
			done := make(chan struct{})
			l.append(j, func() { close(done) })
			<-done
			if n == 3 {
				if err := j.Flush(); err != nil {
					t.Fatal(err)
				}
				if err := j.TrimLog(); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustClose(t, j)
	}
	for i, c := range crashes {
		if i%journaltest.Stride() != 0 {
			continue
		}
		j, err := Open(Options{Dir: "data", FS: c.left, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatalf("crash %d, before %s: %v", i, c.before, err)
		}
		if pairs := l.audit(t, j); pairs < c.least || pairs > c.most {
			t.Errorf("crash %d, before %s: %d pairs, want from %d to %d", i, c.before, pairs, c.least, c.most)
		}
		mustClose(t, j)
	}
	t.Logf("%d crashes", len(crashes))
}

// The power fails at some step, again and again, each time on what the last failure
// left, under load. With Sync all that was acknowledged is there; and whatever the
// durability, what is there is the first part of what was written.
func TestCrashAfterCrash(t *testing.T) {
	t.Parallel()
	for _, d := range []Durability{Sync, SyncEvery(MinSyncInterval), NoSync} {
		for seed, size := range []int{40, 300} { // all frames alike, or not: see load
			t.Run(fmt.Sprintf("%s/%d", d, seed), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(uint64(seed), 9))
				l := &ledger{size: size}
				c := crash{left: vfs.NewCrashableMem()}
				for range 5 {
					c = l.liveUntilCrash(t, c, d, rng)
				}
				l.liveUntilCrash(t, c, d, nil)
			})
		}
	}
}

// liveUntilCrash opens what a crash left, looks what it is, and writes until the next
// crash; without an rng it only looks.
func (l *ledger) liveUntilCrash(t *testing.T, c crash, d Durability, rng *rand.Rand) (next crash) {
	t.Helper()
	crashed := make(chan struct{})
	var steps, found atomic.Int64
	found.Store(c.least)
	at, percent := int64(-1), 0
	if rng != nil {
		at, percent = rng.Int64N(250), rng.IntN(3)*50
	}
	fs := errorfs.Wrap(c.left, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if journaltest.ChangesDisk(op) && steps.Add(1) == at+1 {
			next.least, next.before = found.Load(), fmt.Sprintf("operation %d on %s", op.Kind, op.Path)
			if d.KeepsAcknowledged() {
				next.least = max(next.least, l.acked.Load())
			}
			next.left = journaltest.PowerOff(c.left, percent, rng)
			next.most = l.appended.Load()
			close(crashed)
		}
		return nil
	}))
	l.acked.Store(c.least)
	l.appended.Store(c.most)
	j := mustOpen(t, Options{FS: fs, Durability: d, SegmentBytes: 1000})
	defer mustClose(t, j)
	pairs := l.audit(t, j)
	if pairs < c.least || pairs > c.most {
		t.Fatalf("after a crash before %s: %d pairs, want from %d to %d", c.before, pairs, c.least, c.most)
	}
	if rng == nil {
		return next
	}
	l.acked.Store(pairs)
	l.appended.Store(pairs)
	found.Store(pairs)
	l.load(t, j, crashed)
	return next
}

// load appends until the crash has happened, a few pairs at a time.
func (l *ledger) load(t *testing.T, j *Journal, crashed chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-crashed:
			return
		default:
		}
		done := make(chan struct{})
		for range n % 3 {
			l.append(j, nil)
		}
		l.append(j, func() { close(done) })
		<-done
		if n%12 == 11 {
			if err := j.Flush(); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

// The process is killed at some step, and another takes over with what the operating
// system has in memory, several times; then the power fails. What any of them found when
// it started, or acknowledged since, is there.
func TestKillsBeforeACrash(t *testing.T) {
	t.Parallel()
	for _, d := range []Durability{Sync, NoSync} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", d, seed), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, 11))
				mem, l := vfs.NewCrashableMem(), &ledger{size: 40}
				for found := int64(0); l.appended.Load() < 120 && !t.Failed(); {
					found = l.liveUntilKilled(t, mem, d, found, rng)
					least, most := l.acked.Load(), l.appended.Load()
					if !d.KeepsAcknowledged() {
						least = found
					}
					left := mustOpen(t, Options{FS: journaltest.PowerOff(mem, rng.IntN(3)*50, rng)})
					if pairs := l.audit(t, left); pairs < least || pairs > most {
						t.Errorf("%d pairs, want from %d to %d", pairs, least, most)
					}
					mustClose(t, left)
				}
			})
		}
	}
}

// liveUntilKilled takes over from the process that was killed before, and writes until it is killed
// itself: then whatever it is about to do on the disk stays undone. It gives the pairs that
// must survive although they were not acknowledged: those that it found.
func (l *ledger) liveUntilKilled(t *testing.T, mem *vfs.MemFS, d Durability, before int64, rng *rand.Rand) (found int64) {
	t.Helper()
	killed := make(chan struct{})
	var steps atomic.Int64
	at := 1 + rng.Int64N(100) // maybe while it starts
	fs := errorfs.Wrap(survivor{mem}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !journaltest.ChangesDisk(op) {
			return nil
		}
		n := steps.Add(1)
		if n == at {
			close(killed)
		}
		if n >= at {
			select {}
		}
		return nil
	}))
	opened := make(chan *Journal, 1)
	go func() {
		j, err := Open(Options{Dir: "data", FS: fs, Durability: d, CommitTimeout: time.Hour, SegmentBytes: 1000, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Error(err)
		}
		opened <- j
	}()
	var j *Journal
	select {
	case j = <-opened:
	case <-killed:
	}
	if j == nil {
		return before
	}
	found = l.audit(t, j)
	if found < l.acked.Load() || found > l.appended.Load() {
		t.Fatalf("%d pairs, want from %d to %d", found, l.acked.Load(), l.appended.Load())
	}
	l.acked.Store(found)
	l.appended.Store(found)
	for {
		done := make(chan struct{})
		l.append(j, nil)
		l.append(j, func() { close(done) })
		select {
		case <-done:
		case <-killed:
			return found
		}
	}
}

// A directory of version 1 has in Pebble's own log what is not in tables. Taking it over
// loses nothing of that, wherever it is cut off; and looking at it shows it.
func TestCrashWhileADirectoryOfVersion1IsTakenOver(t *testing.T) {
	t.Parallel()
	const pairs = 20
	l := &ledger{size: 40}
	mem := l.version1(t, pairs)

	look, damage, err := check(Options{Dir: "data", FS: mem, Logger: slog.New(slog.DiscardHandler)})
	if err != nil || len(damage) > 0 {
		t.Fatalf("Check: %v, %v", damage, err)
	}
	if got := l.audit(t, look); got != pairs {
		t.Errorf("Check sees %d pairs of %d", got, pairs)
	}
	mustClose(t, look)

	rng := rand.New(rand.NewPCG(5, 6))
	var mu sync.Mutex
	var crashes []crash
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if journaltest.ChangesDisk(op) {
			mu.Lock()
			defer mu.Unlock()
			crashes = append(crashes, crash{left: journaltest.PowerOff(mem, len(crashes)%3*50, rng), before: fmt.Sprintf("operation %d on %s", op.Kind, op.Path)})
		}
		return nil
	}))
	mustClose(t, mustOpen(t, Options{FS: fs}))
	crashes = append(crashes, crash{left: journaltest.PowerOff(mem, 0, rng), before: "the end"})
	for i, c := range crashes {
		j, err := Open(Options{Dir: "data", FS: c.left, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatalf("crash %d, before %s: %v", i, c.before, err)
		}
		if got := l.audit(t, j); got != pairs {
			t.Errorf("crash %d, before %s: %d pairs of %d", i, c.before, got, pairs)
		}
		mustClose(t, j)
	}
	t.Logf("%d crashes", len(crashes))
}

// version1 is what a crash left of a directory of version 1.
func (l *ledger) version1(t *testing.T, pairs int64) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewCrashableMem()
	db, err := pebble.Open("data", &pebble.Options{FS: mem, FormatMajorVersion: pebbleFormat, Logger: pebblefile.Silent{}})
	if err != nil {
		t.Fatal(err)
	}
	set := func(key string, value []byte) {
		if err := db.Set([]byte(key), value, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	set(string(formatKey), []byte("holdfast 1"))
	for n := range pairs {
		set(fmt.Sprintf("k|%06da", n+1), l.value(n+1))
		set(fmt.Sprintf("k|%06db", n+1), l.value(n+1))
		set("last", l.value(n+1))
		if n == pairs/2 {
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return left
}
