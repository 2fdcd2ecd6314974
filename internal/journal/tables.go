package journal

import (
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// What package backup needs of the database: its tables on the disk, to copy them, to
// verify them, and to read one that is damaged.

// OpenDamaged opens a data directory for reading, whatever is damaged in it, and says what
// is damaged in its manifest and its log; tables are not looked at (see CheckTables). j is
// nil if the damage is such that the directory cannot be opened. An error means that it
// could not be looked at: it is in use (ErrLocked), not ours (ErrForeign), or newer than
// this program (ErrNewerFormat).
func OpenDamaged(o Options) (j *Journal, damage []datadir.Damage, err error) {
	o.ReadOnly = true
	o.setDefaults()
	if err := refuseCopy(o.FS, o.Dir, true); err != nil {
		return nil, nil, err
	}
	l, err := datadir.Acquire(o.FS, o.Dir)
	if err != nil {
		return nil, nil, err
	}
	if _, err := inspect(o.FS, o.Dir, l); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	damage, err = findDamage(o.FS, o.Dir, l)
	if err := errors.Join(err, l.Close()); err != nil {
		return nil, nil, unreadable(o.Dir, err)
	}
	if j, err = open(o, len(damage) > 0); err == nil {
		return j, damage, nil
	}
	if errors.Is(err, ErrLocked) || len(damage) == 0 && (errors.Is(err, ErrForeign) || errors.Is(err, ErrNewerFormat)) {
		return nil, nil, err
	}
	return nil, append(damage, datadir.Damage{File: o.Dir, Offset: -1, What: "the database cannot be opened: " + pebblefile.PlainError(err)}), nil
}

// Mended is what was wrong in one bit at the end of the log, where a power cut leaves torn
// writes, and is read as it should be. A start writes it so.
func (j *Journal) Mended() []datadir.Damage { return j.mended }

// TableSize is how many tables there are, and their bytes.
func (j *Journal) TableSize() (tables int, bytes int64) {
	if _, err := j.addReader(); err != nil {
		return 0, 0
	}
	defer j.endRead()
	total := j.db.Metrics().Total()
	return int(total.TablesCount), total.TablesSize
}

// CheckTables reads every block of every table, then all of them against each other, and
// says what does not match its checksum or contradicts itself. step is called with the size
// of each table that was read.
func (j *Journal) CheckTables(step func(bytes int64)) (found []datadir.Damage) {
	levels, err := j.db.SSTables()
	if err != nil {
		return []datadir.Damage{{File: j.o.Dir, Offset: -1, What: "the list of tables cannot be read: " + pebblefile.PlainError(err)}}
	}
	seen := map[string]bool{} // several tables may be parts of one file
	for _, tables := range levels {
		for _, table := range tables {
			if name := table.BackingSSTNum.String() + ".sst"; !seen[name] {
				seen[name] = true
				if err := j.checkTable(name); err != nil {
					found = append(found, datadir.Damage{File: name, Offset: -1, What: pebblefile.PlainError(err)})
				}
			}
			step(int64(table.Size))
		}
	}
	if len(found) == 0 {
		if err := j.db.CheckLevels(nil); err != nil {
			found = append(found, datadir.Damage{File: j.o.Dir, Offset: -1, What: "the tables contradict each other: " + pebblefile.PlainError(err)})
		}
	}
	return found
}

func (j *Journal) checkTable(name string) error {
	r, err := pebblefile.OpenTable(j.o.FS, j.o.FS.PathJoin(j.o.Dir, name))
	if err != nil {
		return err
	}
	return errors.Join(r.ValidateBlockChecksums(), r.Close())
}

// Flush writes everything that was appended before as tables, so that the log is not
// needed to start. On a full disk that may not end before there is room; it does when
// the journal is closed (ErrClosed) or fails.
func (j *Journal) Flush() error {
	j.WaitDurable()
	return j.flushDurable()
}

// flushDurable is Flush for what is durable.
func (j *Journal) flushDurable() error {
	if err := j.applyDurable(); err != nil {
		return err
	}
	written, err := j.beginTables()
	if err != nil {
		return err
	}
	select {
	case <-written:
		return nil
	case <-j.ending.Done():
		return ErrClosed
	case <-j.failed:
		return j.failure()
	}
}

// Checkpoint writes a copy of the database, as it is at one moment, into the directory dir,
// which must not exist, with a log without batches. Everything that was acknowledged before
// the call is in it, and of each batch all or nothing. Reading and writing go on meanwhile;
// Close doesn't wait for it if it waits for room on the disk. On the same file system tables
// are linked instead of copied, unless copies are asked for.
func (j *Journal) Checkpoint(dir string, copies bool) error {
	j.WaitDurable()
	return j.copyDurable(dir, copies)
}

// copyDurable is Checkpoint for what is durable.
func (j *Journal) copyDurable(dir string, copies bool) error {
	if _, err := j.addReader(); err != nil {
		return err
	}
	defer j.endRead()
	if copies {
		j.links.CopyTo(dir, true)
		defer j.links.CopyTo(dir, false)
	}
	j.mu.Lock()
	next := j.number + 1 // the tables will have at least the batches before it
	j.mu.Unlock()
	if err := j.flushDurable(); err != nil {
		return err
	}
	if err := j.db.Checkpoint(dir); err != nil {
		return err
	}
	return wal.Create(j.o.FS, dir, next)
}

// FS is the file system that the journal is on.
func (j *Journal) FS() FS { return j.o.FS }

// Failure is why the journal has failed; nil: it has not.
func (j *Journal) Failure() error { return j.failure() }

// RestoreMeta makes the journal keep a meta record, and Meta return it, as if it had been
// found at Open.
func (j *Journal) RestoreMeta(meta []byte) {
	j.SetMeta(func(dst []byte, _ Seq) []byte { return append(dst, meta...) })
	j.meta = meta
}
