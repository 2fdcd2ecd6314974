package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// backupLook is how often a backup under way is looked at for its progress.
const backupLook = 50 * time.Millisecond

// Backup writes a copy of the database, as it is at one moment, into the
// directory dest, which must not exist or be empty. Everything that was
// acknowledged before the call is in it, and of each batch all or nothing. First
// what is in memory is written as tables, so the copy gets a log of nothing; Close doesn't wait
// for that. Reading and writing go on meanwhile. On the same file system tables are
// linked instead of copied, which costs neither time nor space; they are never
// written to again. The copy is made in a directory inside dest and moved up when
// it is whole, so that a backup that was cut short is never taken for one.
func (j *Journal) Backup(dest string, progress func(Progress)) (done Progress, err error) {
	if err := j.beginRead(); err != nil {
		return done, err
	}
	defer j.endRead()
	fsys := j.o.FS
	if err := vacant(fsys, dest); err != nil {
		return done, err
	}
	partial, err := beginCopy(fsys, dest)
	if err != nil {
		return done, err
	}
	if err := fsys.Remove(partial); err != nil { // Checkpoint wants to make it
		return done, err
	}
	ended := make(chan error, 1)
	go func() {
		err := j.Flush()
		if err == nil {
			err = j.db.Checkpoint(partial)
		}
		if err == nil {
			err = makeLog(fsys, partial)
		}
		ended <- err
	}()
	total := j.size()
	tick := time.NewTicker(backupLook)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case err = <-ended:
			waiting = false
		case <-tick.C:
			if progress != nil {
				p := measure(fsys, partial)
				p.OfFiles, p.OfBytes = max(p.Files, total.Files), max(p.Bytes, total.Bytes)
				progress(p)
			}
		}
	}
	if err != nil {
		return done, fmt.Errorf("backup to %s: %w", dest, errors.Join(err, fsys.RemoveAll(partial)))
	}
	done = measure(fsys, partial)
	done.OfFiles, done.OfBytes = done.Files, done.Bytes
	return done, endCopy(fsys, partial, dest)
}

// size is about what a backup will hold.
func (j *Journal) size() Progress {
	m := j.db.Metrics()
	total := m.Total()
	return Progress{
		Files: int(total.TablesCount),
		Bytes: total.TablesSize,
	}
}

// measure counts what is in a directory.
func measure(fsys vfs.FS, dir string) (p Progress) {
	names, _ := fsys.List(dir)
	for _, name := range names {
		if info, err := fsys.Stat(fsys.PathJoin(dir, name)); err == nil && !info.IsDir() {
			p.Files++
			p.Bytes += info.Size()
		}
	}
	return p
}

// vacant makes sure that nothing would be overwritten.
func vacant(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s cannot be used: %w", dir, err)
	}
	for _, name := range names {
		if name != "lost+found" && name != partialName {
			return fmt.Errorf("%s is not empty (it has a file %q): nothing is overwritten, choose a new directory", dir, name)
		}
	}
	return nil
}

// partialName is where a copy is made before it is whole.
const partialName = "incomplete"

// beginCopy makes dest, and in it an empty directory for what is not whole yet.
func beginCopy(fsys vfs.FS, dest string) (partial string, err error) {
	partial = fsys.PathJoin(dest, partialName)
	if err := errors.Join(fsys.RemoveAll(partial), makeDir(fsys, partial)); err != nil {
		return "", fmt.Errorf("%s cannot be created: %w", partial, err)
	}
	return partial, nil
}

// endCopy moves what is whole to its place, durably. What makes it a database,
// the marker that names its manifest, comes last.
func endCopy(fsys vfs.FS, partial, dest string) error {
	names, err := fsys.List(partial)
	if err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Compare(strings.Count(a, "marker.manifest"), strings.Count(b, "marker.manifest"))
	})
	for i, name := range names {
		if i == len(names)-1 {
			if err := syncDir(fsys, dest); err != nil {
				return err
			}
		}
		if err := fsys.Rename(fsys.PathJoin(partial, name), fsys.PathJoin(dest, name)); err != nil {
			return fmt.Errorf("%s is whole, but cannot be moved: %w", partial, err)
		}
	}
	return errors.Join(fsys.Remove(partial), syncDir(fsys, dest))
}

// Restore copies a backup into the directory dest, which must not exist or be
// empty, and makes it durable. verify, if not nil, is asked about the copy
// before it gets its name; what it refuses is removed again.
func Restore(fsys vfs.FS, backup, dest string, progress func(Progress), verify func(dir string) error) (done Progress, err error) {
	if fsys == nil {
		fsys = vfs.Default
	}
	if desc, err := pebble.Peek(backup, fsys); err != nil || !desc.Exists {
		if err == nil {
			err = errors.New("there is no database in it")
		}
		return done, fmt.Errorf("%s is not a backup: %w", backup, err)
	}
	if err := vacant(fsys, dest); err != nil {
		return done, err
	}
	if err := unused(fsys, backup); err != nil {
		return done, err
	}
	partial, err := beginCopy(fsys, dest)
	if err != nil {
		return done, err
	}
	done, err = copyFiles(fsys, backup, partial, progress)
	if err == nil && verify != nil {
		err = verify(partial)
	}
	if err == nil {
		err = removeLock(fsys, partial)
	}
	if err != nil {
		return done, errors.Join(err, fsys.RemoveAll(partial))
	}
	return done, endCopy(fsys, partial, dest)
}

// unused makes sure that a directory to be copied is not a server's: its files
// change while they are read.
func unused(fsys vfs.FS, dir string) error {
	if _, err := fsys.Stat(fsys.PathJoin(dir, "LOCK")); err != nil {
		return nil // a backup, maybe on a medium that cannot be written to
	}
	l, err := lock(fsys, dir)
	if errors.Is(err, ErrLocked) {
		return fmt.Errorf("%w; make a backup of it with holdfast backup", err)
	}
	if err != nil {
		return nil
	}
	return l.Close()
}

// SocketName is the file in a data directory through which a running server is
// reached; it is the server's business.
const SocketName = "holdfast.sock"

// ours says whether a file of a data directory is part of the database, and not
// of a server that runs on it.
func ours(name string) bool {
	switch name {
	case "LOCK", "lost+found", ballastName, SocketName:
		return false
	}
	return true
}

func copyFiles(fsys vfs.FS, from, to string, progress func(Progress)) (p Progress, err error) {
	total := measure(fsys, from)
	p.OfFiles, p.OfBytes = total.Files, total.Bytes
	names, err := fsys.List(from)
	if err != nil {
		return p, fmt.Errorf("%s cannot be read: %w", from, err)
	}
	for _, name := range names {
		source := fsys.PathJoin(from, name)
		info, err := fsys.Stat(source)
		if err != nil {
			return p, fmt.Errorf("%s cannot be read: %w", source, err)
		}
		if info.IsDir() || !ours(name) {
			continue
		}
		if err := vfs.Copy(fsys, source, fsys.PathJoin(to, name)); err != nil { // it syncs
			return p, fmt.Errorf("%s cannot be copied: %w", source, err)
		}
		p.Files++
		p.Bytes += info.Size()
		if progress != nil {
			progress(p)
		}
	}
	p.OfFiles, p.OfBytes = p.Files, p.Bytes
	return p, syncDir(fsys, to)
}

// removeLock takes away what verifying has left.
func removeLock(fsys vfs.FS, dir string) error {
	if err := fsys.Remove(fsys.PathJoin(dir, "LOCK")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
