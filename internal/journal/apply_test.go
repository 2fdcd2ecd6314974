package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
)

// mirror is a journal and what readers must see of it.
type mirror struct {
	mem      *vfs.MemFS
	disk     *journaltest.Disk
	j        *Journal
	durable  map[string]string
	appended []func(map[string]string) // and not durable
	held     bool
}

// Whatever is appended, in whatever order it gets from the log into Pebble and into
// tables, and however often the journal is stopped or crashes: readers see what is
// durable, and nothing else.
func TestReadersSeeWhatIsDurable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 5))
			m := &mirror{mem: vfs.NewCrashableMem(), durable: map[string]string{}}
			m.open(t)
			for range 70 {
				m.step(t, rng)
				m.look(t)
			}
			m.settle()
			m.look(t)
			mustClose(t, m.j)
		})
	}
}

// step does what may happen to a journal, most often an append.
func (m *mirror) step(t *testing.T, rng *rand.Rand) {
	switch rng.IntN(20) {
	default:
		m.append(rng)
	case 0, 1: // what comes from here on is not durable
		m.settle()
		m.disk.Hold()
		m.held = true
	case 2, 3, 4:
		m.settle()
	case 5:
		m.settle()
		if err := m.j.Flush(); err != nil {
			t.Fatal(err)
		}
	case 6:
		m.settle()
		mustClose(t, m.j)
		m.open(t)
	case 7: // what was not durable is gone
		before := *m
		m.mem = m.mem.CrashClone(vfs.CrashCloneCfg{})
		m.appended = nil
		m.open(t)
		before.settle()
		mustClose(t, before.j)
	}
}

func (m *mirror) open(t *testing.T) {
	m.disk, m.held = journaltest.NewDisk(m.mem), false
	m.j = mustOpen(t, Options{FS: m.disk, SegmentBytes: smallSegments})
}

// settle makes everything durable that was appended.
func (m *mirror) settle() {
	m.disk.Release(nil)
	m.held = false
	m.j.WaitDurable()
	m.durable = maps.Clone(m.durable) // after a crash another one goes on from it
	for _, change := range m.appended {
		change(m.durable)
	}
	m.appended = nil
}

// append appends a few changes as one, in a few keys that are often the same.
func (m *mirror) append(rng *rand.Rand) {
	key := func() string { return []string{"k", "k1", "k2", "k21", "k22", "k3", "k\xff"}[rng.IntN(7)] }
	a := m.j.Begin()
	for range 1 + rng.IntN(5) {
		k, to := key(), key()
		switch kind := rng.IntN(4); {
		case kind < 2:
			v := fmt.Sprint(rng.Uint64())
			a.Set([]byte(k), []byte(v))
			m.appended = append(m.appended, func(rows map[string]string) { rows[k] = v })
		case kind < 3:
			a.Delete([]byte(k))
			m.appended = append(m.appended, func(rows map[string]string) { delete(rows, k) })
		case k < to:
			a.DeleteRange([]byte(k), []byte(to))
			m.appended = append(m.appended, func(rows map[string]string) {
				maps.DeleteFunc(rows, func(row, _ string) bool { return k <= row && row < to })
			})
		}
	}
	a.End(nil)
	if m.held {
		m.disk.AwaitSync()
		return
	}
	m.settle()
}

// look reads in every way that there is.
func (m *mirror) look(t *testing.T) {
	t.Helper()
	seen := map[string]string{}
	err := m.j.Iterate([]byte("k"), []byte("l"), func(k, v []byte) bool {
		seen[string(k)] = string(v)
		return true
	})
	if err != nil || !sameRows(seen, m.durable) {
		t.Fatalf("Iterate: %q, %v; durable is %q", seen, err, m.durable)
	}
	for _, k := range []string{"k", "k1", "k2", "k3", "k\xff", "none"} {
		want, there := m.durable[k]
		if v, found, err := m.j.Get([]byte(k)); err != nil || found != there || string(v) != want {
			t.Fatalf("Get(%q): %q, %v, %v; durable is %q, %v", k, v, found, err, want, there)
		}
		if v, found, err := m.j.Probe(nil, []byte(k)); err != nil || found != there || string(v) != want {
			t.Fatalf("Probe(%q): %q, %v, %v; durable is %q, %v", k, v, found, err, want, there)
		}
	}
}

