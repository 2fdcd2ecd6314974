package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// cluster is what the members of a replicated log have: it survives the journals that write
// to it. Batches are numbered with gaps, as by a log that has entries of its own as well.
type cluster struct {
	mu      sync.Mutex
	entries []entry // guarded by mu
	last    uint64  // guarded by mu
	trimmed uint64  // guarded by mu: what Trim was told
	lost    error   // guarded by mu: no quorum any more
}

type entry struct {
	number uint64
	rows   []byte
}

// member is a Log of a cluster. What is committed is acknowledged by another goroutine, some
// of it after what was committed later has been received.
type member struct {
	*cluster
	t         testing.TB
	o         LogOptions
	begun     atomic.Bool
	calls     atomic.Int32 // of Commit under way
	syncs     atomic.Int32
	proposals chan proposal
	ended     sync.WaitGroup
}

type proposal struct {
	rows []byte
	done chan<- result
}

type result struct {
	number uint64
	err    error
}

func (c *cluster) open(t testing.TB, opened *member) func(LogOptions) (Log, error) {
	return func(o LogOptions) (Log, error) {
		*opened = member{cluster: c, t: t, o: o, proposals: make(chan proposal)}
		return opened, nil
	}
}

func (m *member) Replay(fn func(number uint64, rows []byte) error) error {
	if m.begun.Load() {
		m.t.Error("Replay after Begin")
	}
	m.mu.Lock()
	entries := slices.Clone(m.entries)
	m.mu.Unlock()
	for _, e := range entries {
		if e.number <= m.o.Applied {
			continue
		}
		if err := fn(e.number, e.rows); err != nil {
			return err
		}
	}
	return nil
}

func (m *member) Begin() error {
	m.begun.Store(true)
	m.mu.Lock()
	m.last++ // the entry that a new leader begins with
	m.mu.Unlock()
	m.ended.Go(func() {
		for p := range m.proposals {
			go m.acknowledge(p)
		}
	})
	return nil
}

func (m *member) acknowledge(p proposal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		p.done <- result{err: m.lost}
		return
	}
	m.last += 1 + uint64(len(m.entries)%3)
	m.entries = append(m.entries, entry{m.last, p.rows})
	p.done <- result{number: m.last}
}

func (m *member) Commit(rows []byte) (uint64, error) {
	if !m.begun.Load() || m.calls.Add(1) > 1 {
		m.t.Error("Commit before Begin, or beside another one")
	}
	defer m.calls.Add(-1)
	done := make(chan result)
	m.proposals <- proposal{bytes.Clone(rows), done}
	r := <-done
	return r.number, r.err
}

func (m *member) Sync() error {
	m.syncs.Add(1)
	return nil
}

func (m *member) Trim(applied uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimmed = applied
	m.entries = slices.DeleteFunc(m.entries, func(e entry) bool { return e.number <= applied })
	return nil
}

func (m *member) Check() error { return nil }

func (m *member) Close() error {
	if m.begun.Load() {
		close(m.proposals)
		m.ended.Wait()
	}
	return nil
}

// The pipeline runs on another log than the files of this machine: waiters are called in
// order, what was acknowledged is there after the machine's disk has lost all that was not
// in tables, and the log is trimmed by its own numbers.
func TestAnotherLog(t *testing.T) {
	t.Parallel()
	disk := vfs.NewCrashableMem()
	c, m := &cluster{}, &member{}
	j := mustOpen(t, Options{FS: disk, Log: c.open(t, m)})
	if !m.o.Sync || m.o.Applied != 0 {
		t.Errorf("a new log was opened with %+v", m.o)
	}
	want := map[string]string{}
	var called []Seq // by the committer
	write := func(n int) {
		for range n {
			key := fmt.Sprintf("k%04d", len(want))
			want[key] = key
			a := j.Begin()
			a.Set([]byte(key), []byte(key))
			a.End(orderWaiter{&called})
		}
		j.WaitDurable()
	}
	for range 50 {
		write(3)
	}

	// When its disk forgets what is not in tables, the log has it.
	lives := 0
	restart := func() {
		t.Helper()
		awaitComplete(j, j.Last())
		if !slices.IsSorted(called) || len(called) == 0 {
			t.Errorf("waiters were called in the order %v", called)
		}
		called = nil
		crashed := disk.CrashClone(vfs.CrashCloneCfg{})
		mustClose(t, j)
		disk = crashed
		j = mustOpen(t, Options{FS: disk, Log: c.open(t, m)})
		if got := content(t, j); !sameRows(got, want) {
			t.Errorf("after restart %d there are %d rows of %d", lives, len(got), len(want))
		}
		lives++
	}
	restart()
	write(10)

	// When it is in tables, the log may drop it.
	if err := errors.Join(j.Flush(), j.TrimLog()); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	if c.trimmed != c.last || len(c.entries) != 0 {
		t.Errorf("trimmed up to %d of %d, %d entries left", c.trimmed, c.last, len(c.entries))
	}
	c.mu.Unlock()
	write(10)
	restart()
	if m.o.Applied != c.trimmed {
		t.Errorf("the log was asked for what is above %d, want %d", m.o.Applied, c.trimmed)
	}
	mustClose(t, j)
}

