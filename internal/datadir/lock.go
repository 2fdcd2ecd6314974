package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

var (
	// ErrLocked: another process, or another part of this one, has the directory open.
	ErrLocked = errors.New("data directory is in use")
	// ErrLockRemoved: the lock doesn't keep other processes out any more.
	ErrLockRemoved = errors.New("the file LOCK of the data directory was deleted while the server ran: another one may use the directory")
)

// Lock is the right to use a directory: its file LOCK, and where the system can do
// that the directory itself, which stays locked when the file is deleted.
type Lock struct {
	file *pebble.Lock
	dir  *os.File // nil: only the file is locked

	path  string      // of the file, if only that is locked
	named os.FileInfo // what had that path then
}

// Acquire creates the directory if need be and locks it against other processes.
func Acquire(fsys vfs.FS, dir string) (*Lock, error) {
	if err := MakeDir(fsys, dir); err != nil {
		return nil, fmt.Errorf("data directory %s cannot be created: %w", dir, err)
	}
	l := &Lock{}
	var err error
	onMachine := vfs.Root(fsys) == vfs.Default
	if onMachine {
		l.dir, err = lockDir(dir)
	}
	if err == nil {
		l.file, err = pebble.LockDirectory(dir, fsys)
	}
	if err == nil && onMachine {
		l.watchFile(dir)
	}
	if err == nil {
		return l, nil
	}
	if l.dir != nil {
		err = errors.Join(err, l.dir.Close())
	}
	var perr *fs.PathError
	if errors.As(err, &perr) {
		return nil, fmt.Errorf("data directory %s cannot be locked: %w", dir, err)
	}
	return nil, fmt.Errorf("%w: another process has %s open; stop it or choose another directory (%v)", ErrLocked, dir, err)
}

// File is the locked file LOCK, for Pebble, which would lock it itself.
func (l *Lock) File() *pebble.Lock { return l.file }

// Close releases the lock.
func (l *Lock) Close() error {
	err := l.file.Close()
	if l.dir != nil {
		err = errors.Join(err, l.dir.Close())
	}
	return err
}

// watchFile notes the lock file where it is all that keeps other processes out.
func (l *Lock) watchFile(dir string) {
	if l.dir != nil {
		return
	}
	l.path = filepath.Join(dir, LockName)
	l.named, _ = os.Stat(l.path)
}

// Check returns ErrLockRemoved if the lock doesn't keep other processes out any more.
func (l *Lock) Check() error {
	if l.named == nil {
		return nil
	}
	switch now, err := os.Stat(l.path); {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(now, l.named):
		return ErrLockRemoved
	}
	return nil
}

// RemoveLock removes the file LOCK of a directory that is not in use.
func RemoveLock(fsys vfs.FS, dir string) error {
	if err := fsys.Remove(fsys.PathJoin(dir, LockName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// MakeDir creates dir for its owner only, and syncs the directories above it:
// a database in a directory that a crash removes is no database.
func MakeDir(fsys vfs.FS, dir string) error {
	var missing []string
	for d := dir; ; {
		if _, err := fsys.Stat(d); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, d)
		parent := fsys.PathDir(d)
		if parent == d {
			break
		}
		d = parent
	}
	if len(missing) == 0 {
		return nil
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range missing {
		if err := SyncDir(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

// SyncDir makes the names in a directory durable.
func SyncDir(fsys vfs.FS, dir string) error {
	f, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
