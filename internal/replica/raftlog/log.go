package raftlog

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// MaxRecordBytes bounds the entries of one Append, in bytes.
const MaxRecordBytes = 1 << 30

// Options of Open.
type Options struct {
	FS  vfs.FS
	Dir string
	// SegmentBytes is where a file ends and the next one begins. 0: wal's default, 8 MiB.
	SegmentBytes int64
	// NoRoom is called when the disk has no room for a record. It returns true if it has made
	// room; then the record is written again. nil: it cannot.
	NoRoom func() bool
	// Long is called, by the goroutine that appends, when the log has many files: the owner
	// should have tables written and call Compact. It must not block. nil: nothing happens.
	Long func()
	// MemoryBytes is how much of the entries stays in memory: the newest ones. Those that are
	// not committed are in memory whatever they take. 0: DefaultMemoryBytes.
	MemoryBytes int64
	// Fsyncs counts how long each fsync takes, in nanoseconds. nil: none does.
	Fsyncs *histogram.Histogram
	// Reading is called while Open reads the log, after each MiB, with how many bytes it has read. A log
	// is read twice. nil: nothing happens.
	Reading func(bytes int64)
	// Applied is the newest entry that the state machine has on the disk, Conf the
	// membership that it has with it.
	Applied Position
	Conf    *raftpb.ConfState
}

// DefaultMemoryBytes is how much of the entries is kept in memory by default.
const DefaultMemoryBytes = 16 << 20

// Log is the Raft log of a node. The methods of raft.Storage, Bytes and MemoryBytes may be
// called by any goroutine; Append, Sync, Compact, BeginSnapshot, EndSnapshot and Close by one at a time,
// which is the goroutine that stores.
type Log struct {
	o       Options
	files   *wal.Log
	scratch []byte // the storing goroutine's
	last    uint64 // the storing goroutine's: number of the newest record
	opened  int64  // Open's: bytes that it has read

	mu        lockrank.Mutex[lockrank.ReplicaLog]
	state     State                            // guarded by mu
	base      Position                         // guarded by mu: the log begins behind it
	places                                     // guarded by mu: where the entries behind base are
	cursors   []*cursor                        // guarded by mu: where reading files has ended
	snapshots func() (*raftpb.Snapshot, error) // guarded by mu; nil: there is none
}

var _ raft.Storage = (*Log)(nil)

// Append writes the node's term and vote, and entries, which replace those from the first
// of them on. They are durable when Sync has returned. It fails, without writing, if that
// would drop an entry that is known to be committed, or leave a gap.
func (l *Log) Append(s State, entries []*raftpb.Entry) error {
	if len(entries) > 0 {
		if err := l.check(entries); err != nil {
			return err
		}
	}
	l.scratch = appendEntries(l.scratch[:0], s, entries)
	if err := l.write(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	l.put(entries, l.last)
	l.forget(l.o.MemoryBytes, l.state.Commit)
	return nil
}

// check says why entries cannot follow what the log has.
func (l *Log) check(entries []*raftpb.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, size := entries[0].GetIndex(), 0
	for i, e := range entries {
		if size += len(e.GetData()) + entryHeader; size > MaxRecordBytes {
			return fmt.Errorf("entries of more than %d bytes at once", MaxRecordBytes)
		}
		if e.GetIndex() != first+uint64(i) {
			return fmt.Errorf("entry %d follows entry %d", e.GetIndex(), first+uint64(i)-1)
		}
	}
	return l.follows(first, l.state.Commit)
}

// follows says why an entry with index first may not be appended, when those up to commit
// are committed. mu is held.
func (l *Log) follows(first, commit uint64) error {
	switch last := l.lastIndex(); {
	case first > last+1:
		return fmt.Errorf("entry %d follows entry %d: those between are missing", first, last)
	case first <= max(l.base.Index, min(commit, last)):
		return fmt.Errorf("entry %d is to be replaced, and those up to %d are committed", first, max(l.base.Index, commit))
	}
	return nil
}

// write writes the record in scratch.
func (l *Log) write() (err error) {
	l.last, err = l.files.Commit(l.scratch)
	if cap(l.scratch) > maxKeptRecord {
		l.scratch = nil
	}
	return err
}

// maxKeptRecord bounds the buffer for records that the log keeps.
const maxKeptRecord = 1 << 20

// EachRows calls fn with entries from first on and before end, and with the rows of each: none if it
// changes the members. It reads size bytes of them, but one at least, and returns the first that fn
// has not taken, with the error of the log or of fn.
func (l *Log) EachRows(first, end, size uint64, fn func(index uint64, rows []byte) error) (next uint64, err error) {
	entries, err := l.Entries(first, end, size)
	if err != nil {
		return first, fmt.Errorf("entry %d: %w", first, err)
	}
	for _, e := range entries {
		var rows []byte
		if e.GetType() == raftpb.EntryNormal {
			rows = e.GetData()
		}
		if err := fn(e.GetIndex(), rows); err != nil {
			return e.GetIndex(), err
		}
	}
	return first + uint64(len(entries)), nil
}

// SetCommit notes that entries up to index are committed. It is written with the next
// record.
func (l *Log) SetCommit(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Commit = max(l.state.Commit, index)
	l.forget(l.o.MemoryBytes, l.state.Commit)
}

// Sync makes what was appended before durable. After an error the node must end.
func (l *Log) Sync() error { return l.files.Sync() }

// Check says why a start would not find what was appended; nil: it would.
func (l *Log) Check() error { return l.files.Check() }

// Close makes everything durable and closes the files. No entries may be asked for any more.
func (l *Log) Close() error {
	l.mu.Lock()
	cursors := l.cursors
	l.cursors = nil
	l.mu.Unlock()
	var errs []error
	for _, c := range cursors {
		errs = append(errs, c.r.Close())
	}
	return errors.Join(append(errs, l.files.Close())...)
}

// State is the newest state that was appended.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Bytes is about how many bytes of the files the entries take.
func (l *Log) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.places.bytes()
}

