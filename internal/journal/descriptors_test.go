package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// countedFS is a file system on which only so many files can be open at once.
type countedFS struct {
	vfs.FS

	mu    sync.Mutex
	open  int // guarded by mu
	limit int // guarded by mu
}

func (c *countedFS) setLimit(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = n
}

// exhaust leaves no descriptor.
func (c *countedFS) exhaust() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = c.open
}

func (c *countedFS) count(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.limit {
		return nil, errors.Join(&fs.PathError{Op: "open", Err: syscall.EMFILE}, f.Close())
	}
	c.open++
	return &countedFile{File: f, fs: c}, nil
}

func (c *countedFS) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.count(c.FS.Create(name, k))
}
func (c *countedFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return c.count(c.FS.Open(name, o...))
}
func (c *countedFS) OpenReadWrite(name string, k vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return c.count(c.FS.OpenReadWrite(name, k, o...))
}
func (c *countedFS) OpenDir(name string) (vfs.File, error) { return c.count(c.FS.OpenDir(name)) }

type countedFile struct {
	vfs.File
	fs   *countedFS
	once sync.Once
}

func (f *countedFile) Close() error {
	f.once.Do(func() {
		f.fs.mu.Lock()
		defer f.fs.mu.Unlock()
		f.fs.open--
	})
	return f.File.Close()
}

// While no file descriptor is left, not even for tables, the log goes on to its next
// segments.
func TestTheLogGoesOnWithoutDescriptors(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	fsys := &countedFS{FS: vfs.NewMem(), limit: 1000}
	j := mustOpen(t, Options{FS: fsys, Reserve: 1 << 20, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	write := func(n int) {
		t.Helper()
		for i := range n {
			done := make(chan struct{})
			a := j.Begin()
			a.Set([]byte(fmt.Sprintf("k|%06d", i)), make([]byte, 64<<10))
			a.End(waiterFunc(func() { close(done) }))
			select {
			case <-done:
			case <-j.failed:
				t.Fatalf("the journal failed: %v", j.failure())
			}
		}
	}
	write(1)
	fsys.exhaust()
	first := currentSegment(j)
	write(600) // 38 MiB
	if last := currentSegment(j); last.first < first.first+4 {
		t.Errorf("the log went from %v to %v, which are no four segments", first, last)
	}
	if n := strings.Count(said.String(), "no file descriptor is left"); n != 1 {
		t.Errorf("it said %d times that there are no descriptors:\n%s", n, said.String())
	}

	// When there are some again tables are written, and it takes back what it keeps, until
	// its end.
	fsys.setLimit(1000)
	if err := j.Flush(); err != nil {
		t.Fatal(err)
	}
	kept := j.o.FS.(*thriftyFS)
	kept.keep()
	kept.mu.Lock()
	if len(kept.kept) != keptDescriptors {
		t.Errorf("it keeps %d descriptors", len(kept.kept))
	}
	kept.mu.Unlock()
	mustClose(t, j)
	if fsys.open != 0 {
		t.Errorf("%d files are open after the end", fsys.open)
	}
}

func currentSegment(j *Journal) segment {
	j.log.mu.Lock()
	defer j.log.mu.Unlock()
	return j.log.segments[len(j.log.segments)-1]
}

func TestErrorsThatLackADescriptor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		system string
		err    error
		want   bool
	}{
		{"linux", syscall.EMFILE, true},
		{"linux", syscall.ENFILE, true},
		{"windows", syscall.Errno(4), true}, // ERROR_TOO_MANY_OPEN_FILES
		{"linux", syscall.Errno(4), false},  // EINTR
		{"linux", fs.ErrNotExist, false},
		{"windows", nil, false},
	} {
		if got := lacksDescriptor(c.system, c.err); got != c.want {
			t.Errorf("%s, %v: %v", c.system, c.err, got)
		}
	}
}
