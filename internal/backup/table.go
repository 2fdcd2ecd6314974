package backup

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// table is a table that is read past its bad blocks.
type table struct {
	name        string
	newest      uint64 // sequence number
	first, last []byte // keys
	reader      *sstable.Reader
	entries     uint64 // as its properties say; 0: unknown
	parts       spans  // that can be read
	gaps        spans  // that can't

	it         sstable.Iterator // over the first of parts; nil: not begun
	key, value []byte
	number     uint64
	deleted    bool
	read       uint64 // entries
	fault      error  // what else could not be read
}

// open finds the parts that can be read.
func (t *table) open(s *salvage) error {
	r, err := pebblefile.OpenTable(s.o.FS, s.o.FS.PathJoin(s.o.Dir, t.name))
	if err != nil {
		return err
	}
	t.reader = r
	if p, err := r.ReadPropertiesBlock(context.Background(), nil); err == nil {
		t.entries = p.NumEntries - min(p.NumEntries, p.NumRangeDeletions)
	}
	if err := t.readRemoved(s); err != nil {
		// What it removed can't be told from what is to stay, so nothing under it is taken.
		t.fault = fmt.Errorf("its deletions of ranges: %w", err)
		s.unknown = append(s.unknown, span{t.first, after(t.last), t.newest})
	}
	t.find(t.first, after(t.last), maxHalvings)
	s.unknown = append(s.unknown, t.gaps...)
	return nil
}

// readRemoved reads the deletions of ranges.
func (t *table) readRemoved(s *salvage) error {
	it, err := t.reader.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || it == nil {
		return err
	}
	defer it.Close()
	removal, err := it.First()
	for ; removal != nil && err == nil; removal, err = it.Next() {
		for _, k := range removal.Keys {
			s.removed = append(s.removed, span{bytes.Clone(removal.Start), bytes.Clone(removal.End), uint64(k.SeqNum())})
		}
	}
	return err
}

func (t *table) iterator() (sstable.Iterator, error) {
	return t.reader.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
}

// maxHalvings bounds the search for what can be read between bad blocks.
const maxHalvings = 14

// step is the row at or behind a key, or the next one if there is no key.
func step[KV any, Flags ~uint8](seek func([]byte, Flags) KV, next func() KV, from []byte) KV {
	if from != nil {
		return seek(from, 0)
	}
	return next()
}

// find looks for what can be read with from <= key < to: from both ends up to what can't
// be read, and then in the same way in both halves of what is between.
func (t *table) find(from, to []byte, halvings int) {
	last, whole := t.reach(from, to)
	if last != nil || whole {
		t.parts = append(t.parts, span{from: from, to: to})
	}
	if whole {
		return
	}
	if last != nil {
		t.parts[len(t.parts)-1].to = after(last)
		from = after(last)
	}
	first := t.reachBack(from, to)
	end := to
	if first != nil {
		end = first
	}
	if middle := between(from, end); middle != nil && halvings > 0 && t.manyBlocks(from, end) {
		t.find(from, middle, halvings-1)
		t.find(middle, end, halvings-1)
	} else if n := len(t.gaps); n > 0 && bytes.Equal(t.gaps[n-1].to, from) {
		t.gaps[n-1].to = end
	} else {
		t.gaps = append(t.gaps, span{from, end, t.newest})
	}
	if first != nil {
		t.parts = append(t.parts, span{from: first, to: to})
	}
}

// manyBlocks says whether there is a block between those of two keys, as the index has it:
// each read of a bad one costs Pebble a search for the bit that is wrong.
func (t *table) manyBlocks(from, to []byte) bool {
	var sizes [3]uint64
	for i, keys := range [3][2][]byte{{from, to}, {from, from}, {to, to}} {
		size, err := t.reader.EstimateDiskUsage(keys[0], keys[1], sstable.NoReadEnv)
		if err != nil {
			return false
		}
		sizes[i] = size
	}
	const rounding = 16
	return sizes[0] > sizes[1]+sizes[2]+rounding
}

// reach reads from a key up to another, and gives the last key before what can't be
// read, or that there is no such thing.
func (t *table) reach(from, to []byte) (last []byte, whole bool) {
	it, err := t.iterator()
	if err != nil {
		return nil, false
	}
	defer it.Close()
	for at := it.SeekGE(from, 0); at != nil; at = it.Next() {
		if bytes.Compare(at.K.UserKey, to) >= 0 {
			return last, true
		}
		last = append(last[:0], at.K.UserKey...)
	}
	return last, it.Error() == nil
}

// reachBack reads from before a key back to another, and gives the first key behind what
// can't be read.
func (t *table) reachBack(from, before []byte) (first []byte) {
	it, err := t.iterator()
	if err != nil {
		return nil
	}
	defer it.Close()
	for at := it.SeekLT(before, 0); at != nil && bytes.Compare(at.K.UserKey, from) >= 0; at = it.Prev() {
		first = append(first[:0], at.K.UserKey...)
	}
	return first
}

// between is a key in the middle of two; nil: they are too close.
func between(a, b []byte) []byte {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	tail := func(key []byte) uint64 {
		var t [8]byte
		copy(t[1:], key[n:])
		return binary.BigEndian.Uint64(t[:])
	}
	low, high := tail(a), tail(b)
	if high < low+2 {
		return nil
	}
	var t [8]byte
	binary.BigEndian.PutUint64(t[:], low+(high-low)/2)
	return append(bytes.Clone(a[:n]), t[1:]...)
}

// next goes to the next row; false: there is none that can be read. A row whose value
// can't be read counts as a deletion: what is older must not come back for it.
func (t *table) next() bool {
	for len(t.parts) > 0 {
		var from []byte
		if t.it == nil {
			it, err := t.iterator()
			if err != nil {
				t.fault = err
				return false
			}
			t.it, from = it, t.parts[0].from
		}
		at := step(t.it.SeekGE, t.it.Next, from)
		if at == nil || bytes.Compare(at.K.UserKey, t.parts[0].to) >= 0 {
			_ = t.it.Close() // what it can't read is behind this part
			t.it, t.parts = nil, t.parts[1:]
			continue
		}
		value, _, err := at.Value(nil)
		if err != nil {
			t.fault = err
		} else {
			t.read++
		}
		t.key, t.value = append(t.key[:0], at.K.UserKey...), append(t.value[:0], value...)
		t.number = uint64(at.K.SeqNum())
		kind := at.K.Kind()
		t.deleted = err != nil || kind != pebble.InternalKeyKindSet && kind != pebble.InternalKeyKindSetWithDelete
		return true
	}
	return false
}

// report says what could not be read.
func (t *table) report(s *salvage) {
	if t.reader == nil || len(t.gaps) == 0 && t.fault == nil {
		return
	}
	what := "a part of it can't be read"
	if t.entries > 0 {
		what = fmt.Sprintf("%d of its %d rows can't be read", t.entries-min(t.entries, t.read), t.entries)
	}
	for i, gap := range t.gaps {
		if i == 10 {
			what += fmt.Sprintf(", and in %d more places", len(t.gaps)-i)
			break
		}
		what += fmt.Sprintf(", from key %q to before %q", gap.from, gap.to)
	}
	if t.fault != nil {
		what += ": " + pebblefile.PlainError(t.fault)
	}
	s.lose(t.name, -1, "%s", what)
}

func (t *table) close() {
	if t.it != nil {
		_ = t.it.Close()
	}
	if t.reader != nil {
		_ = t.reader.Close()
	}
}
