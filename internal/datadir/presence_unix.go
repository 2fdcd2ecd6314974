//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package datadir

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lockDir locks the directory itself. It returns nil where the file system can't do that,
// as some on a network can't; the file LOCK is all that there is then.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("the directory is locked: %w", err), f.Close())
	}
	return nil, f.Close()
}

// Presence says whether an open file still has a name. Its methods are not safe for
// concurrent use.
type Presence struct {
	status syscall.Stat_t // kept, so that a call allocates nothing
}

// HasName says whether an open file still has a name in some directory: a file that was
// deleted takes writes and fsyncs without an error until it is closed. It is true of files
// that are not the machine's.
func (p *Presence) HasName(f vfs.File) bool {
	fd := f.Fd()
	if fd == vfs.InvalidFd {
		return true
	}
	return syscall.Fstat(int(fd), &p.status) != nil || p.status.Nlink > 0
}

// IsAt says whether path names the open file f. It is true of files that are not the
// machine's.
func IsAt(f vfs.File, path string) bool {
	fd := f.Fd()
	if fd == vfs.InvalidFd {
		return true
	}
	var open, named syscall.Stat_t
	if err := syscall.Fstat(int(fd), &open); err != nil {
		return true // it is closed
	}
	switch err := syscall.Stat(path, &named); {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return false
	case err != nil:
		return true // unknown: writes tell
	}
	return open.Dev == named.Dev && open.Ino == named.Ino
}
