package backup

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Restore copies a backup into the directory dest, which must not exist, be
// empty, or hold what a restore left that was cut off, and makes it durable. Each file is
// held against the backup's list. verify, if not nil, is asked about the copy
// before it gets its name; what it refuses is removed again.
func Restore(fsys vfs.FS, backup, dest string, progress func(Progress), verify func(dir string) error) (done Progress, err error) {
	if fsys == nil {
		fsys = vfs.Default
	}
	if err := unused(fsys, backup); err != nil {
		return done, err
	}
	files, err := openBackup(fsys, backup)
	if err != nil {
		return done, err
	}
	release, err := reserve(fsys, dest)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, release()) }()
	partial, err := beginCopy(fsys, dest)
	if err != nil {
		return done, err
	}
	done, err = copyListed(fsys, backup, partial, files, progress)
	if err == nil && verify != nil {
		err = verify(partial)
	}
	if err == nil {
		err = datadir.RemoveLock(fsys, partial)
	}
	if err == nil { // for the case that the move is cut off
		err = vfs.Copy(fsys, fsys.PathJoin(backup, datadir.BackupList), fsys.PathJoin(partial, datadir.BackupList))
	}
	if err != nil {
		return done, errors.Join(err, fsys.RemoveAll(partial))
	}
	return done, endCopy(fsys, partial, dest, false)
}

// openBackup reads a backup's list of files.
func openBackup(fsys vfs.FS, dir string) ([]listed, error) {
	switch {
	case datadir.IsBackup(fsys, dir):
	case datadir.HasCutOffCopy(fsys, dir):
		return nil, fmt.Errorf("%s is not a backup: the one in it was cut off; repeat it with holdfast backup, into the same directory if you like", dir)
	default:
		return nil, fmt.Errorf("%s is not a backup: it has no list of its files (%s); the directory of a stopped server can be copied as it is", dir, datadir.BackupList)
	}
	files, err := readList(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("the backup %s is not whole, nothing was restored: %w", dir, err)
	}
	return files, nil
}

// unused makes sure that a directory to be copied is not a server's: its files
// change while they are read.
func unused(fsys vfs.FS, dir string) error {
	if _, err := fsys.Stat(fsys.PathJoin(dir, datadir.LockName)); err != nil {
		return nil // a backup, maybe on a medium that cannot be written to
	}
	l, err := datadir.Acquire(fsys, dir)
	if errors.Is(err, journal.ErrLocked) {
		return fmt.Errorf("%w; make a backup of it with holdfast backup", err)
	}
	if err != nil {
		return nil
	}
	return l.Close()
}

// copyListed copies a backup's files, durably, unless one is not as the list says.
func copyListed(fsys vfs.FS, from, to string, files []listed, progress func(Progress)) (p Progress, err error) {
	for _, l := range files {
		p.OfFiles++
		p.OfBytes += l.size
	}
	for _, l := range files {
		if err := copyOne(fsys, from, to, l); err != nil {
			return p, err
		}
		p.Files++
		p.Bytes += l.size
		if progress != nil {
			progress(p)
		}
	}
	return p, datadir.SyncDir(fsys, to)
}

// toDisk is a file that remembers why it could not be written.
type toDisk struct {
	vfs.File
	err error
}

func (d *toDisk) Write(p []byte) (n int, err error) {
	n, err = d.File.Write(p)
	d.err = errors.Join(d.err, err)
	return n, err
}

func copyOne(fsys vfs.FS, from, to string, l listed) error {
	f, err := fsys.Create(fsys.PathJoin(to, l.name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w := &toDisk{File: f}
	damage := l.verify(fsys, from, w)
	err = w.err
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s cannot be copied: %w", l.name, err)
	}
	if damage != nil {
		return fmt.Errorf("the backup %s is damaged, nothing was restored: %s", from, damage)
	}
	return nil
}
