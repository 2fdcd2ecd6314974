package raftlog

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Entries that are not in memory are read from the files: for a follower that is behind, and
// for a database that does not keep up. Each of them reads on where it has ended, so a few
// cursors are kept.

const (
	// maxCursors bounds the files that are open for reading.
	maxCursors = 4
	// attempts is how often entries are looked for: Compact may remove, at the same time, the
	// file at which the search begins.
	attempts = 3
)

// cursor is where reading has ended.
type cursor struct {
	next   uint64          // index of the entry that it gives next
	left   []*raftpb.Entry // that were read already: from next on
	record uint64          // the record that it reads next
	r      *wal.Reader
}

// readBack reads entries from lo on and before hi, which are in files only.
func (l *Log) readBack(lo, hi, maxSize uint64) (entries []*raftpb.Entry, err error) {
	for attempt := range attempts {
		l.mu.Lock()
		if lo <= l.base.Index {
			l.mu.Unlock()
			return nil, raft.ErrCompacted
		}
		b := readBack{lo: lo, hi: hi, kept: l.kept, maxSize: maxSize, terms: places{terms: slices.Clone(l.terms)}}
		from := l.placeBefore(lo)
		if attempt == 0 {
			b.c = l.takeCursor(lo)
		}
		l.mu.Unlock()
		if b.c == nil {
			b.c = &cursor{next: lo, record: from.record, r: l.files.NewReader()}
		}
		if err = b.read(); err == nil {
			l.keepCursor(b.c)
			return b.entries, nil
		}
		_ = b.c.r.Close()
	}
	return nil, fmt.Errorf("entry %d could not be read back: %w", lo, err)
}

// readBack is one attempt.
type readBack struct {
	lo, hi  uint64
	kept    uint64 // from this entry on they were in memory; those before are committed
	maxSize uint64
	terms   places // knows terms only
	c       *cursor

	entries []*raftpb.Entry
	size    uint64
	full    bool
}

// isNext says whether e is the entry that is wanted next. Between the log's entries there are
// those that were replaced; index and term identify an entry.
func (b *readBack) isNext(e *raftpb.Entry, next uint64) bool {
	return e.GetIndex() == next && e.GetTerm() == b.terms.termOf(next)
}

// take takes the next entry; false: it has no room.
func (b *readBack) take(e *raftpb.Entry) bool {
	b.size += uint64(len(e.GetData())) + entryHeader
	if b.full = len(b.entries) > 0 && b.size > b.maxSize; b.full {
		return false
	}
	b.entries = append(b.entries, e)
	b.c.next++
	return true
}

func (b *readBack) ended() bool { return b.full || b.c.next >= b.hi }

func (b *readBack) read() error {
	for len(b.c.left) > 0 && !b.ended() && b.take(b.c.left[0]) {
		b.c.left = b.c.left[1:]
	}
	if b.ended() {
		return nil
	}
	var wrong error
	err := b.c.r.Read(b.c.record, func(number uint64, text []byte) bool {
		b.c.record = number + 1
		if kindOf(text) != kindEntries {
			return true
		}
		r, err := readRecord(text)
		if err != nil {
			wrong = fmt.Errorf("record %d: %w", number, err)
			return false
		}
		for i, e := range r.entries {
			if b.isNext(e, b.c.next) && !b.ended() {
				b.take(e)
			}
			if b.ended() {
				b.leave(number, r.entries[i:])
				return false
			}
		}
		return true
	})
	if wrong != nil {
		return wrong
	}
	return err
}

// leave leaves the entries of a record that were not taken for the next attempt. Those that
// were in memory may be replaced until then, so the record is read again for them.
func (b *readBack) leave(number uint64, entries []*raftpb.Entry) {
	next := b.c.next
	for _, e := range entries {
		switch {
		case !b.isNext(e, next):
		case next >= b.kept:
			b.c.record = number
			return
		default:
			b.c.left = append(b.c.left, e)
			next++
		}
	}
}

// takeCursor takes the cursor that has ended before an entry; nil: there is none. mu is held.
func (l *Log) takeCursor(next uint64) *cursor {
	for i, c := range l.cursors {
		if c.next == next {
			l.cursors = slices.Delete(l.cursors, i, i+1)
			return c
		}
	}
	return nil
}

// keepCursor keeps a cursor, in place of the oldest.
func (l *Log) keepCursor(c *cursor) {
	l.mu.Lock()
	var oldest *cursor
	if len(l.cursors) >= maxCursors {
		oldest, l.cursors = l.cursors[0], slices.Delete(l.cursors, 0, 1)
	}
	l.cursors = append(l.cursors, c)
	l.mu.Unlock()
	if oldest != nil {
		_ = oldest.r.Close()
	}
}
