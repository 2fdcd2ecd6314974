package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Salvage
//
// A start refuses a directory in which anything is damaged, because it can't know what
// that was. A salvage is for an operator who has decided to go on with the rest. It reads
// what can be read, and writes it to a new directory:
//
//   - each table by itself, past its bad blocks, since Pebble ends at the first one
//     (table.go);
//   - these rows merged as Pebble does: of a key the row with the highest sequence number,
//     unless a deletion is newer (merge.go);
//   - the log on top, past its bad frames (salvagelog.go).
//
// Where a block is bad, tables below may still have what its rows were before. An old value
// must not come back in place of a newer one, so there rows that are older than the table
// with the bad block are left out, too. A bad frame in the log can't be handled like that,
// as it doesn't say which rows it had: they are as they were before it.
//
// If the manifest is damaged nothing says which tables are in force, and all that are there
// are taken. Then what had been deleted may come back: the deletion's table may be gone
// already, as one that is in force has neither of them.

// Salvaged is what a salvage could not copy.
type Salvaged struct {
	Lost []datadir.Damage // what can't be read
	// Older counts the rows that were left out because what can't be read may be newer.
	Older int64
}

// Salvage copies what can be read in the directory that o says into the directory dest,
// which must not exist, be empty, or hold what a salvage left that was cut off. repair is
// given the copy to take out rows that make no sense, and verify asked about it when it is
// closed, as with Restore. progress, if not nil, is called as rows are copied. The directory
// itself is left as it is.
func Salvage(o journal.Options, dest string, progress func(Progress), repair func(*journal.Journal) error, verify func(dir string) error) (found Salvaged, err error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if _, err := o.FS.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		return found, fmt.Errorf("there is no data directory %s", o.Dir)
	}
	l, err := datadir.Acquire(o.FS, o.Dir)
	if err != nil {
		return found, err
	}
	s := &salvage{o: o, lock: l, progress: progress, meta: map[string][]byte{}}
	err = errors.Join(s.run(dest, repair, verify), l.Close())
	return s.found, err
}

type salvage struct {
	o     journal.Options // of what is salvaged
	lock  *datadir.Lock
	found Salvaged
	rows  int64 // copied
	to    *journal.Journal
	meta  map[string][]byte // the journal's own rows

	progress func(Progress) // nil: none

	tables  []*table
	removed spans // by deletions of ranges
	unknown spans // where something newer can't be read
}