type orderWaiter struct{ called *[]Seq }

func (w orderWaiter) Durable(s Seq) { *w.called = append(*w.called, s) }

// A log that can't commit any more ends the journal; nothing of that batch is acknowledged.
func TestALogThatLosesItsQuorum(t *testing.T) {
	t.Parallel()
	c, m := &cluster{}, &member{}
	fatal := make(chan error, 1)
	j := mustOpen(t, Options{FS: vfs.NewMem(), Log: c.open(t, m), Fatal: func(err error) { fatal <- err }})
	putAndWait(j, "k1", "acknowledged")
	lost := errors.New("the leader has changed")
	c.mu.Lock()
	c.lost = lost
	c.mu.Unlock()
	put(j, "k2", "v", waiterFunc(func() { t.Error("a batch without a quorum was acknowledged") }))
	if err := <-fatal; !errors.Is(err, lost) || !strings.Contains(err.Error(), "batch 2") {
		t.Errorf("Fatal(%v)", err)
	}
	if err := j.Close(); !errors.Is(err, lost) {
		t.Errorf("Close: %v", err)
	}
}

// A read that needs what a lost journal has not applied fails as with a journal that is closed, because
// its server stops: no client is told that its data could not be read.
func TestReadsOfALostJournal(t *testing.T) {
	t.Parallel()
	c, m := &cluster{}, &member{}
	fatal := make(chan error, 1)
	j := mustOpen(t, Options{FS: vfs.NewMem(), Log: c.open(t, m), Fatal: func(err error) { fatal <- err }})
	putAndWait(j, "k1", "acknowledged")
	c.mu.Lock()
	c.lost = fmt.Errorf("%w: another node leads", ErrLost)
	c.mu.Unlock()
	put(j, "k2", "v", waiterFunc(func() { t.Error("a batch without a quorum was acknowledged") }))
	<-fatal
	if err := j.applyPending(); !errors.Is(err, ErrLost) || !errors.Is(err, ErrClosed) {
		t.Errorf("a read that has to apply rows fails with %v", err)
	}
	mustClose(t, j)
}

// With a durability other than Sync the log is told, and synced at the interval.
func TestAnotherLogAtAnInterval(t *testing.T) {
	t.Parallel()
	c, m := &cluster{}, &member{}
	j := mustOpen(t, Options{FS: vfs.NewMem(), Log: c.open(t, m), Durability: SyncEvery(MinSyncInterval)})
	if m.o.Sync {
		t.Error("the log was asked to sync each batch")
	}
	for n := 0; m.syncs.Load() < 2; n++ {
		putAndWait(j, fmt.Sprint("k", n), "v")
	}
	mustClose(t, j)
}

// following is a member whose Replay goes on until the test lets it end.
type following struct {
	*member
	given chan struct{} // closed when Replay has given everything
	end   chan error    // what Replay then returns
}

func (f *following) Replay(fn func(number uint64, rows []byte) error) error {
	if err := f.member.Replay(fn); err != nil {
		return err
	}
	close(f.given)
	return <-f.end
}

// The owner of a log gets a copy of the database while the log is being replayed, with everything that
// was given so far, and none of a journal that was not opened in the end.
func TestCopyDuringAReplay(t *testing.T) {
	t.Parallel()
	c, m := &cluster{}, &member{}
	j := mustOpen(t, Options{FS: vfs.NewMem(), Log: c.open(t, m)})
	putAndWait(j, "k1", "v1")
	putAndWait(j, "k2", "v2")
	mustClose(t, j)

	disk, f := vfs.NewMem(), &following{member: m, given: make(chan struct{}), end: make(chan error)}
	opened := make(chan error)
	go func() {
		_, err := Open(Options{Dir: "data", FS: disk, Logger: slog.New(slog.DiscardHandler), Log: func(o LogOptions) (Log, error) {
			_, err := c.open(t, m)(o)
			return f, err
		}})
		opened <- err
	}()
	<-f.given
	for _, copies := range []bool{false, true} {
		dir := fmt.Sprint("copy-", copies)
		if err := m.o.Copy(dir, copies); err != nil {
			t.Fatal(err)
		}
		l := mustOpen(t, Options{FS: disk, Dir: dir})
		if got := content(t, l); !sameRows(got, map[string]string{"k1": "v1", "k2": "v2"}) {
			t.Errorf("the copy has %v", got)
		}
		mustClose(t, l)
	}
	f.end <- ErrLost
	if err := <-opened; !errors.Is(err, ErrLost) {
		t.Errorf("Open: %v", err)
	}
	if err := m.o.Copy("late", false); !errors.Is(err, ErrClosed) {
		t.Errorf("a copy after the end: %v", err)
	}
}
