package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// sectorBytes is what a disk writes as a whole, or not at all.
const sectorBytes = 512

// unsynced is a directory with a log, and what its last segment held before and after a
// write that was not synced: there was a frame much like it, of an older batch, as the segment
// was used before.
func unsynced(t *testing.T) (files tree, name string, before, after []byte, rows map[string]string) {
	t.Helper()
	value := func(n int) string { return fmt.Sprintf("%0700d%0700d%0700d", n, n, n) } // in several sectors
	mem := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: mem})
	rows = map[string]string{}
	for n := range 5 {
		key := fmt.Sprintf("k%04d", n)
		putAndWait(j, key, value(n))
		rows[key] = value(n)
	}
	mask, err := wal.ReadMask(j.db)
	if err != nil {
		t.Fatal(err)
	}
	last := lastNumber(j)
	files = journaltest.ReadTree(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	mustClose(t, j)
	name = lastLog(t, files)
	before, after = bytes.Clone(files[name]), bytes.Clone(files[name])
	ends := frameEnds(before)
	end := ends[len(ends)-1]
	copy(before[end:], mask.AppendFrame(nil, 1, 0, journaltest.Row("k0006", value(6))))
	copy(after[end:], mask.AppendFrame(nil, last+1, last, journaltest.Row("k0006", value(7)))) // each number differs in a bit
	return files, name, before, after, rows
}

// Of the last write a power cut leaves any sectors, also all but one whose old content
// differs in a single bit. The start goes on, with that batch or without it, and whatever
// it goes on with stays.
func TestEverySectorOfTheLastWrite(t *testing.T) {
	t.Parallel()
	files, name, before, after, rows := unsynced(t)
	var changed []int // the sectors that were being written
	for at := 0; at < len(after); at += sectorBytes {
		if !bytes.Equal(before[at:at+sectorBytes], after[at:at+sectorBytes]) {
			changed = append(changed, at)
		}
	}
	if len(changed) < 3 {
		t.Fatalf("%d sectors were being written", len(changed))
	}
	mended := 0
	for written := range 1 << len(changed) {
		torn := bytes.Clone(before)
		for i, at := range changed {
			if written&(1<<i) != 0 {
				copy(torn[at:at+sectorBytes], after[at:at+sectorBytes])
			}
		}
		got, err := openTree(t, files.But(name, torn))
		if all := 1<<len(changed) - 1; written != all && len(got) > len(rows) {
			mended++
		}
		if err != nil || len(got) < len(rows) || len(got) > len(rows)+1 {
			t.Fatalf("with the sectors %b of %d: %d rows of %d, %v", written, len(changed), len(got), len(rows), err)
		}
		for key, value := range rows {
			if got[key] != value {
				t.Errorf("with the sectors %b: row %s is %q", written, key, got[key])
			}
		}
	}
	if mended != 3 { // those in which one of the three numbers is old
		t.Errorf("%d torn writes were mended, want 3", mended)
	}
}

// A batch at the end in which one bit is wrong may have been acknowledged: it is mended
// and written again, and stays.
func TestTheLastBatchIsMended(t *testing.T) {
	t.Parallel()
	killed, _, rows := grown(t)
	name := lastLog(t, killed)
	ends := frameEnds(killed[name])
	for bit := ends[len(ends)-2] * 8; bit < ends[len(ends)-1]*8; bit += 61 {
		content := bytes.Clone(killed[name])
		content[bit/8] ^= 1 << (bit % 8)
		fs := killed.But(name, content).Plant(t)

		look, damage, err := check(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler)})
		if err != nil || len(damage) > 0 || len(look.Mended()) != 1 || !strings.Contains(look.Mended()[0].String(), fmt.Sprintf("bit %d of byte %d", bit%8, bit/8)) {
			t.Fatalf("Check: damage %v, mended %v, %v", damage, look.Mended(), err)
		}
		mustClose(t, look)
		for start := range 2 {
			j := mustOpen(t, Options{FS: fs})
			if mended := len(j.Mended()); mended != 1-start {
				t.Errorf("start %d mended %d batches", start, mended)
			}
			got := map[string]string{}
			if err := j.Iterate([]byte("k"), []byte("l"), func(k, v []byte) bool { got[string(k)] = string(v); return true }); err != nil || !sameRows(got, rows) {
				t.Fatalf("bit %d: start %d has %d rows of %d, %v", bit, start, len(got), len(rows), err)
			}
			mustClose(t, j)
		}
	}
}

// A log that is missing, all of it or the newest of it, or that was cut short, is not
// taken for one that ends early.
func TestAMissingLogIsSaid(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	names := segmentsOf(t, files.Plant(t))
	last := names[len(names)-1]
	without := func(names ...string) tree {
		left := files.But("", nil)
		delete(left, "")
		for _, name := range names {
			delete(left, name)
		}
		return left
	}
	fresh := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: fresh})
	new := journaltest.ReadTree(t, fresh.CrashClone(vfs.CrashCloneCfg{}))
	mustClose(t, j)
	delete(new, lastLog(t, new))
	_, stopped, _ := grown(t)
	stoppedLast := usedLog(t, stopped)
	for name, left := range map[string]tree{
		"all of it":                         without(names...),
		"all of a new one":                  new,
		"the newest":                        without(last),
		"the two newest":                    without(names[len(names)-2:]...),
		"the end":                           files.But(last, files[last][:len(written(files[last]))]),
		"the newest, cut to nothing":        files.But(last, nil),
		"the newer half after a clean stop": stopped.But(stoppedLast, stopped[stoppedLast][:len(written(stopped[stoppedLast]))/2]),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := openTree(t, left); !errors.Is(err, ErrDamaged) {
				t.Errorf("a start has %d rows of %d, %v", len(got), rows, err)
			}
			look, damage, err := check(Options{Dir: "data", FS: left.Plant(t), Logger: slog.New(slog.DiscardHandler)})
			if err != nil || len(damage) == 0 {
				t.Fatalf("Check: %v, %v", damage, err)
			}
			mustClose(t, look)
		})
	}
}

