package journal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// pebbleFormat is the on-disk format of the database, the newest of the pinned Pebble.
// With its default Pebble takes damage to a log of its own, which a directory of format 1
// has, for the end, and acknowledged writes are lost without an error. Raising it is
// one-way forevery directory that is opened.
const pebbleFormat = pebble.FormatValueSeparation

// formatVersion is the version of our own layout of keys and records.
// In version 1 Pebble's own log had what was not in tables; it reads that itself.
const formatVersion = 2

// formatPrefix precedes the version in the format record.
const formatPrefix = "holdfast "

var (
	formatKey = []byte("m|format")
	// MetaKey is the row that has the meta record.
	MetaKey = []byte("m|meta")
	// AppliedKey is the row that says up to which batch the database has the rows.
	AppliedKey = []byte("m|applied")
)

var (
	// ErrLocked: another process, or another Journal of this one, has the
	// directory open.
	ErrLocked = datadir.ErrLocked
	// ErrNewerFormat: the directory was written by a newer program.
	ErrNewerFormat = errors.New("data directory has a newer format")
	// ErrBackup: the directory is a backup, and not for a server to run on.
	ErrBackup = errors.New("directory is a backup")
	// ErrForeign: the directory holds something that is not ours.
	ErrForeign = errors.New("directory holds other data")
	// ErrClosed: the journal has been closed.
	ErrClosed = errors.New("journal is closed")
)

// refuseCopy refuses to run on a backup, and to open what was never whole. A backup is
// whole as soon as its list of files has been moved up, whatever is left beside it.
func refuseCopy(fsys vfs.FS, dir string, readOnly bool) error {
	switch isBackup := datadir.IsBackup(fsys, dir); {
	case isBackup && !readOnly:
		return fmt.Errorf("%w: %s is to stay as it is; make a data directory of it with holdfast restore %s --data NEW, and start with --data NEW", ErrBackup, dir, dir)
	case !isBackup && datadir.HasCutOffCopy(fsys, dir):
		return fmt.Errorf("%w: %s has a backup, restore or salvage in it that was cut off (directory %q): repeat it into the same directory, or choose another one", ErrForeign, dir, datadir.Incomplete)
	}
	return nil
}

// inspect looks at a directory before Pebble opens it, because opening writes.
// It returns whether there is a database in it.
func inspect(fsys vfs.FS, dir string, lock *datadir.Lock) (exists bool, err error) {
	desc, err := pebble.Peek(dir, fsys)
	if err != nil {
		if strings.Contains(err.Error(), "unknown format major version") {
			return false, fmt.Errorf("%w: %s needs a newer version of this program (%v)", ErrNewerFormat, dir, err)
		}
		return false, fmt.Errorf("data directory %s cannot be read: %w", dir, err)
	}
	if desc.Exists {
		if desc.FormatMajorVersion < pebbleFormat {
			return true, checkReadOnly(fsys, dir, lock)
		}
		return true, nil
	}
	names, err := fsys.List(dir)
	if err != nil {
		return false, fmt.Errorf("data directory %s cannot be read: %w", dir, err)
	}
	for _, name := range names {
		if _, isLog := wal.ParseSegmentName(name); isLog {
			return false, fmt.Errorf("%w: %s has a log (%s), and the database that it belongs to is gone: restore a backup, or choose an empty directory", ErrDamaged, dir, name)
		}
		if !expected(name) {
			return false, fmt.Errorf("%w: %s has no database in it, but a file %q; choose an empty directory", ErrForeign, dir, name)
		}
	}
	return false, nil
}

// expected tells the names that may be in a directory without a database: what
// a crash during creation leaves, and what a fresh file system has.
func expected(name string) bool {
	switch {
	case name == "LOCK", name == "lost+found", name == "CURRENT", name == "cluster":
		return true
	case strings.HasPrefix(name, "MANIFEST-"), strings.HasPrefix(name, "OPTIONS-"),
		strings.HasPrefix(name, "marker."), strings.HasPrefix(name, "ballast"),
		strings.HasPrefix(name, "temporary."):
		return true
	}
	return strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".dbtmp")
}

// checkReadOnly makes sure that a database of an older Pebble format is ours
// before an ordinary open raises its format for good.
func checkReadOnly(fsys vfs.FS, dir string, lock *datadir.Lock) error {
	db, err := pebblefile.OpenReadOnly(fsys, dir, lock, true)
	if err != nil {
		return fmt.Errorf("%w: the database in %s cannot be opened: %w", ErrForeign, dir, err)
	}
	_, err = readFormat(db, dir)
	return errors.Join(err, db.Close())
}

// readFormat checks the format record. The version is 0 in an empty database, which
// is what a crash right after creation leaves.
func readFormat(db *pebble.DB, dir string) (found int, err error) {
	value, closer, err := db.Get(formatKey)
	if errors.Is(err, pebble.ErrNotFound) {
		empty, err := isEmpty(db)
		if err == nil && !empty {
			err = fmt.Errorf("%w: the Pebble database in %s was not written by this program; choose another directory", ErrForeign, dir)
		}
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("format record in %s cannot be read: %w", dir, err)
	}
	text := string(value)
	if err := closer.Close(); err != nil {
		return 0, err
	}
	version, ok := strings.CutPrefix(text, formatPrefix)
	n, convErr := strconv.Atoi(version)
	switch {
	case !ok || convErr != nil || n < 1:
		return 0, fmt.Errorf("%w: the format record in %s says %q", ErrForeign, dir, text)
	case n > formatVersion:
		return 0, fmt.Errorf("%w: %s has format %d, this program knows formats up to %d; use a newer version", ErrNewerFormat, dir, n, formatVersion)
	}
	return n, nil
}

func isEmpty(db *pebble.DB) (bool, error) {
	it, err := db.NewIter(nil)
	if err != nil {
		return false, err
	}
	some := it.First()
	return !some, errors.Join(it.Error(), it.Close())
}

// writeFormat writes the format record, the log's mask, and that there is a log, and
// to a table whatever is in the database. Pebble tries a table again forever; so if it
// does not come, the journal fails.
func (j *Journal) writeFormat() error {
	if err := wal.Create(j.o.FS, j.o.Dir, 1); err != nil {
		return err
	}
	b := j.db.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.Set(formatKey, strconv.AppendInt([]byte(formatPrefix), formatVersion, 10), nil),
		b.Set(wal.MaskKey, wal.NewMask(), nil),
		b.Set(wal.LoggedKey, nil, nil),
		j.db.Apply(b, pebble.NoSync))
	if err != nil {
		return err
	}
	written, err := j.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-written:
		return nil
	case <-time.After(j.o.CommitTimeout):
		j.fail(fmt.Errorf("the format record has not reached the disk within %v: is the disk full, or hanging?", j.o.CommitTimeout))
		select {} // Pebble can't be closed now
	}
}
