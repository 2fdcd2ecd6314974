package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/sstable"
)

// Progress is how far something that takes its time has come.
type Progress struct {
	Files, OfFiles int
	Bytes, OfBytes int64
}

// Check reads everything that is in a data directory that nobody has open, and
// says what does not match its checksums or contradicts itself, or is not as the list of
// files of a backup has it. It writes
// nothing. The journal that it returns is open for reading, for the owners of
// the rows to look at them; nil if the damage is such that it cannot be. An
// error means that the directory could not be checked: it is in use
// (ErrLocked), not ours (ErrForeign), or newer than this program
// (ErrNewerFormat). progress, if not nil, is called after each table.
func Check(o Options, progress func(Progress)) (*Journal, []Damage, error) {
	o.ReadOnly = true
	o.setDefaults()
	if _, err := o.FS.Stat(o.Dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("there is no data directory %s", o.Dir)
		}
		return nil, nil, fmt.Errorf("data directory %s cannot be read: %w", o.Dir, err)
	}
	if err := refuseCopy(o.FS, o.Dir, true); err != nil {
		return nil, nil, err
	}
	l, err := lock(o.FS, o.Dir)
	if err != nil {
		return nil, nil, err
	}
	if _, err := inspect(o.FS, o.Dir, l); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	damage, _, err := findDamage(o.FS, o.Dir, l)
	damaged := len(damage) > 0
	damage = append(damage, checkList(o.FS, o.Dir)...)
	if err := errors.Join(err, l.Close()); err != nil {
		return nil, nil, fmt.Errorf("data directory %s cannot be read: %w", o.Dir, err)
	}
	j, err := open(o, damaged)
	if err != nil {
		if errors.Is(err, ErrLocked) || len(damage) == 0 && (errors.Is(err, ErrForeign) || errors.Is(err, ErrNewerFormat)) {
			return nil, nil, err
		}
		return nil, append(damage, Damage{File: o.Dir, Offset: -1, What: "the database cannot be opened: " + plain(err)}), nil
	}
	return j, append(damage, j.checkTables(progress)...), nil
}

// Mended is what was wrong in one bit at the end of the log or the manifest, where a power
// cut leaves torn writes, and is read as it should be. A start writes it so.
func (j *Journal) Mended() []Damage { return j.mended }

// plain is an error's text without what Pebble's errors carry for machines.
func plain(err error) string {
	return strings.ReplaceAll(err.Error(), "\n<corruption detail carrier>", "")
}

// checkTables reads every block of every table, then all of them against each other.
func (j *Journal) checkTables(progress func(Progress)) (found []Damage) {
	levels, err := j.db.SSTables()
	if err != nil {
		return []Damage{{File: j.o.Dir, Offset: -1, What: "the list of tables cannot be read: " + plain(err)}}
	}
	var p Progress
	for _, tables := range levels {
		p.OfFiles += len(tables)
		for _, table := range tables {
			p.OfBytes += int64(table.Size)
		}
	}
	seen := map[string]bool{} // several tables may be parts of one file
	for _, tables := range levels {
		for _, table := range tables {
			if name := table.BackingSSTNum.String() + ".sst"; !seen[name] {
				seen[name] = true
				if err := j.checkTable(name); err != nil {
					found = append(found, Damage{File: name, Offset: -1, What: plain(err)})
				}
			}
			p.Files++
			p.Bytes += int64(table.Size)
			if progress != nil {
				progress(p)
			}
		}
	}
	if len(found) == 0 {
		if err := j.db.CheckLevels(nil); err != nil {
			found = append(found, Damage{File: j.o.Dir, Offset: -1, What: "the tables contradict each other: " + plain(err)})
		}
	}
	return found
}

func (j *Journal) checkTable(name string) error {
	f, err := j.o.FS.Open(j.o.FS.PathJoin(j.o.Dir, name))
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, j.tableOptions())
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	return errors.Join(r.ValidateBlockChecksums(), r.Close())
}

func (j *Journal) tableOptions() sstable.ReaderOptions {
	po := j.pebbleOptions()
	po.EnsureDefaults()
	return po.MakeReaderOptions()
}

// Flush writes everything that was appended before as tables, so that the log is not
// needed to start. On a full disk that may not end before there is room; it does when
// the journal is closed (ErrClosed) or fails.
func (j *Journal) Flush() error {
	if err := j.settle(); err != nil {
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
