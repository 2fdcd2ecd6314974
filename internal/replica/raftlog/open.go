package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

var (
	// ErrDamaged: what the node has promised to others may be missing in its log. The node
	// must not start with it.
	ErrDamaged = errors.New("the Raft log is damaged")
	// ErrNone: there is no log in the directory.
	ErrNone = errors.New("there is no Raft log")
)

// formatFile says that the log exists, and holds the mask. It is written last when a log is
// created.
const (
	formatFile  = "raft-log"
	formatMagic = "holdfast raft 1\n"
)

// Create durably creates a log that begins behind the entry at, in a new directory: the
// founders of a cluster begin with the same entry, a node that joins one begins with none.
// It replaces what a Create that was interrupted has left, and fails if there is a log.
func Create(fsys vfs.FS, dir string, at Position) error {
	switch _, err := readFormat(fsys, dir); {
	case err == nil:
		return fmt.Errorf("%s has a Raft log already", dir)
	case !errors.Is(err, ErrNone):
		return err
	}
	if err := errors.Join(fsys.RemoveAll(dir), fsys.MkdirAll(dir, 0o700), datadir.SyncDir(fsys, fsys.PathDir(dir))); err != nil {
		return err
	}
	if err := wal.Create(fsys, dir, 1); err != nil {
		return err
	}
	mask := wal.Mask(binary.LittleEndian.Uint64(wal.NewMask()))
	l := &Log{o: Options{FS: fsys, Dir: dir}}
	if err := l.open(mask, 1); err != nil {
		return err
	}
	if err := l.files.Begin(); err != nil {
		return err
	}
	if err := errors.Join(l.mark(State{Term: at.Term, Commit: at.Index}, kindBase, at, 0), l.Close()); err != nil {
		return err
	}
	return writeFormat(fsys, dir, mask)
}

