// Package recall has what is remembered of the messages of one transaction: it looks them up, and
// writes what is remembered of them from then on. The engine calls it with the stripes of their keys
// locked. It decides nothing.
package recall

import (
	"bytes"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/unapplied"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// Messages are those of one transaction, one for each of its Once. The zero value has none. One
// goroutine at a time uses it.
type Messages struct {
	each    []message
	rows    []byte   // of all
	shared  bool     // all are in one row of the index
	list    [][]byte // their rows
	missing []int    // those that no overlay has
	wanted  [][]byte // their rows
}

type message struct {
	row      []byte           // in Messages.rows
	before   *statestore.Memo // what was remembered of it; nil: nothing
	oldIndex []byte           // the row of the index that goes with before
	indexMs  int64            // the deadline by which the index is to have a new one
	done     bool             // of DONE: it keeps its place in the index
	place    rows.Memo        // of DONE: which that is
	counts   statestore.Remembered
}

// maxKeptRows is how many bytes of rows are kept in memory to be used again.
const maxKeptRows = 64 << 10

// Reset empties it; what it has in memory is used again.
func (m *Messages) Reset() {
	clear(m.each)
	clear(m.wanted)
	clear(m.list)
	m.each, m.rows, m.missing, m.wanted = m.each[:0], m.rows[:0], m.missing[:0], m.wanted[:0]
	m.list, m.shared = m.list[:0], false
	if cap(m.rows) > maxKeptRows {
		m.rows = nil
	}
}

// Find calls found for each message that is remembered, by its number: first those in the overlays
// of their keys, and then those that the database has, all of them by one iterator. In this order
// none is missed: nothing joins an overlay while the stripes are locked, and what has left one was
// applied before. With an error, failed is the operation that it is about; baseMs is as for
// rows.DecodeMemo.
func (m *Messages) Find(t *txn.Transaction, overlay func(key int) *unapplied.Overlay, j *journal.Journal, baseMs int64, found func(i int, known *unapplied.Memo)) (failed int, err error) {
	size := 0
	for i := range t.Once {
		size += rows.MaxMemoRow(t.Keys[t.Once[i].Key], t.Once[i].Message)
	}
	m.each = append(m.each[:0], make([]message, len(t.Once))...)
	m.rows = slices.Grow(m.rows[:0], size)
	note := func(i int, known *unapplied.Memo) {
		if one := &m.each[i]; known.Known() != nil {
			one.before, one.place = known.Known(), known.Memo
			if !known.Shared && !one.done { // otherwise the row stays until the others are due
				one.oldIndex = rows.AppendIndexRow(nil, known.DiskMs, one.row)
			}
		}
		found(i, known)
	}
	for i := range t.Once {
		o, start := &t.Once[i], len(m.rows)
		m.rows = rows.AppendMemoRow(m.rows, t.Keys[o.Key], o.Message)
		row := m.rows[start:len(m.rows):len(m.rows)]
		m.each[i].row, m.each[i].done = row, o.Done
		if known := overlay(o.Key).Find(row); known != nil {
			note(i, known)
		} else {
			m.missing = append(m.missing, i)
		}
	}
	if len(m.missing) == 0 {
		return 0, nil
	}
	slices.SortFunc(m.missing, func(i, j int) int { return bytes.Compare(m.each[i].row, m.each[j].row) })
	for _, i := range m.missing {
		m.wanted = append(m.wanted, m.each[i].row)
	}
	var unreadable error
	err = j.ProbeAll(m.wanted, func(n int, value []byte) {
		known, err := unapplied.DecodeMemo(bytes.Clone(value), baseMs)
		if err != nil && unreadable == nil {
			unreadable, failed = err, t.Once[m.missing[n]].Op
		} else if err == nil {
			note(m.missing[n], known)
		}
	})
	if err != nil {
		return t.Once[m.missing[0]].Op, err
	}
	return failed, unreadable
}

// Place notes what is remembered of a message from now on, and its deadline in the index, which does
// not count for DONE. It returns what changes for the quota.
func (m *Messages) Place(i int, memo *statestore.Memo, indexMs int64) statestore.Remembered {
	one := &m.each[i]
	one.indexMs, one.counts = indexMs, statestore.MemoChange(one.before, memo, rows.NameSize(one.row))
	return one.counts
}

// Counts is what Place has returned.
func (m *Messages) Counts(i int) statestore.Remembered { return m.each[i].counts }

// Remember puts what is remembered from now on into the overlays, charged to pool, before it is
// appended; nil of memos is no change. The memos of a transaction are in one piece of memory, as they
// leave the overlays together; they get states and contexts of their own.
func (m *Messages) Remember(t *txn.Transaction, memos []*statestore.Memo, overlay func(key int) *unapplied.Overlay, pool *memory.Pool) ([]unapplied.Memo, []unapplied.Change) {
	known, changes := make([]unapplied.Memo, len(m.each)), make([]unapplied.Change, 0, len(m.each))
	names, size := string(m.rows), 0
	for _, what := range memos {
		if what != nil {
			size += len(what.State) + len(what.Context)
		}
	}
	room := make([]byte, 0, size)
	own := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		start := len(room)
		room = append(room, b...)
		return room[start:len(room):len(room)]
	}
	m.shared = m.shareARow()
	for i := range m.each {
		one, what := &m.each[i], memos[i]
		name := names[:len(one.row)]
		if names = names[len(one.row):]; what == nil {
			continue
		}
		what.State, what.Context = own(what.State), own(what.Context)
		known[i].Memo = rows.Memo{What: what, DiskMs: one.indexMs, Shared: m.shared}
		if one.done {
			known[i].DiskMs, known[i].Shared = one.place.DiskMs, one.place.Shared
		}
		changes = append(changes, overlay(t.Once[i].Key).Add(name, &known[i], pool))
	}
	return known, changes
}

// shareARow tells whether the messages that are remembered anew, several, get one row in the index.
func (m *Messages) shareARow() bool {
	news, indexMs := 0, int64(0)
	for i := range m.each {
		switch one := &m.each[i]; {
		case one.done:
			continue
		case one.before != nil || news > 0 && one.indexMs != indexMs:
			return false
		default:
			news, indexMs = news+1, one.indexMs
		}
	}
	return news > 1
}

// AppendIndex appends the row of the index that all share, if there is one; known is what Remember
// has returned.
func (m *Messages) AppendIndex(a journal.Append, known []unapplied.Memo) {
	if !m.shared {
		return
	}
	first := -1
	for i := range m.each {
		if m.each[i].done {
			continue
		}
		if m.list = append(m.list, m.each[i].row); first < 0 {
			first = i
		}
	}
	rows.WriteSharedIndex(a, known[first].DiskMs, known[first].What.Version, m.list)
}

// Append appends the rows of a message but for an index row that it shares, or keeps.
func (m *Messages) Append(a journal.Append, i int, known *unapplied.Memo, baseMs int64) {
	one := &m.each[i]
	if one.done {
		rows.WriteMemo(a, one.row, &known.Memo, 0, baseMs)
		return
	}
	if len(one.oldIndex) > 0 {
		a.Delete(one.oldIndex)
	}
	rows.WriteMemo(a, one.row, &known.Memo, one.indexMs, baseMs)
}
