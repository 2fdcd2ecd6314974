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

// Damage and torn ends
//
// A crash may leave a file with a torn end: the last write is there in part, and it was not
// acknowledged. The start drops it. Data that was durable once and does not match its
// checksum any more is damage: what follows it was acknowledged, so the start must not drop
// it silently. The comment of wal.recoverLog says how the two are told apart in the log.
// Tables have checksums, which Pebble compares when it reads them.
//
// The manifest, Pebble's list of tables, needs more. Pebble takes its first invalid record
// for its end. So with a damaged manifest, Pebble opens the database as it was at an earlier
// moment, or as empty. Comparing it with the log shows that. The log is trimmed only up to
// the batches that are in tables, so there are two cases. Either the log has everything that
// the earlier database lacks, and nothing is lost. Or the log begins too late, which is
// damage. It is damage, too, if a table of the earlier moment is missing because it has been
// merged since; and if the database is empty although its log has batches, since the record
// of the format is in a table before the first batch.
//
// An ordinary open would delete the tables that only the unreadable part of the manifest
// names. So a start first opens the database for reading only, and checks all of this. (A
// test cuts and changes manifests everywhere.)

// ErrDamaged: the directory holds data that does not match its checksums.
var ErrDamaged = errors.New("data directory is damaged")

// findDamage opens the database for reading only, and returns the damage to the manifest,
// and to that part of the log which the tables do not have.
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
		return found, endErr // if nothing is found, the caller opens the database and gets the error
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

// LogDamage returns what is missing or wrong in the log of a database that is open for
// reading.
func LogDamage(fsys vfs.FS, dir string, db *pebble.DB) ([]datadir.Damage, error) {
	version, err := readFormat(db, dir)
	if errors.Is(err, ErrForeign) || errors.Is(err, ErrNewerFormat) {
		return nil, nil // the caller opens the database and gets the error
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

// damagedEnd returns a line about a manifest that can't be read to its end; nil: it can. By
// itself that is no damage, because a torn write leaves the same.
func damagedEnd(fsys vfs.FS, path string) ([]datadir.Damage, error) {
	whole, err := pebblefile.ReadsToEnd(fsys, path)
	if whole || err != nil {
		return nil, err
	}
	return []datadir.Damage{{File: fsys.PathBase(path), Offset: -1, What: "the list of tables can't be read to its end"}}, nil
}

// refuseDamage is findDamage for a start, which does not open what is damaged.
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

// refusal is the error about damage; nil: there is none.
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