func (s *salvage) run(dest string, repair func(*journal.Journal) error, verify func(dir string) error) (err error) {
	fsys := s.o.FS
	if err := s.findData(); err != nil {
		return err
	}
	release, err := reserve(fsys, dest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	partial, err := s.begin(dest)
	if err != nil {
		return err
	}
	err = s.copy(partial, repair)
	if err == nil {
		err = verify(partial)
	}
	if err == nil {
		err = datadir.RemoveLock(fsys, partial)
	}
	if err == nil { // for the case that the move is cut off
		err = writeList(fsys, partial, func(listed) {})
	}
	if err != nil {
		return errors.Join(err, fsys.RemoveAll(partial))
	}
	return endCopy(fsys, partial, dest, false)
}

func (s *salvage) lose(file string, offset int64, format string, args ...any) {
	s.found.Lost = append(s.found.Lost, datadir.Damage{File: file, Offset: offset, What: fmt.Sprintf(format, args...)})
}

// findData makes sure that there is something to salvage.
func (s *salvage) findData() error {
	names, err := s.o.FS.List(s.o.Dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(names, func(name string) bool {
		_, isLog := wal.ParseSegmentName(name)
		return isLog || strings.HasSuffix(name, ".sst") || strings.HasPrefix(name, "MANIFEST")
	}) {
		return fmt.Errorf("%w: %s holds no tables and no log", journal.ErrForeign, s.o.Dir)
	}
	return nil
}

// begin makes the directory for the copy, and looks for the tables.
func (s *salvage) begin(dest string) (partial string, err error) {
	names, err := s.o.FS.List(s.o.Dir)
	if err != nil {
		return "", err
	}
	if partial, err = beginCopy(s.o.FS, dest); err != nil {
		return "", err
	}
	if err := s.tablesInForce(); err != nil {
		s.lose(s.o.Dir, -1, "the list of tables can't be used (%s): all tables that are there are read, and rows that had been deleted may be back", pebblefile.PlainError(err))
		s.allTables(names)
	}
	return partial, nil
}

// tablesInForce takes the tables that the manifest names. If the manifest ends early these
// are the tables of an earlier moment, which will do if all of them exist and the log has
// everything since.
func (s *salvage) tablesInForce() error {
	desc, err := pebble.Peek(s.o.Dir, s.o.FS)
	if err != nil {
		return err
	}
	if !desc.Exists {
		return errors.New("there is none")
	}
	whole, err := pebblefile.ReadsToEnd(s.o.FS, desc.ManifestFilename)
	if err != nil {
		return err
	}
	db, err := pebblefile.OpenReadOnly(s.o.FS, s.o.Dir, s.lock, true)
	if err != nil {
		return err
	}
	if err := s.compareWithLog(db, whole); err != nil {
		return errors.Join(err, db.Close())
	}
	levels, err := db.SSTables()
	for _, tables := range levels {
		for _, t := range tables {
			s.tables = append(s.tables, &table{
				name: t.BackingSSTNum.String() + ".sst", newest: uint64(t.LargestSeqNum),
				first: bytes.Clone(t.Smallest.UserKey), last: bytes.Clone(t.Largest.UserKey),
			})
		}
	}
	return errors.Join(err, db.Close())
}

// compareWithLog returns an error if the log does not have everything that the tables of db
// lack. whole: the manifest can be read to its end. Then it can still end early, between two
// records, and that shows only if the log begins too late: other damage to the log says
// nothing about the manifest.
func (s *salvage) compareWithLog(db *pebble.DB, whole bool) error {
	if !whole {
		damage, err := journal.LogDamage(s.o.FS, s.o.Dir, db)
		if err == nil && len(damage) > 0 {
			err = errors.New("it can't be read to its end")
		}
		return err
	}
	var applied uint64
	value, closer, err := db.Get(journal.AppliedKey)
	switch {
	case err == nil:
		applied = appliedIn(value)
		err = closer.Close()
	case errors.Is(err, pebble.ErrNotFound): // the manifest names no table
		err = nil
	case pebble.IsCorruptionError(err):
		return nil // a table with a bad block, which the manifest rightly names
	}
	if err != nil {
		return err
	}
	name, err := wal.FirstUsed(s.o.FS, s.o.Dir)
	if err != nil || name == "" {
		return err
	}
	if first, _ := wal.ParseSegmentName(name); first > applied+1 {
		return fmt.Errorf("it ends early, or the log from batch %d to %d is missing", applied+1, first-1)
	}
	return nil
}

// allTables takes all tables that are there.
func (s *salvage) allTables(names []string) {
	s.tables = nil
	slices.Sort(names)
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			s.tables = append(s.tables, &table{name: name, newest: 1<<64 - 1, last: bytes.Repeat([]byte{0xff}, 64)})
		}
	}
}

// copy writes what can be read to a new journal.
func (s *salvage) copy(partial string, repair func(*journal.Journal) error) error {
	for _, t := range s.tables {
		if err := t.open(s); err != nil {
			s.lose(t.name, -1, "the table can't be read, keys from %q to %q: %s", t.first, t.last, pebblefile.PlainError(err))
			s.unknown = append(s.unknown, span{t.first, after(t.last), t.newest})
		}
		defer t.close()
	}
	o := s.o
	o.Dir, o.ReadOnly, o.Durability, o.Reserve, o.Meta, o.Fatal = partial, false, journal.NoSync, 0, nil, func(error) {}
	var err error
	if s.to, err = journal.Open(o); err != nil {
		return err
	}
	err = s.mergeTables()
	if err == nil {
		err = s.replayLog()
	}
	if meta := s.meta[string(journal.MetaKey)]; meta != nil {
		s.to.RestoreMeta(meta)
	}
	s.to.WaitDurable()
	if err == nil {
		err = repair(s.to)
	}
	s.to.Begin().End(nil) // the meta record rides in a batch
	return errors.Join(err, s.to.Close())
}

// set writes a row, and keeps those of the journal's own.
func (s *salvage) set(key, value []byte) {
	if bytes.HasPrefix(key, []byte("m|")) {
		s.meta[string(key)] = bytes.Clone(value)
		return
	}
	s.to.Admit()
	a := s.to.Begin()
	a.Set(key, value)
	a.End(nil)
	s.copied()
}

// copied counts a row.
func (s *salvage) copied() {
	if s.rows++; s.rows%journal.ProgressRows == 0 && s.progress != nil {
		s.progress(Progress{Rows: s.rows})
	}
}
