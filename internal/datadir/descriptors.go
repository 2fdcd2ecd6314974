package datadir

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Descriptors that are kept
//
// A log that cannot open its next segment ends the process, and so does Pebble where it
// cannot begin a manifest. The owner of the process sees to it that sockets leave enough
// file descriptors (package server); but other processes may reach the limit of the whole
// system. So a few descriptors are kept open that are of no other use. When an open finds
// none left, one of those is closed and the open tried again; as soon as there are enough
// again, they are taken back.

const (
	// keptDescriptors are enough for the next segment and the directory that is synced,
	// and for a flush and two compactions to go on beside that.
	keptDescriptors = 8
	keptForTheLog   = 4 // of them
	// NoDescriptorsPause is the least time between two log lines about it.
	NoDescriptorsPause = 10 * time.Second
)

// ReservingFS is a file system that keeps descriptors for when there are none.
type ReservingFS struct {
	vfs.FS
	dir    string
	logger *slog.Logger

	mu     lockrank.Mutex[lockrank.Descriptors]
	kept   []vfs.File // guarded by mu: of the directory, for reading
	ended  bool       // guarded by mu: no descriptors are kept any more
	logged time.Time  // guarded by mu: when it was logged that one was needed
}

// NewReservingFS returns fsys with a reserve of descriptors, which is empty until Fill. dir
// is the directory that they are of.
func NewReservingFS(fsys vfs.FS, dir string, logger *slog.Logger) *ReservingFS {
	return &ReservingFS{FS: fsys, dir: dir, logger: logger}
}

// Fill opens as many descriptors as there should be, or as it can. The directory exists.
func (fsys *ReservingFS) Fill() {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	fsys.fill()
}

// fill is Fill with mu held.
func (fsys *ReservingFS) fill() {
	for len(fsys.kept) < keptDescriptors {
		f, err := fsys.FS.OpenDir(fsys.dir)
		if err != nil {
			return
		}
		fsys.kept = append(fsys.kept, f)
	}
}

// give closes one of the kept descriptors, if there are more than leave.
func (fsys *ReservingFS) give(leave int, why error) bool {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	if len(fsys.kept) <= leave {
		return false
	}
	last := len(fsys.kept) - 1
	_ = fsys.kept[last].Close() // it was only read
	fsys.kept = fsys.kept[:last]
	if now := time.Now(); now.Sub(fsys.logged) > NoDescriptorsPause {
		fsys.logged = now
		fsys.logger.Error("no file descriptor is left: going on with those that were kept; raise the limit of open files (ulimit -n, fs.file-max)",
			"dir", fsys.dir, "kept", last, "error", why)
	}
	return true
}

// Release closes the descriptors that are kept, and keeps no more.
func (fsys *ReservingFS) Release() {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	for _, f := range fsys.kept {
		_ = f.Close()
	}
	fsys.kept, fsys.ended = nil, true
}

// opened is what open returns. It is tried again while a descriptor is all that it lacks,
// and more than leave are kept.
func opened[T any](fsys *ReservingFS, leave int, open func() (T, error)) (T, error) {
	for {
		f, err := open()
		if err == nil || !LacksDescriptor(err) || !fsys.give(leave, err) {
			return f, err
		}
	}
}

// windowsTooManyOpenFiles is ERROR_TOO_MANY_OPEN_FILES.
const windowsTooManyOpenFiles = syscall.Errno(4)

// LacksDescriptor says whether an open has failed because the process or the system has too
// many files open.
func LacksDescriptor(err error) bool { return lacksDescriptor(runtime.GOOS, err) }

// lacksDescriptor is LacksDescriptor on a system, which is a runtime.GOOS.
func lacksDescriptor(system string, err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		system == "windows" && errors.Is(err, windowsTooManyOpenFiles)
}

// Create implements vfs.FS, as do those that follow.
func (fsys *ReservingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.Create(name, c) })
}

func (fsys *ReservingFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.Open(name, o...) })
}

func (fsys *ReservingFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.ReuseForWrite(old, name, c) })
}

// OpenReadWrite opens the log's segments.
func (fsys *ReservingFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.OpenReadWrite(name, c, o...) })
	return fsys.returning(f, err)
}

func (fsys *ReservingFS) OpenDir(name string) (vfs.File, error) {
	f, err := opened(fsys, leaveFor(name), func() (vfs.File, error) { return fsys.FS.OpenDir(name) })
	return fsys.returning(f, err)
}

func (fsys *ReservingFS) List(dir string) ([]string, error) {
	return opened(fsys, leaveFor(dir), func() ([]string, error) { return fsys.FS.List(dir) })
}

func (fsys *ReservingFS) Unwrap() vfs.FS { return fsys.FS }

// leaveFor is how many of the kept descriptors an open of this file must leave: tables can
// be tried again later, the log and the manifest can't.
func leaveFor(name string) int {
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		return keptForTheLog
	}
	return 0
}

// returning is a file whose descriptor is kept again as soon as it is closed, before
// other goroutines can take it: if it was a kept one, the next segment needs it.
func (fsys *ReservingFS) returning(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return returningFile{f, fsys}, nil
}

type returningFile struct {
	vfs.File
	fsys *ReservingFS
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
