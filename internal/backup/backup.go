package backup

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// pollInterval is how often a backup under way is looked at for its progress.
const pollInterval = 50 * time.Millisecond

// ErrUnderWay: another backup of the same source has not ended.
var ErrUnderWay = errors.New("another backup of this server is under way (it goes on when its command is interrupted): try again when it has ended")

// underWay has the sources of which a backup is being made.
var underWay sync.Map

// Progress is how far a backup, a restore, a check or a salvage has come.
type Progress struct {
	Rows           int64 // read: by a check after its files, by a salvage
	Files, OfFiles int
	Bytes, OfBytes int64
}

// Source is a database that is in use: a *journal.Journal, or that of a node of a cluster.
type Source interface {
	FS() journal.FS
	// Checkpoint copies it into a directory that does not exist, as journal.Journal.Checkpoint does.
	Checkpoint(dir string, copies bool) error
	// TableSize says about how much that is.
	TableSize() (tables int, bytes int64)
}

// Backup writes a copy of a database, as it is at one moment, into the directory
// dest, which must not exist, be empty, or hold what is left of a backup that was cut off.
// Everything that was acknowledged before the call is in it, and of each batch all or
// nothing. Reading and writing go on meanwhile.
//
// On the same file system tables are linked instead of copied, unless copies are asked for:
// a link costs neither time nor space, but a block of the disk that goes bad is then bad in
// both. Tables are never written to again. Then every file is read, for the list (see
// filelist.go). The copy is made in a directory inside dest and moved up when it is whole,
// so that a backup that was cut short is never taken for one. While a backup is under way,
// others of the same source fail with ErrUnderWay, and others to dest with ErrLocked.
func Backup(j Source, dest string, copies bool, progress func(Progress)) (done Progress, err error) {
	if _, another := underWay.LoadOrStore(j, nil); another {
		return done, ErrUnderWay
	}
	defer underWay.Delete(j)
	fsys := j.FS()
	release, err := reserve(fsys, dest)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, release()) }()
	partial, err := beginCopy(fsys, dest)
	if err != nil {
		return done, err
	}
	if err := fsys.Remove(partial); err != nil { // Checkpoint wants to make it
		return done, err
	}
	if err = checkpoint(j, partial, copies, progress); err == nil {
		total := measure(fsys, partial)
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

// checkpoint writes the copy, and says how far it has come by what is there.
func checkpoint(j Source, dir string, copies bool, progress func(Progress)) error {
	ended := make(chan error, 1)
	go func() {
		defer failstop.End(nil, "a backup")
		ended <- j.Checkpoint(dir, copies)
	}()
	var total Progress
	total.OfFiles, total.OfBytes = j.TableSize()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
			if progress != nil {
				p := measure(j.FS(), dir)
				p.OfFiles, p.OfBytes = max(p.Files, total.OfFiles), max(p.Bytes, total.OfBytes)
				progress(p)
			}
		}
	}
}
