package journal

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
)

// halfWrites is a disk of which one write, when it is armed, writes a part of the bytes only and finds no
// room for the others.
type halfWrites struct {
	vfs.FS
	armed *atomic.Bool
}

func (h halfWrites) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := h.FS.Create(name, c)
	return halfFile{f, h.armed}, err
}

func (h halfWrites) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := h.FS.OpenReadWrite(name, c, o...)
	return halfFile{f, h.armed}, err
}

func (h halfWrites) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := h.FS.ReuseForWrite(old, name, c)
	return halfFile{f, h.armed}, err
}

type halfFile struct {
	vfs.File
	armed *atomic.Bool
}

func (f halfFile) Write(p []byte) (int, error) {
	if len(p) > 1 && f.armed.Swap(false) {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func (f halfFile) WriteAt(p []byte, at int64) (int, error) {
	if len(p) > 1 && f.armed.Swap(false) {
		n, _ := f.File.WriteAt(p[:len(p)/2], at)
		return n, syscall.ENOSPC
	}
	return f.File.WriteAt(p, at)
}

// One operation on the disk fails, and the ones after it do not: the disk had no room for a moment, a block
// could not be written, or a part of a write found no room. Some operations later, or when the journal gives up,
// the power fails. What was acknowledged is there, and what is there is the first part of what was written.
func TestOneFaultBeforeAPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(journaltest.Some(120)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 9))
			l := &ledger{size: 100 + rng.IntN(400)}
			c := l.liveWithOneFault(t, rng)
			j := mustOpen(t, Options{FS: c.left, SegmentBytes: 1000})
			defer mustClose(t, j)
			if pairs := l.audit(t, j); pairs < c.least || pairs > c.most {
				t.Errorf("%s: %d pairs, want from %d to %d", c.before, pairs, c.least, c.most)
			}
		})
	}
}

// liveWithOneFault writes until the power fails.
func (l *ledger) liveWithOneFault(t *testing.T, rng *rand.Rand) (c crash) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	mustCreate(t, smallDisk{mem})
	fault := []error{syscall.ENOSPC, syscall.EIO, nil}[rng.IntN(3)] // nil: a part of a write
	faultAt := rng.Int64N(120)
	cutAt, percent := faultAt+1+rng.Int64N(60), rng.IntN(3)*50
	var operations atomic.Int64
	var faulted atomic.Bool
	half := new(atomic.Bool)
	failed, cut := "nothing", make(chan struct{})
	var once sync.Once
	powerFails := func(when string) {
		once.Do(func() {
			c.least, c.before = l.acked.Load(), fmt.Sprintf("%v at %s, then the power failed %s", fault, failed, when)
			c.left = journaltest.PowerOff(mem, percent, rng)
			c.most = l.appended.Load()
			close(cut)
		})
	}
	fs := errorfs.Wrap(halfWrites{smallDisk{mem}, half}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !journaltest.ChangesDisk(op) {
			return nil
		}
		n := operations.Add(1)
		if n == cutAt+1 {
			powerFails(fmt.Sprintf("before operation %d on %s", op.Kind, op.Path))
		}
		syncsDir := op.Kind == errorfs.OpFileSync && op.Path == "data" // Pebble ends the process if that fails
		if n > faultAt && !syncsDir && faulted.CompareAndSwap(false, true) {
			failed = fmt.Sprintf("operation %d on %s", op.Kind, op.Path)
			half.Store(fault == nil)
			return fault
		}
		return nil
	}))
	fatal := make(chan error, 1)
	opened := make(chan *Journal, 1)
	go func() { // it may call Fatal and never return
		j, _ := Open(Options{FS: fs, Dir: "data", SegmentBytes: 1000, Fatal: func(err error) { fatal <- err }, CommitTimeout: 20 * time.Second})
		opened <- j
	}()
	var j *Journal
	select {
	case j = <-opened:
	case <-fatal:
	}
	if j == nil {
		powerFails("when the start had failed")
		return c
	}
	defer func() { _ = j.Close() }() // it may have failed
	for n := 0; ; n++ {
		done := make(chan struct{})
		for range n % 3 {
			l.append(j, nil)
		}
		l.append(j, func() { close(done) })
		select {
		case <-done:
		case <-fatal:
			powerFails("when the journal had given up")
			return c
		}
		select {
		case <-cut:
			return c
		default:
		}
		if n%9 == 8 {
			_ = j.Flush() // it fails with the journal
		}
	}
}
