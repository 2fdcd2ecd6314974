package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// pebbleFormat is the on-disk format of the database, the newest of the pinned Pebble.
// With its default Pebble takes damage to a log of its own, which a directory of format 1
// has, for the end, and acknowledged writes are lost without an error. Raising it is
// one-way for every directory that is opened.
const pebbleFormat = pebble.FormatValueSeparation

// formatVersion is the version of our own layout of keys and records.
// In version 1 Pebble's own log had what was not in tables; it reads that itself.
const formatVersion = 2

// formatPrefix precedes the version in the format record.
const formatPrefix = "holdfast "

var (
	formatKey = []byte("m|format")
	metaKey   = []byte("m|meta")
)

var (
	// ErrLocked: another process, or another Journal of this one, has the
	// directory open.
	ErrLocked = errors.New("data directory is in use")
	// ErrNewerFormat: the directory was written by a newer program.
	ErrNewerFormat = errors.New("data directory has a newer format")
	// ErrForeign: the directory holds something that is not ours.
	ErrForeign = errors.New("directory holds other data")
	// ErrClosed: the journal has been closed.
	ErrClosed = errors.New("journal is closed")
)

// dirLock is the right to use a directory: its file LOCK, and where the system can do
// that the directory itself, which stays locked when the file is deleted.
type dirLock struct {
	file *pebble.Lock
	dir  *os.File // nil: only the file is locked

	path  string      // of the file, if only that is locked
	named os.FileInfo // what had that path then
}

// lock creates the directory if need be and locks it against other processes.
func lock(fsys vfs.FS, dir string) (*dirLock, error) {
	if err := makeDir(fsys, dir); err != nil {
		return nil, fmt.Errorf("data directory %s cannot be created: %w", dir, err)
	}
	l := &dirLock{}
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

func (l *dirLock) Close() error {
	err := l.file.Close()
	if l.dir != nil {
		err = errors.Join(err, l.dir.Close())
	}
	return err
}

// makeDir creates dir for its owner only, and syncs the directories above it:
// a database in a directory that a crash removes is no database.
func makeDir(fsys vfs.FS, dir string) error {
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
		if err := syncDir(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(fsys vfs.FS, dir string) error {
	f, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// inspect looks at a directory before Pebble opens it, because opening writes.
// It returns whether there is a database in it.
func inspect(fsys vfs.FS, dir string, lock *dirLock) (exists bool, err error) {
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
		if _, isLog := segmentNumber(name); isLog {
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
	case name == "LOCK", name == "lost+found", name == "CURRENT":
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
func checkReadOnly(fsys vfs.FS, dir string, lock *dirLock) error {
	db, err := pebble.Open(dir, &pebble.Options{FS: fsys, ReadOnly: true, Logger: silent{}, Lock: lock.file})
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

// readDisguise reads what the numbers in the log are disguised with; 0 in a database of
// version 1, which has no log of ours.
func readDisguise(db pebble.Reader) (disguise, error) {
	value, closer, err := db.Get(disguiseKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s cannot be read: %w", disguiseKey, err)
	}
	defer closer.Close()
	if len(value) != 8 {
		return 0, fmt.Errorf("the row %s has %d bytes", disguiseKey, len(value))
	}
	return disguise(binary.LittleEndian.Uint64(value)), nil
}

func isEmpty(db *pebble.DB) (bool, error) {
	it, err := db.NewIter(nil)
	if err != nil {
		return false, err
	}
	some := it.First()
	return !some, errors.Join(it.Error(), it.Close())
}

// readLogState reads what the tables say of the log.
func readLogState(db pebble.Reader) (s logState, err error) {
	if s.applied, err = readApplied(db.NewIter(nil)); err != nil {
		return s, err
	}
	if s.disguise, err = readDisguise(db); err != nil {
		return s, err
	}
	_, closer, err := db.Get(loggedKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("%s cannot be read: %w", loggedKey, err)
	}
	s.logged = true
	return s, closer.Close()
}

// writeFormat writes the format record, the log's disguise, and that there is a log, and
// to a table whatever is in the database. Pebble tries a table again for ever; so if it
// does not come, the journal fails.
func (j *Journal) writeFormat() error {
	if err := makeLog(j.o.FS, j.o.Dir); err != nil {
		return err
	}
	var disguise [8]byte
	_, _ = rand.Read(disguise[:]) // does not fail
	b := j.db.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.Set(formatKey, strconv.AppendInt([]byte(formatPrefix), formatVersion, 10), nil),
		b.Set(disguiseKey, disguise[:], nil),
		b.Set(loggedKey, nil, nil),
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
