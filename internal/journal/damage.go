package journal

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Damage, as against an end
//
// A crash may leave a file with a torn end: the last of it is there in part, and was not
// acknowledged. That must be forgiven. What was durable once and does not match its
// checksum any more is damage: what follows it was acknowledged, and must not be lost in
// silence. How the two are told apart in the log is said in wal/recover.go. Tables have
// checksums that Pebble compares when it reads them.
//
// That leaves the manifest. Its reader takes the first invalid record for the end, so after
// damage the database is one of an earlier moment, or an empty one. The log shows it: it is
// trimmed only up to where tables have its rows, so either it has all that the earlier
// database lacks, and nothing is lost, or it begins too late, which is damage. Tables of the
// earlier moment that have been merged since are missing, which is damage, too. An empty
// database whose log has batches is damaged, since the record of its format is in tables
// before the first batch.
//
// An ordinary open would delete the tables that the rest of the manifest would have named.
// So all of this is looked at on a database that is open for reading only, before Pebble is
// let in. (A test cuts and changes manifests everywhere.)

// ErrDamaged: the directory holds data that does not match its checksums.
var ErrDamaged = errors.New("data directory is damaged")

// findDamage opens the database for reading only, and says what is damaged in the manifest
// and in what the tables leave to the log.
func findDamage(fsys vfs.FS, dir string, lock *datadir.Lock) (found []datadir.Damage, err error) {
	desc, err := pebble.Peek(dir, fsys)
	if err != nil || !desc.Exists {
		return nil, err
	}
	db, err := pebblefile.OpenReadOnly(fsys, dir, lock, true)
	if err != nil {
		found, endErr := damagedEnd(fsys, desc.ManifestFilename)
		if errors.Is(err, fs.ErrNotExist) {
			found = append(found, datadir.Damage{File: dir, Offset: -1, What: "a table is missing: " + pebblefile.PlainError(err)})
		}
		return found, endErr // if nothing is found the caller opens it, and will say why it can't
	}
	found, err = LogDamage(fsys, dir, db)
	err = errors.Join(err, db.Close())
	if pebble.IsCorruptionError(err) {
		return []datadir.Damage{{File: dir, Offset: -1, What: "a table: " + pebblefile.PlainError(err)}}, nil
	}
	if err == nil && len(found) > 0 {
		var end []datadir.Damage
		end, err = damagedEnd(fsys, desc.ManifestFilename)
		found = append(end, found...)
	}
	return found, err
}

// LogDamage says what is missing or wrong in the log of a database that is open for reading.
func LogDamage(fsys vfs.FS, dir string, db *pebble.DB) ([]datadir.Damage, error) {
	version, err := readFormat(db, dir)
	if errors.Is(err, ErrForeign) || errors.Is(err, ErrNewerFormat) {
		return nil, nil // the caller opens it, and will say so
	}
	if err != nil {
		return nil, err
	}
	if version < formatVersion {
		name, err := wal.FirstUsed(fsys, dir)
		if name == "" || err != nil {
			return nil, err
		}
		return []datadir.Damage{{File: dir, Offset: -1, What: fmt.Sprintf("the database has no record of a log, and %s has batches", name)}}, nil
	}
	l, err := readFiles(Options{FS: fsys, Dir: dir}, db, wal.Options{})
	if err != nil {
		return nil, err
	}
	return l.Damage(), nil
}

// damagedEnd says that a manifest can't be read to its end; nil: it can. By itself it is no
// damage: a write that was cut off leaves the same.
func damagedEnd(fsys vfs.FS, path string) ([]datadir.Damage, error) {
	whole, err := pebblefile.ReadsToEnd(fsys, path)
	if whole || err != nil {
		return nil, err
	}
	return []datadir.Damage{{File: fsys.PathBase(path), Offset: -1, What: "the list of tables can't be read to its end"}}, nil
}

// refuseDamage is findDamage for a start: what is damaged is not opened.
func (j *Journal) refuseDamage() error {
	found, err := findDamage(j.o.FS, j.o.Dir, j.lock)
	if err != nil {
		return unreadable(j.o.Dir, err)
	}
	return refusal(j.o.Dir, found)
}

func unreadable(dir string, err error) error {
	return fmt.Errorf("data directory %s cannot be read: %w", dir, err)
}

// refusal says what is damaged; nil: nothing.
func refusal(dir string, found []datadir.Damage) error {
	if len(found) == 0 {
		return nil
	}
	more := ""
	if len(found) > 1 {
		more = fmt.Sprintf(" (and in %d more places)", len(found)-1)
	}
	return fmt.Errorf("%w: %s: %s%s; nothing was changed: keep a copy, and restore a backup, or see with holdfast check what is left", ErrDamaged, dir, found[0], more)
}
