// Package merging makes one batch of rows of many: of rows with the same key only the last one
// is in it, so that a key that is set over and over costs the database little. The journal calls
// it with rows that are in the log. It reads and writes nothing.
package merging

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
)

// change is a row that waits, or its deletion.
type change struct {
	key, value []byte // views
	place      int32  // among the changes
	deleted    bool
}

// Merging is the memory for the work, to be used again. One goroutine uses it.
type Merging struct {
	into    *pebble.Batch
	changes []change
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
		*m = Merging{}
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
	c := change{key, value, int32(len(m.changes)), kind == pebble.InternalKeyKindDelete}
	hash := maphash.Bytes(keySeed, key)
	at, again := m.seen[hash]
	switch {
	case !again:
		if m.seen == nil {
			m.seen = make(map[uint64]int32)
		}
		m.seen[hash] = c.place
		m.changes = append(m.changes, c)
	case bytes.Equal(m.changes[at].key, key):
		c.place = at
		m.changes[at] = c
	default: // another key with the same hash: left to flush
		m.changes = append(m.changes, c)
	}
}

func (m *Merging) flush() {
	slices.SortFunc(m.changes, func(a, b change) int {
		return cmp.Or(bytes.Compare(a.key, b.key), int(a.place-b.place))
	})
	for i := range m.changes {
		switch c := &m.changes[i]; {
		case i+1 < len(m.changes) && bytes.Equal(c.key, m.changes[i+1].key):
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
