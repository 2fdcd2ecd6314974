//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package journal

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lockDir locks the directory itself. It gives nil where the file system can't do that,
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

// fileID is what tells an open file from another one that has its name now.
type fileID struct {
	status syscall.Stat_t // kept, so that a look at it allocates nothing
}

// hasName says whether an open file still has a name in some directory. It looks at
// files of the machine only.
func (id *fileID) hasName(f vfs.File) bool {
	fd := f.Fd()
	if fd == vfs.InvalidFd {
		return true
	}
	return syscall.Fstat(int(fd), &id.status) != nil || id.status.Nlink > 0
}

// isAt says whether path names the file that fd is open on.
func isAt(fd uintptr, path string) bool {
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