// A checkpoint that is made under load holds what was acknowledged when it was begun, and
// of what came since the first part.
func TestCheckpointUnderLoad(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	j := mustOpen(t, Options{FS: fs, SegmentBytes: smallSegments})
	l := &ledger{size: 60}
	var stop atomic.Bool
	var load sync.WaitGroup
	goesOn := make(chan struct{})
	load.Go(func() {
		for !stop.Load() {
			select {
			case goesOn <- struct{}{}:
			default:
			}
			done := make(chan struct{})
			l.append(j, nil)
			l.append(j, func() { close(done) })
			<-done
		}
	})
	for n := range 5 {
		<-goesOn
		least := l.acked.Load()
		dir := fmt.Sprintf("backups/%d", n)
		if err := j.Checkpoint(dir, false); err != nil {
			t.Fatal(err)
		}
		most := l.appended.Load()
		left := mustOpen(t, Options{FS: fs, Dir: dir, ReadOnly: true})
		if pairs := l.audit(t, left); pairs < least || pairs > most {
			t.Errorf("backup %d has %d pairs, want from %d to %d", n, pairs, least, most)
		}
		mustClose(t, left)
	}
	stop.Store(true)
	load.Wait()
	mustClose(t, j)
}

// Reading alone and checking see what only the log has, and leave everything as it is.
func TestLookingChangesNothing(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	for name, look := range map[string]func(Options) (*Journal, error){
		"read-only": Open,
		"check": func(o Options) (*Journal, error) {
			j, damage, err := check(o)
			if len(damage) > 0 {
				err = fmt.Errorf("damage: %v", damage)
			}
			return j, err
		},
	} {
		fs := files.Plant(t)
		j, err := look(Options{Dir: "data", FS: fs, ReadOnly: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := content(t, j); len(got) != rows || !isPrefix(got, rows) {
			t.Errorf("%s: %d rows of %d", name, len(got), rows)
		}
		if v, found, err := j.Get([]byte("k0000")); string(v) != "value 0" || !found || err != nil {
			t.Errorf("%s: Get: %q, %v, %v", name, v, found, err)
		}
		mustClose(t, j)
		after := journaltest.ReadTree(t, fs)
		for file, content := range files {
			if !bytes.Equal(after[file], content) {
				t.Errorf("%s has changed %s", name, file)
			}
		}
		if len(after) != len(files) {
			t.Errorf("%s: %d files, and %d before", name, len(after), len(files))
		}
	}
}

// Pebble may hang, on a disk that does, while the log goes on. Then there is an end to
// what is acknowledged without it, and a word about why; and nothing that was
// acknowledged is lost.
func TestTablesThatHang(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	release := make(chan struct{})
	var armed atomic.Bool
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && strings.HasSuffix(op.Path, ".sst") {
			<-release
			return errFault
		}
		return nil
	}))
	mustCreate(t, smallDisk{fs})
	fatal := make(chan error, 10)
	j := mustOpen(t, Options{FS: smallDisk{fs}, CommitTimeout: 2 * time.Second, Fatal: func(err error) { fatal <- err }})
	armed.Store(true)
	l := &ledger{size: 64 << 10}
	var failed error
	for failed == nil && l.appended.Load() < 1000 {
		done := make(chan struct{})
		l.append(j, func() { close(done) })
		select {
		case <-done:
		case failed = <-fatal:
		}
	}
	if failed == nil || !strings.Contains(failed.Error(), "tables have not reached the disk within 2s") {
		t.Fatalf("Fatal(%v) after %d pairs", failed, l.appended.Load())
	}
	acked := l.acked.Load()
	l.append(j, func() { t.Error("called back after the journal failed") })
	if err := j.Close(); !errors.Is(err, failed) {
		t.Errorf("Close said %v, Fatal %v", err, failed)
	}
	left := mustOpen(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if pairs := l.audit(t, left); pairs < acked {
		t.Errorf("%d pairs of %d that were acknowledged", pairs, acked)
	}
	mustClose(t, left)
	armed.Store(false)
	close(release)
}