func writeFormat(fsys vfs.FS, dir string, mask wal.Mask) error {
	b := binary.LittleEndian.AppendUint64([]byte(formatMagic), uint64(mask))
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	name := fsys.PathJoin(dir, formatFile)
	f, err := fsys.Create(name+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return errors.Join(fsys.Rename(name+".new", name), datadir.SyncDir(fsys, dir))
}

func readFormat(fsys vfs.FS, dir string) (wal.Mask, error) {
	f, err := fsys.Open(fsys.PathJoin(dir, formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w in %s", ErrNone, dir)
	}
	if err != nil {
		return 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<10))
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	n := len(formatMagic)
	if len(b) != n+12 || string(b[:n]) != formatMagic || crc32.ChecksumIEEE(b[:n+8]) != binary.LittleEndian.Uint32(b[n+8:]) {
		return 0, fmt.Errorf("%w: %s is not as this program writes it", ErrDamaged, fsys.PathJoin(dir, formatFile))
	}
	return wal.Mask(binary.LittleEndian.Uint64(b[n:])), nil
}

// Open reads the log. It fails with ErrNone, or with ErrDamaged if what the node has
// acknowledged may be missing; nothing is changed then.
func Open(o Options) (*Log, error) {
	mask, err := readFormat(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	firsts, err := firstRecords(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	l, installed, err := read(o, mask, firsts)
	if err != nil {
		return nil, err
	}
	if err := l.files.Begin(); err != nil {
		return nil, err
	}
	if installed {
		err = l.mark(l.state, kindInstalled, l.base, 0)
	}
	return l, err
}

// read reads the log from the first file on. If something is missing, it tries again from
// each later file: after a power cut, files may be there again that had been removed, and not
// those between. A record of the log itself must then say that it needs none of them.
func read(o Options, mask wal.Mask, firsts []uint64) (l *Log, installed bool, err error) {
	for i, first := range firsts {
		l = &Log{o: o}
		damaged := l.open(mask, first)
		if damaged == nil {
			installed, damaged = l.read()
		}
		if damaged == nil {
			return l, installed, nil
		}
		if i == 0 {
			err = fmt.Errorf("%w: %s: %w", ErrDamaged, o.Dir, damaged)
		}
	}
	return nil, false, err
}

// open opens the segments, to read those from the one with the record first on.
func (l *Log) open(mask wal.Mask, first uint64) (err error) {
	o := &l.o
	if o.NoRoom == nil {
		o.NoRoom = func() bool { return false }
	}
	if o.Long == nil {
		o.Long = func() {}
	}
	if o.MemoryBytes <= 0 {
		o.MemoryBytes = DefaultMemoryBytes
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = wal.DefaultSegmentBytes
	}
	l.spacing = o.SegmentBytes / marksPerFile
	l.files, err = wal.Read(wal.Options{
		FS: o.FS, Dir: o.Dir, SegmentBytes: o.SegmentBytes,
		NoRoom: o.NoRoom, Long: o.Long, Fsyncs: o.Fsyncs,
	}, wal.State{Mask: mask, Applied: first - 1, Logged: true})
	if err != nil {
		return err
	}
	l.last = l.files.Last()
	if damage := l.files.Damage(); len(damage) > 0 {
		return errors.New(damage[0].String())
	}
	return nil
}

// firstRecords are the numbers of the first record of each segment, in their order.
func firstRecords(fsys vfs.FS, dir string) (firsts []uint64, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if n, ok := wal.ParseSegmentName(name); ok && n > 0 {
			firsts = append(firsts, n)
		}
	}
	slices.Sort(firsts)
	if len(firsts) == 0 {
		firsts = []uint64{1} // wal finds that there is no segment
	}
	return firsts, nil
}

// read reads the records that are needed, and compares them with the state machine. It
// returns true if the node ended while a snapshot was being installed, after the state
// machine was replaced.
func (l *Log) read() (installed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	begins, at, err := l.findBeginning()
	if err != nil {
		return false, err
	}
	l.reset(at)
	var installing Position
	if err := l.eachRecord(func(number uint64, b []byte) error {
		r, err := readRecord(b)
		if err != nil {
			return err
		}
		if r.kind == kindSnapshot {
			installing = r.at
		}
		return l.add(r, number, begins)
	}); err != nil {
		return false, err
	}
	return l.agree(installing, l.o.Applied)
}

// readingStep is after how many bytes Options.Reading is called.
const readingStep = 1 << 20

// eachRecord calls f with each record that the files have.
func (l *Log) eachRecord(f func(number uint64, b []byte) error) error {
	return l.files.Replay(func(number uint64, b []byte) error {
		if len(b) == 0 { // wal's own, when it was closed
			return nil
		}
		before := l.opened
		if l.opened += int64(len(b)); l.o.Reading != nil && l.opened/readingStep > before/readingStep {
			l.o.Reading(l.opened)
		}
		if err := f(number, b); err != nil {
			return fmt.Errorf("record %d: %w", number, err)
		}
		return nil
	})
}

// findBeginning looks for the newest record that says where the log begins: behind the entry
// at, with the record number begins. Files are removed as a whole, so there may be older
// records, which are of no use.
func (l *Log) findBeginning() (begins uint64, at Position, err error) {
	oldest := uint64(0)
	err = l.eachRecord(func(number uint64, b []byte) error {
		if oldest == 0 {
			oldest = number
		}
		if k := kindOf(b); k != kindBase && k != kindInstalled {
			return nil
		}
		r, err := readRecord(b)
		if begins, at = r.begins, r.at; begins == 0 {
			begins = number
		}
		return err
	})
	switch {
	case err != nil:
		return 0, at, err
	case begins == 0:
		return 0, at, errors.New("no record says where it begins: its oldest files are missing")
	case begins < oldest:
		return 0, at, fmt.Errorf("it begins with record %d, and the first that is there is record %d: its oldest files are missing", begins, oldest)
	}
	return begins, at, nil
}

// add takes the next record into the log, whose beginning is known. Of records before the one
// with number begins, the state alone counts. mu is held.
func (l *Log) add(r record, number, begins uint64) error {
	before := l.state
	if r.Term < before.Term || r.Term == before.Term && before.Vote != 0 && r.Vote != before.Vote {
		return fmt.Errorf("it is of term %d with the vote %x, and an earlier one of term %d with the vote %x", r.Term, r.Vote, before.Term, before.Vote)
	}
	l.state = r.State
	l.state.Commit = max(r.Commit, before.Commit)
	entries := r.entries
	if number < begins || len(entries) == 0 {
		return nil
	}
	if old := l.base.Index + 1 - r.first; number == begins && r.first <= l.base.Index && old < uint64(len(entries)) {
		entries = entries[old:]
	}
	if err := l.follows(entries[0].GetIndex(), before.Commit); err != nil {
		return err
	}
	l.put(entries, number)
	l.forget(l.o.MemoryBytes, l.state.Commit)
	return nil
}

// agree compares the log with the state machine, which has the entry applied on the disk,
// and all before it. If the node ended between the two steps of a snapshot, it leaves no
// entry and returns true. mu is held.
func (l *Log) agree(installing, applied Position) (installed bool, err error) {
	if applied.Index < l.base.Index {
		return false, fmt.Errorf("it begins behind entry %d, and the database ends with entry %d: entries are missing", l.base.Index, applied.Index)
	}
	if !l.has(applied) {
		if applied != installing {
			return false, fmt.Errorf("the database has entry %d of term %d, and the log doesn't: its newest files are missing, or it is another node's", applied.Index, applied.Term)
		}
		l.reset(applied)
		l.state.Term = max(l.state.Term, applied.Term)
		installed = true
	}
	l.state.Commit = min(max(l.state.Commit, applied.Index), l.lastIndex())
	return installed, nil
}

// has says whether the log has an entry, or begins behind it. mu is held.
func (l *Log) has(p Position) bool {
	switch {
	case p.Index == l.base.Index:
		return p == l.base
	case p.Index < l.base.Index || p.Index > l.lastIndex():
		return false
	default:
		return l.termOf(p.Index) == p.Term
	}
}
