package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// Names in a node's directory.
const (
	stageName      = "snapshot"
	copyName       = "sending"
	installingName = "installing"
	movingName     = "moving"
)

// StageDir is where a snapshot arrives, in a node's directory. It is on the file system of the
// data.
func StageDir(fsys vfs.FS, nodeDir string) string { return fsys.PathJoin(nodeDir, stageName) }

// CopyDir is where the copy of the database is that a node sends.
func CopyDir(fsys vfs.FS, nodeDir string) string { return fsys.PathJoin(nodeDir, copyName) }

// Install puts the database that has arrived in the place of the one in a data directory. The
// caller holds the data directory's lock. If it fails, or the process ends, Finish has to be
// called before the database is opened.
func Install(fsys vfs.FS, dataDir, nodeDir string) error {
	f, err := fsys.Create(fsys.PathJoin(nodeDir, installingName), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), datadir.SyncDir(fsys, nodeDir))
	}
	if err != nil {
		return err
	}
	_, err = Finish(fsys, dataDir, nodeDir)
	return err
}

// Finish completes an Install that was interrupted, and says whether there was one. Then it
// removes what has arrived. A start calls it; the caller holds the data directory's lock.
func Finish(fsys vfs.FS, dataDir, nodeDir string) (installed bool, err error) {
	installing, moving := fsys.PathJoin(nodeDir, installingName), fsys.PathJoin(nodeDir, movingName)
	if installed, err = exists(fsys, installing); err != nil {
		return installed, err
	}
	if installed {
		if err := removeDatabase(fsys, dataDir); err != nil {
			return true, fmt.Errorf("the old database could not be removed: %w", err)
		}
		if err := errors.Join(fsys.Rename(installing, moving), datadir.SyncDir(fsys, nodeDir)); err != nil {
			return true, err
		}
	}
	half, err := exists(fsys, moving)
	if err != nil {
		return installed, err
	}
	if half {
		if err := move(fsys, StageDir(fsys, nodeDir), dataDir); err != nil {
			return true, fmt.Errorf("the new database could not be moved to its place: %w", err)
		}
		if err := errors.Join(fsys.Remove(moving), datadir.SyncDir(fsys, nodeDir)); err != nil {
			return true, err
		}
	}
	return installed || half, fsys.RemoveAll(StageDir(fsys, nodeDir))
}

func exists(fsys vfs.FS, path string) (bool, error) {
	_, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// removeDatabase durably removes the files of a database, the manifest's marker first: what is
// left is none then.
func removeDatabase(fsys vfs.FS, dir string) error {
	files, err := listFiles(fsys, dir)
	if err != nil {
		return err
	}
	sort.Slice(files, func(i, j int) bool { return compareMarkers(files[i], files[j]) > 0 })
	for _, f := range files {
		if err := fsys.Remove(fsys.PathJoin(dir, f.Name)); err != nil {
			return err
		}
	}
	return datadir.SyncDir(fsys, dir)
}

// move durably gives files another place, the manifest's marker last. The old names stay: a
// power cut can take the one or the other, and then this is repeated.
func move(fsys vfs.FS, from, to string) error {
	files, err := listFiles(fsys, from)
	if err != nil {
		return err
	}
	sort.Slice(files, func(i, j int) bool { return compareMarkers(files[i], files[j]) < 0 })
	for i, f := range files {
		if i > 0 && compareMarkers(files[i-1], f) != 0 {
			if err := datadir.SyncDir(fsys, to); err != nil {
				return err
			}
		}
		name := fsys.PathJoin(to, f.Name)
		if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := vfs.LinkOrCopy(fsys, fsys.PathJoin(from, f.Name), name); err != nil {
			return err
		}
	}
	return datadir.SyncDir(fsys, to)
}

// compareMarkers puts the marker that names the manifest behind all other files.
func compareMarkers(a, b File) int {
	rank := func(f File) int {
		if strings.HasPrefix(f.Name, "marker.manifest") {
			return 1
		}
		return 0
	}
	return cmp.Compare(rank(a), rank(b))
}
