package backup

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Check reads everything that is in a data directory that no server has open, and says what
// does not match its checksums or contradicts itself, or is not as the list of files of a
// backup has it. It writes nothing. The journal that it returns is open for reading, for the
// owners of the rows to look at them; nil if the damage is such that it cannot be. An error
// means that the directory could not be checked: it is in use (journal.ErrLocked), not ours
// (journal.ErrForeign), or newer than this program (journal.ErrNewerFormat). progress, if
// not nil, is called after each table, and then as rows of the journal are read.
func Check(o journal.Options, progress func(Progress)) (*journal.Journal, []datadir.Damage, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if _, err := o.FS.Stat(o.Dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("there is no data directory %s", o.Dir)
		}
		return nil, nil, fmt.Errorf("data directory %s cannot be read: %w", o.Dir, err)
	}
	var p Progress
	if progress != nil {
		o.Progress = func(rows int64) {
			p.Rows = rows
			progress(p)
		}
	}
	j, damage, err := journal.OpenDamaged(o)
	if err != nil {
		return nil, nil, err
	}
	damage = append(damage, checkList(o.FS, o.Dir)...)
	if j == nil {
		return nil, damage, nil
	}
	p.OfFiles, p.OfBytes = j.TableSize()
	return j, append(damage, j.CheckTables(func(bytes int64) {
		p.Files++
		p.Bytes += bytes
		if progress != nil {
			progress(p)
		}
	})...), nil
}
