// Package merging makes one batch of rows of many: of rows with the same key only the last one
// is in it, so that a key that is set over and over costs the database little, and of a new row
// that is deleted again nothing, not even the deletion. The journal calls it with rows that are in
// the log. It reads and writes nothing.
package merging

import (
	"bytes"
	"hash/maphash"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
)

// change is a row that waits, or its deletion.
type change struct {
	key, value []byte // views
	deleted    bool
	unknown    bool // the database has no row of this key: the first one of these rows was new
}

// Merging is the memory for the work, to be used again. One goroutine uses it.
type Merging struct {
	// New tells of some rows that no earlier row of their key is in the database, or only one that
	// was deleted before they were appended. nil: of none.
	New func(key, value []byte) bool

	into    *pebble.Batch
	changes []change
	order   []place          // of changes, by their keys
	seen    map[uint64]int32 // by hash of the key, its place in changes
}

var keySeed = maphash.MakeSeed()

// Merge puts the rows, as Pebble encodes those of one or several batches, into a batch: the
// last change of each key, in the order of keys. It fails if they are not rows.
func (m *Merging) Merge(into *pebble.Batch, rows []byte) error {
	m.into = into
	defer func() { m.into = nil }()
	for r := batchrepr.Reader(rows); ; {
		kind, key, value, more, err := r.Next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		m.add(kind, key, value)
	}
	m.flush()
	if cap(m.changes) > maxKeptChanges {
		*m = Merging{New: m.New}
	}
	return nil
}

// maxKeptChanges bounds the memory that is held on to.
const maxKeptChanges = 32 << 10

func (m *Merging) add(kind pebble.InternalKeyKind, key, value []byte) {
	if kind == pebble.InternalKeyKindRangeDelete { // what comes before and after it matters
		m.flush()
		_ = m.into.DeleteRange(key, value, nil)
		return
	}
	c := change{key: key, value: value, deleted: kind == pebble.InternalKeyKindDelete}
	hash := maphash.Bytes(keySeed, key)
	at, again := m.seen[hash]
	switch {
	case !again:
		if m.seen == nil {
			m.seen = make(map[uint64]int32)
		}
		c.unknown = !c.deleted && m.New != nil && m.New(key, value)
		m.seen[hash] = int32(len(m.changes))
		m.changes = append(m.changes, c)
	case bytes.Equal(m.changes[at].key, key):
		c.unknown = m.changes[at].unknown
		m.changes[at] = c
	default: // another key with the same hash: left to flush
		m.changes = append(m.changes, c)
	}
}

func (m *Merging) flush() {
	m.order = m.order[:0]
	for i := range m.changes {
		if c := &m.changes[i]; !c.deleted || !c.unknown {
			m.order = append(m.order, place{at: int32(i)})
		}
	}
	m.sort(m.order, 0)
	for i, p := range m.order {
		switch c := &m.changes[p.at]; {
		case i+1 < len(m.order) && bytes.Equal(c.key, m.changes[m.order[i+1].at].key):
		case c.deleted:
			_ = m.into.Delete(c.key, nil)
		default:
			_ = m.into.Set(c.key, c.value, nil)
		}
	}
	clear(m.changes)
	clear(m.seen)
	m.changes = m.changes[:0]
}