// MemoryBytes is about how many bytes of memory the entries take.
func (l *Log) MemoryBytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory
}

// Compact drops the entries up to index, which the state machine must have on the disk, or
// some fewer if they are not in memory: the files that have them are removed as a whole
// anyway. Followers that lack them need a snapshot. An index before the log's beginning
// changes nothing; one behind the last committed entry is an error.
func (l *Log) Compact(index uint64) error {
	l.mu.Lock()
	state := l.state
	if index > min(state.Commit, l.lastIndex()) {
		l.mu.Unlock()
		return fmt.Errorf("entries up to %d cannot be dropped: those up to %d are committed", index, state.Commit)
	}
	next := l.placeBefore(index + 1)
	at := Position{Index: next.index - 1}
	if at.Index <= l.base.Index {
		l.mu.Unlock()
		return nil
	}
	at.Term = l.termOf(at.Index)
	l.mu.Unlock()
	if err := l.mark(state, kindBase, at, next.record); err != nil {
		return err
	}
	l.mu.Lock()
	l.base = at
	l.places.drop(next.index)
	l.mu.Unlock()
	return l.trim()
}

// mark durably writes a record about an entry.
func (l *Log) mark(s State, k kind, at Position, begins uint64) error {
	l.scratch = appendPosition(l.scratch[:0], s, k, at, begins)
	return errors.Join(l.write(), l.Sync())
}

// trim has the files removed in which no record is needed: neither the newest, which has
// the state and the beginning, nor one with an entry. The newest record must be durable.
func (l *Log) trim() error {
	l.mu.Lock()
	oldest := min(l.last, l.firstRecord(l.last))
	l.mu.Unlock()
	return l.files.Trim(oldest - 1)
}

// BeginSnapshot durably notes that the state machine is about to be replaced by one that
// has the entry at, and all before it. If the node ends before EndSnapshot, the next start
// finds out from the state machine which of the two it is.
func (l *Log) BeginSnapshot(s State, at Position) error {
	l.mu.Lock()
	s.Commit = min(s.Commit, l.state.Commit) // until the state machine is there
	l.state = s
	l.mu.Unlock()
	return l.mark(s, kindSnapshot, at, 0)
}

// EndSnapshot drops all entries: the state machine, on the disk, has the entry at and all
// before it, with the membership conf.
func (l *Log) EndSnapshot(at Position, conf *raftpb.ConfState) error {
	s := l.State()
	s.Commit = max(s.Commit, at.Index)
	if err := l.mark(s, kindInstalled, at, 0); err != nil {
		return err
	}
	l.mu.Lock()
	l.state, l.o.Conf = s, conf
	l.reset(at)
	l.mu.Unlock()
	return l.trim()
}

// reset leaves no entry, and the beginning at. mu is held.
func (l *Log) reset(at Position) {
	l.base = at
	l.empty(at.Index + 1)
}
