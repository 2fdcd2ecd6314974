package datadir

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// LinkFS is a file system whose links are copies where links can't be, or aren't wanted.
type LinkFS struct {
	vfs.FS
	copied sync.Map // directories where links are to be copies
}

// CopyTo says whether links into a directory are to be copies.
func (l *LinkFS) CopyTo(dir string, copies bool) {
	if copies {
		l.copied.Store(dir, nil)
	} else {
		l.copied.Delete(dir)
	}
}

// Link implements vfs.FS.
func (l *LinkFS) Link(oldname, newname string) error {
	if _, wanted := l.copied.Load(l.PathDir(newname)); wanted {
		return vfs.Copy(l.FS, oldname, newname)
	}
	err := l.FS.Link(oldname, newname)
	if errors.Is(err, fs.ErrPermission) { // what a file system without links says; Pebble copies after other errors only
		return vfs.Copy(l.FS, oldname, newname)
	}
	return err
}
