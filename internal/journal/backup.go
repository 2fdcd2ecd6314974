package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// backupLook is how often a backup under way is looked at for its progress.
const backupLook = 50 * time.Millisecond

// Backup writes a copy of the database, as it is at one moment, into the
// directory dest, which must not exist, be empty, or hold what a backup left that was cut
// off. Everything that was
// acknowledged before the call is in it, and of each batch all or nothing. First
// what is in memory is written as tables, so the copy gets a log of nothing; Close doesn't wait
// for that. Reading and writing go on meanwhile. On the same file system tables are
// linked instead of copied, unless copies are asked for: a link costs neither time nor
// space, but a block of the disk that goes bad is then bad in both. Tables are
// never written to again. Then every file is read, for the list (see filelist.go). The copy
// is made in a directory inside dest and moved up when
// it is whole, so that a backup that was cut short is never taken for one.
func (j *Journal) Backup(dest string, copies bool, progress func(Progress)) (done Progress, err error) {
	if err := j.beginRead(); err != nil {
		return done, err
	}
	defer j.endRead()
	fsys := j.o.FS
	partial, err := beginCopy(fsys, dest)
	if err != nil {
		return done, err
	}
	if err := fsys.Remove(partial); err != nil { // Checkpoint wants to make it
		return done, err
	}
	if copies {
		j.links.copyTo.Store(partial, nil)
		defer j.links.copyTo.Delete(partial)
	}
	ended := make(chan error, 1)
	go func() {
		err := j.Flush()
		if err == nil {
			err = j.db.Checkpoint(partial)
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
	if err == nil {
		err = makeLog(fsys, partial)
	}
	if err == nil {
		total = measure(fsys, partial)
		done.OfFiles, done.OfBytes = total.Files, total.Bytes
		err = writeList(fsys, partial, func(l listed) {
			done.Files++
			done.Bytes += l.size
			if progress != nil {
				progress(done)
			}
		})
	}
	if err != nil {
		return done, fmt.Errorf("backup to %s: %w", dest, errors.Join(err, fsys.RemoveAll(partial)))
	}
	return done, endCopy(fsys, partial, dest, true)
}

// linkFS is the file system as Pebble sees it, whose links are copies where links can't
// be, or aren't wanted.
type linkFS struct {
	vfs.FS
	copyTo sync.Map // directories where links are to be copies
}

func (l *linkFS) Link(oldname, newname string) error {
	if _, wanted := l.copyTo.Load(l.PathDir(newname)); wanted {
		return vfs.Copy(l.FS, oldname, newname)
	}
	err := l.FS.Link(oldname, newname)
	if errors.Is(err, fs.ErrPermission) { // what a file system without links says; Pebble copies after other errors only
		return vfs.Copy(l.FS, oldname, newname)
	}
	return err
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

// partialName is where a copy is made before it is whole. As long as there is anything in
// it the copy has not ended.
const partialName = "incomplete"

// isCut says whether a directory has what was left of a copy that was cut off: of a backup,
// a restore or a salvage.
func isCut(fsys vfs.FS, dir string) bool {
	names, err := fsys.List(fsys.PathJoin(dir, partialName))
	return err == nil && len(names) > 0
}

// refuseCopy refuses to run on a backup, and to open what was never whole.
func refuseCopy(fsys vfs.FS, dir string, readOnly bool) error {
	switch {
	case isBackup(fsys, dir) && !readOnly:
		return fmt.Errorf("%w: %s is to stay as it is; make a data directory of it with holdfast restore %s --data NEW, and start with --data NEW", ErrBackup, dir, dir)
	case isCut(fsys, dir):
		return fmt.Errorf("%w: %s has a backup, restore or salvage in it that was cut off (directory %q): repeat it into the same directory, or choose another one", ErrForeign, dir, partialName)
	}
	return nil
}

// vacant makes sure that nothing would be overwritten. What a copy that was cut off had
// moved already is not in the way: the list that is still in its directory names it.
func vacant(fsys vfs.FS, dir string) (cut []string, err error) {
	names, err := fsys.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s cannot be used: %w", dir, err)
	}
	moved := map[string]int64{}
	if files, err := readList(fsys, fsys.PathJoin(dir, partialName)); err == nil {
		for _, l := range files {
			moved[l.name] = l.size
		}
	}
	for _, name := range names {
		if name == "lost+found" || name == partialName || name == "LOCK" {
			continue
		}
		size, was := moved[name]
		if info, err := fsys.Stat(fsys.PathJoin(dir, name)); !was || err != nil || info.Size() != size {
			return nil, fmt.Errorf("%s is not empty (it has a file %q): nothing is overwritten, choose a new directory", dir, name)
		}
		cut = append(cut, name)
	}
	return cut, nil
}

// beginCopy makes dest, and in it an empty directory for what is not whole yet.
func beginCopy(fsys vfs.FS, dest string) (partial string, err error) {
	cut, err := vacant(fsys, dest)
	if err != nil {
		return "", err
	}
	for _, name := range cut {
		if err := fsys.Remove(fsys.PathJoin(dest, name)); err != nil {
			return "", fmt.Errorf("%s cannot be used: %w", dest, err)
		}
	}
	partial = fsys.PathJoin(dest, partialName)
	if err := errors.Join(fsys.RemoveAll(partial), makeDir(fsys, partial)); err != nil {
		return "", fmt.Errorf("%s cannot be created: %w", partial, err)
	}
	return partial, nil
}

// endCopy moves what is whole to its place, durably. What makes it a database,
// the marker that names its manifest, comes last, and then the list of the files,
// which stays where it was if the copy is no backup: then it is removed.
func endCopy(fsys vfs.FS, partial, dest string, backup bool) error {
	names, err := fsys.List(partial)
	if err != nil {
		return err
	}
	rank := func(name string) int {
		switch {
		case name == listName:
			return 2
		case strings.Contains(name, "marker.manifest"):
			return 1
		}
		return 0
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	for i, name := range names {
		if i > 0 && rank(name) > 0 {
			if err := syncDir(fsys, dest); err != nil {
				return err
			}
		}
		if name == listName && !backup {
			err = fsys.Remove(fsys.PathJoin(partial, name))
		} else {
			err = fsys.Rename(fsys.PathJoin(partial, name), fsys.PathJoin(dest, name))
		}
		if err != nil {
			return fmt.Errorf("%s is whole, but cannot be moved: %w", partial, err)
		}
	}
	return errors.Join(fsys.Remove(partial), syncDir(fsys, dest))
}

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
	partial, err := beginCopy(fsys, dest)
	if err != nil {
		return done, err
	}
	done, err = copyListed(fsys, backup, partial, files, progress)
	if err == nil && verify != nil {
		err = verify(partial)
	}
	if err == nil {
		err = removeLock(fsys, partial)
	}
	if err == nil { // for the case that the move is cut off
		err = vfs.Copy(fsys, fsys.PathJoin(backup, listName), fsys.PathJoin(partial, listName))
	}
	if err != nil {
		return done, errors.Join(err, fsys.RemoveAll(partial))
	}
	return done, endCopy(fsys, partial, dest, false)
}

// openBackup reads a backup's list of files.
func openBackup(fsys vfs.FS, dir string) ([]listed, error) {
	switch {
	case isBackup(fsys, dir):
	case isCut(fsys, dir):
		return nil, fmt.Errorf("%s is not a backup: the one in it was cut off; repeat it with holdfast backup, into the same directory if you like", dir)
	default:
		return nil, fmt.Errorf("%s is not a backup: it has no list of its files (%s); the directory of a stopped server can be copied as it is", dir, listName)
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
	return p, syncDir(fsys, to)
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

// removeLock takes away what verifying has left.
func removeLock(fsys vfs.FS, dir string) error {
	if err := fsys.Remove(fsys.PathJoin(dir, "LOCK")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
