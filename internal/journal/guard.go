package journal

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardedFS stands between Pebble and the files of its log.
//
// When a log cannot be written, synced, closed or created, the journal has
// failed, and the process is to end with a line that says why. Pebble comes to
// the same conclusion, but not always in words: where it changes to a new log it
// panics, and while that unwinds it unlocks a mutex that it does not hold, which
// ends the process with the stacks of all goroutines and cannot be caught. So the
// error is taken here, where it appears, and does not come back.
type guardedFS struct {
	vfs.FS
	j *Journal
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// stop ends the journal because of err, and never returns; but while the journal
// is opened or closed an error is passed on to whoever does that.
func (j *Journal) stop(err error, what, name string) error {
	if err == nil || !j.guarding.Load() {
		return err
	}
	j.fail(fmt.Errorf("%s %s: %w", what, name, err))
	select {} // with Pebble's locks, as in pebbleLogger.Fatalf
}

func (g guardedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, category)
	return g.log(f, err, name)
}

func (g guardedFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.ReuseForWrite(old, name, category)
	return g.log(f, err, name)
}

func (g guardedFS) log(f vfs.File, err error, name string) (vfs.File, error) {
	if !isLog(name) {
		return f, err
	}
	if err := g.j.stop(err, "creating", name); err != nil {
		return nil, err
	}
	return guardedFile{f, g.j, name}, nil
}

// OpenDir guards directories too: a log that is not in its directory after a
// crash is no log.
func (g guardedFS) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return guardedFile{f, g.j, name}, nil
}

// Unwrap implements vfs.FS.
func (g guardedFS) Unwrap() vfs.FS { return g.FS }

// guardedFile is a log that is being written, or a directory.
type guardedFile struct {
	vfs.File
	j    *Journal
	name string
}

// Write goes on in the room of the ballast when the disk is full.
func (f guardedFile) Write(p []byte) (n int, err error) {
	n, err = f.File.Write(p)
	if errors.Is(err, syscall.ENOSPC) && f.j.guarding.Load() && f.j.releaseBallast("the log found no room on the disk: going on in the room that was kept") {
		f.j.noRoom()
		var m int
		m, err = f.File.Write(p[n:])
		n += m
	}
	return n, f.j.stop(err, "writing", f.name)
}

func (f guardedFile) Sync() error     { return f.j.stop(f.File.Sync(), "syncing", f.name) }
func (f guardedFile) SyncData() error { return f.j.stop(f.File.SyncData(), "syncing", f.name) }
func (f guardedFile) Close() error    { return f.j.stop(f.File.Close(), "closing", f.name) }

func (f guardedFile) SyncTo(length int64) (full bool, err error) {
	full, err = f.File.SyncTo(length)
	return full, f.j.stop(err, "syncing", f.name)
}
