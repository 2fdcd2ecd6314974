package datadir

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Names of files in a data directory that are not part of the database.
const (
	// LockName is the file that a process locks to use the directory.
	LockName = "LOCK"
	// SocketName is the file through which a running server is reached.
	SocketName = "holdfast.sock"
	// BallastName is the file that takes up the room in which a server starts on a full disk, or
	// goes on.
	BallastName = "ballast"
	// StartBallastName is the same for a start when that is gone.
	StartBallastName = "ballast-start"
	// BackupList is the list of files that makes a directory a backup.
	BackupList = "BACKUP"
	// Incomplete is a directory inside the destination of a copy (a backup, a restore or a
	// salvage). The copy is made there, and moved up when it is whole; as long as there is
	// anything in it, the copy has not ended.
	Incomplete = "incomplete"
	// lostAndFound is what a fresh file system has.
	lostAndFound = "lost+found"
)

// IsData says whether a file of a data directory is part of the database, and not of a
// server that runs on it.
func IsData(name string) bool {
	switch name {
	case LockName, lostAndFound, BallastName, StartBallastName, SocketName:
		return false
	}
	return true
}

// IsBackup says whether a directory is a backup.
func IsBackup(fsys vfs.FS, dir string) bool {
	_, err := fsys.Stat(fsys.PathJoin(dir, BackupList))
	return err == nil
}

// HasCutOffCopy says whether a directory has what is left of a copy that was cut off.
func HasCutOffCopy(fsys vfs.FS, dir string) bool {
	names, err := fsys.List(fsys.PathJoin(dir, Incomplete))
	return err == nil && len(names) > 0
}

// Damage is a place on the disk that is not as it was written.
type Damage struct {
	File   string // its name in the data directory
	Offset int64  // of the first thing that does not match; -1: somewhere
	What   string
}

func (d Damage) String() string {
	if d.Offset < 0 {
		return fmt.Sprintf("%s: %s", d.File, d.What)
	}
	return fmt.Sprintf("%s, at byte %d: %s", d.File, d.Offset, d.What)
}
