package journaltest

import (
	"errors"
	"io/fs"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// CountedFS is a file system on which only so many files can be open at once.
type CountedFS struct {
	vfs.FS

	mu    sync.Mutex
	open  int // guarded by mu
	limit int // guarded by mu
}

// NewCountedFS returns fsys with a limit.
func NewCountedFS(fsys vfs.FS, limit int) *CountedFS { return &CountedFS{FS: fsys, limit: limit} }

// OpenFiles is how many files are open.
func (c *CountedFS) OpenFiles() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// SetLimit changes how many files can be open.
func (c *CountedFS) SetLimit(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = n
}

// Exhaust leaves no descriptor.
func (c *CountedFS) Exhaust() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = c.open
}

func (c *CountedFS) count(f vfs.File, err error) (vfs.File, error) {
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

// Create implements vfs.FS, as do those that follow.
func (c *CountedFS) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.count(c.FS.Create(name, k))
}
func (c *CountedFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return c.count(c.FS.Open(name, o...))
}
func (c *CountedFS) OpenReadWrite(name string, k vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return c.count(c.FS.OpenReadWrite(name, k, o...))
}
func (c *CountedFS) OpenDir(name string) (vfs.File, error) { return c.count(c.FS.OpenDir(name)) }

type countedFile struct {
	vfs.File
	fs   *CountedFS
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