// A log that was cut off is not taken for one that ends early, wherever it was cut and
// whatever is in it: after a stop, and after a kill if no batch has more bytes than there are
// ahead.
func TestALogThatWasCutOff(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 20_000, 60_000, 200_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			j := mustOpen(t, Options{FS: mem})
			rows := map[string]string{}
			for n := range 6 {
				rows[fmt.Sprint("k", n)] = strings.Repeat(fmt.Sprint(n), size)
				putAndWait(j, fmt.Sprint("k", n), rows[fmt.Sprint("k", n)])
			}
			killed := journaltest.ReadTree(t, mem.CrashClone(vfs.CrashCloneCfg{}))
			mustClose(t, j)
			stopped := journaltest.ReadTree(t, mem)
			for what, files := range map[string]tree{"a kill": killed, "a stop": stopped} {
				name := lastLog(t, files)
				if what == "a stop" {
					name = usedLog(t, files)
				} else if size > wal.RoomAhead {
					continue
				}
				whole := files[name]
				cuts := frameEnds(whole)
				end := cuts[len(cuts)-1]
				for at := 0; at < end; at += max(1, end/13) {
					cuts = append(cuts, at, at/sectorBytes*sectorBytes)
				}
				for _, at := range cuts {
					got, err := openTree(t, files.But(name, whole[:at]))
					if err != nil && !errors.Is(err, ErrDamaged) || err == nil && !sameRows(got, rows) {
						t.Errorf("cut after %s at byte %d, the last of %d batches ends at %d: %d rows, %v", what, at, len(rows), end, len(got), err)
					}
				}
			}
		})
	}
}

// Where a full disk keeps the log from having room ahead, a crash is no damage.
func TestCrashWithoutRoomAhead(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, wal.Suffix) && op.Offset >= wal.RoomAhead {
			return syscall.ENOSPC
		}
		return nil
	}))
	j := mustOpen(t, Options{FS: fs})
	for n := range 20 {
		key := fmt.Sprintf("k%02d", n)
		putAndWait(j, key, strings.Repeat("v", 1000))
		left := mustOpen(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
		if got := content(t, left); len(got) != n+1 {
			t.Errorf("%d rows of %d", len(got), n+1)
		}
		mustClose(t, left)
	}
	mustClose(t, j)
}

// tornSeeds is how many power cuts TestTornSectors simulates for each durability.
const tornSeeds = 12

// The power fails during writes and fsyncs of the log, and of each sector that was written
// since the last fsync the disk has the old content or the new: any of them. Each life
// begins on what the last one left. With Sync all that was acknowledged is there, and whatever
// the durability, each start succeeds, and what is there is the first part of what was written.
func TestTornSectors(t *testing.T) {
	t.Parallel()
	for _, d := range []Durability{Sync, SyncEvery(MinSyncInterval), NoSync} {
		for seed := range uint64(journaltest.Some(tornSeeds)) {
			t.Run(fmt.Sprintf("%s/%d", d, seed), func(t *testing.T) {
				t.Parallel()
				tornLives(t, d, seed)
			})
		}
	}
}

func tornLives(t *testing.T, d Durability, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 17))
	l := &ledger{size: []int{300, 700, 1500}[seed%3]} // all frames alike: stale ones lie where new ones come
	c := crash{left: vfs.NewCrashableMem()}
	for range 6 {
		c = l.liveUntilTorn(t, c, d, rng)
		if t.Failed() {
			return
		}
	}
}

// liveUntilTorn opens what a power cut left, looks what it is, and writes until the next
// one, at some operation on the log.
func (l *ledger) liveUntilTorn(t *testing.T, c crash, d Durability, rng *rand.Rand) (next crash) {
	t.Helper()
	crashed := make(chan struct{})
	var steps, found atomic.Int64
	var mu sync.Mutex // the rng's
	found.Store(c.least)
	at := 1 + rng.Int64N(120)
	fs := errorfs.Wrap(c.left, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !journaltest.ChangesDisk(op) || !strings.HasSuffix(op.Path, wal.Suffix) || steps.Add(1) != at {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		next.least, next.before = found.Load(), fmt.Sprintf("operation %d on %s", op.Kind, op.Path)
		if d.KeepsAcknowledged() {
			next.least = max(next.least, l.acked.Load())
		}
		next.left = journaltest.TearSectors(c.left, "data", wal.Suffix, rng)
		next.most = l.appended.Load()
		close(crashed)
		return nil
	}))
	l.acked.Store(c.least)
	l.appended.Store(c.most)
	j := mustOpen(t, Options{FS: fs, Durability: d, SegmentBytes: 20_000})
	defer mustClose(t, j)
	pairs := l.audit(t, j)
	if pairs < c.least || pairs > c.most {
		t.Fatalf("after a power cut at %s: %d pairs, want from %d to %d", c.before, pairs, c.least, c.most)
	}
	l.acked.Store(pairs)
	l.appended.Store(pairs)
	found.Store(pairs)
	l.load(t, j, crashed)
	return next
}
