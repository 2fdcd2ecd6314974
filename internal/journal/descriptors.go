package journal

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/lockrank"
)

// Descriptors that are kept
//
// A log that cannot open its next segment ends the process, and so does Pebble where it
// cannot begin a manifest. The owner of the process sees to it that sockets leave enough
// file descriptors (package server); but the limit of the whole system may be reached by
// other processes. So the journal keeps a few descriptors open that are of no use. When
// an open finds none left it closes one of those and tries again; and as soon as there
// are enough again, it takes them back.

const (
	// keptDescriptors are enough for the next segment and the directory that is synced,
	// and for a flush and two compactions to go on beside that.
	keptDescriptors = 8
	keptForTheLog   = 4 // of them
	// noDescriptorsPause is how often that is worth a line in the log.
	noDescriptorsPause = 10 * time.Second
)

// thriftyFS is a file system that keeps descriptors for when there are none.
type thriftyFS struct {
	vfs.FS
	dir    string
	logger *slog.Logger

	mu    lockrank.Mutex[lockrank.Descriptors]
	kept  []vfs.File // guarded by mu: of the directory, for reading
	ended bool       // guarded by mu: nothing is kept any more
	said  time.Time  // guarded by mu: when it was logged that one was needed
}

// keep opens as many descriptors as there should be, or as it can. The directory exists.
func (fsys *thriftyFS) keep() {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	fsys.fill()
}

// fill is keep with mu held.
func (fsys *thriftyFS) fill() {
	for len(fsys.kept) < keptDescriptors {
		f, err := fsys.FS.OpenDir(fsys.dir)
		if err != nil {
			return
		}
		fsys.kept = append(fsys.kept, f)
	}
}

// give closes one of the kept descriptors, if there are more than leave.
func (fsys *thriftyFS) give(leave int, why error) bool {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	if len(fsys.kept) <= leave {
		return false
	}
	last := len(fsys.kept) - 1
	_ = fsys.kept[last].Close() // it was only read
	fsys.kept = fsys.kept[:last]
	if now := time.Now(); now.Sub(fsys.said) > noDescriptorsPause {
		fsys.said = now
		fsys.logger.Error("no file descriptor is left: going on with those that were kept; raise the limit of open files (ulimit -n, fs.file-max)",
			"dir", fsys.dir, "kept", last, "error", why)
	}
	return true
}

// release closes what is kept.
func (fsys *thriftyFS) release() {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	for _, f := range fsys.kept {
		_ = f.Close()
	}
	fsys.kept, fsys.ended = nil, true
}

// opened is what open returns, which is tried again while a descriptor is all that it
// lacks, and more than leave are kept.
func opened[T any](fsys *thriftyFS, leave int, open func() (T, error)) (T, error) {
	for {
		f, err := open()
		if err == nil || !lacksDescriptor(runtime.GOOS, err) || !fsys.give(leave, err) {
			return f, err
		}
	}
}

// windowsTooManyOpenFiles is ERROR_TOO_MANY_OPEN_FILES.
const windowsTooManyOpenFiles = syscall.Errno(4)

// lacksDescriptor says whether an open has failed because the process or the system has
// too many files open. system is a runtime.GOOS.
func lacksDescriptor(system string, err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		system == "windows" && errors.Is(err, windowsTooManyOpenFiles)
}

// Create implements vfs.FS, as do those that follow.
func (fsys *thriftyFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.Create(name, c) })
}

func (fsys *thriftyFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.Open(name, o...) })
}

func (fsys *thriftyFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.ReuseForWrite(old, name, c) })
}

// OpenReadWrite opens the log's segments.
func (fsys *thriftyFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.OpenReadWrite(name, c, o...) })
	return fsys.returning(f, err)
}

func (fsys *thriftyFS) OpenDir(name string) (vfs.File, error) {
	f, err := opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.OpenDir(name) })
	return fsys.returning(f, err)
}

func (fsys *thriftyFS) List(dir string) ([]string, error) {
	return opened(fsys, leaveFor(dir), func() ([]string, error) { return fsys.FS.List(dir) })
}

func (fsys *thriftyFS) Unwrap() vfs.FS { return fsys.FS }

// leaveFor is how many of the kept descriptors must be left by who opens this file:
// tables can be tried again later, the log and the manifest can't.
func leaveFor(name string) int {
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		return keptForTheLog
	}
	return 0
}

// returning is a file whose descriptor is kept again as soon as it is closed, before
// others can take it: if it was a kept one, it is needed for the next segment.
func (fsys *thriftyFS) returning(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return returningFile{f, fsys}, nil
}

type returningFile struct {
	vfs.File
	fsys *thriftyFS
}

func (f returningFile) Close() error {
	err := f.File.Close()
	f.fsys.mu.Lock()
	defer f.fsys.mu.Unlock()
	if !f.fsys.ended {
		f.fsys.fill()
	}
	return err
}
