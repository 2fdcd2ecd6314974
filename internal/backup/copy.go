package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

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
	if files, err := readList(fsys, fsys.PathJoin(dir, datadir.Incomplete)); err == nil {
		for _, l := range files {
			moved[l.name] = l.size
		}
	}
	for _, name := range names {
		if name == "lost+found" || name == datadir.Incomplete || name == datadir.LockName {
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

// reserve keeps other backups, restores, salvages and servers out of dest until release.
func reserve(fsys vfs.FS, dest string) (release func() error, err error) {
	if _, err := vacant(fsys, dest); err != nil { // nothing is left behind in what is in use
		return nil, err
	}
	l, err := datadir.Acquire(fsys, dest)
	if errors.Is(err, datadir.ErrLocked) {
		return nil, fmt.Errorf("%w: another backup, restore or salvage writes to %s, or a server uses it; wait for it, or choose another directory", datadir.ErrLocked, dest)
	}
	if err != nil {
		return nil, err
	}
	return func() error {
		return errors.Join(l.Close(), datadir.RemoveLock(fsys, dest))
	}, nil
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
	partial = fsys.PathJoin(dest, datadir.Incomplete)
	if err := errors.Join(fsys.RemoveAll(partial), datadir.MakeDir(fsys, partial)); err != nil {
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
		case name == datadir.BackupList:
			return 2
		case strings.Contains(name, "marker.manifest"):
			return 1
		}
		return 0
	}
	sort.Slice(names, func(i, j int) bool { return rank(names[i]) < rank(names[j]) })
	for i, name := range names {
		if i > 0 && rank(name) > 0 {
			if err := datadir.SyncDir(fsys, dest); err != nil {
				return err
			}
		}
		if name == datadir.BackupList && !backup {
			err = fsys.Remove(fsys.PathJoin(partial, name))
		} else {
			err = fsys.Rename(fsys.PathJoin(partial, name), fsys.PathJoin(dest, name))
		}
		if err != nil {
			return fmt.Errorf("%s is whole, but cannot be moved: %w", partial, err)
		}
	}
	return errors.Join(fsys.Remove(partial), datadir.SyncDir(fsys, dest))
}
