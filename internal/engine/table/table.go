package table

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"hash/maphash"
	"math"
	"slices"
	"unsafe"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/slab"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Table has the records of keys, in memory that Go's collector does not see: keys, values,
// and what goes with them. It has no lock; all that is known of the layout of a record is
// in this package.
//
// A record is good until the next Put or Remove, which may move it, and its bytes may be
// another's from then on. So what is to be kept must be copied; only what is too large for
// a slot stays as it is.
type Table struct {
	seed    maphash.Seed
	pool    *memory.Pool // charged with what is on the Go heap
	ownNode string       // in versions without a node ID
	slots   slab.Slots
	index   slab.Index

	deadlines []deadline        // a heap, earliest first: records that expire
	large     []large           // bodies of records too large for a slot
	freeLarge []uint32          // places in large that are free
	nodes     map[string]string // see node
	tail      []byte            // shape's
}

// MaxSlot is how large a record in slab memory may be. A larger one is copied to
// the Go heap once, and then needs no copy for a reply.
const MaxSlot = slab.MaxSize

// Never is later than any deadline.
const Never = math.MaxInt64

// Options of New.
type Options struct {
	Seed   maphash.Seed // of the hashes that are given with keys
	Node   string       // the node ID of nearly all versions: they are stored without
	Memory *slab.Memory
	Pool   *memory.Pool // charged with what is on the Go heap; nil: none is
}

// New makes an empty table.
func New(o Options) Table {
	return Table{seed: o.Seed, ownNode: o.Node, pool: o.Pool, slots: slab.NewSlots(o.Memory), index: slab.NewIndex(o.Memory)}
}

// Len is the number of records, tombstones among them.
func (t *Table) Len() int { return t.index.Len() }

// Get returns the key's record; hash is the key's.
func (t *Table) Get(key []byte, hash uint64) Record {
	for ref, at := t.index.First(hash); ref != 0; ref, at = t.index.Next(hash, at) {
		r := t.at(ref)
		if k, _, _ := t.parts(r); bytes.Equal(k, key) {
			return r
		}
	}
	return Record{}
}

func (t *Table) at(ref slab.Ref) Record { return Record{ref, t.slots.Bytes(ref)} }

// Put replaces the key's record r, which Get has just returned, by one of the
// entry; if that is nil, by a tombstone with the version of the deletion. key and
// Entry are copied, and must not be views of r.
func (t *Table) Put(r Record, key []byte, hash uint64, entry *statestore.Entry, deletion hlc.Timestamp) Record {
	s := t.shape(key, entry, deletion)
	place := -1
	if r.ref != 0 {
		t.dropLarge(r)
		if r.has(recordDeadline) {
			place = r.place()
		}
	}
	number := 0
	if s.flags&recordLarge != 0 {
		number = t.addLarge(&s)
	}
	at, gone := r.ref, slab.Ref(0)
	if !at.Fits(s.size) {
		at, gone = t.slots.Alloc(s.size), r.ref
	}
	s.write(t.slots.Bytes(at), number)
	t.schedule(at, place, s.deadline)
	switch {
	case r.ref == 0:
		t.index.Add(hash, at)
	case gone != 0:
		t.index.Move(hash, gone, at)
		t.free(gone)
	}
	return t.at(at)
}

// FirstDeadlineMs is the earliest deadline, Never if there is none.
func (t *Table) FirstDeadlineMs() int64 {
	if len(t.deadlines) == 0 {
		return Never
	}
	return t.deadlines[0].ms
}

// Deadlines is the number of records with a deadline.
func (t *Table) Deadlines() int { return len(t.deadlines) }

// Each calls fn with every record, in any order, tombstones among them.
func (t *Table) Each(fn func(Record)) {
	t.slots.Each(func(ref slab.Ref) { fn(t.at(ref)) })
}

// WeighFrom calls fn with the keys that have an entry in one chunk of memory, and with the bytes
// of key and value; the key is a view. It says where to go on, and whether there is more: see
// slab.Slots.EachFrom.
func (t *Table) WeighFrom(p slab.Place, fn func(key []byte, bytes int64)) (next slab.Place, more bool) {
	return t.slots.EachFrom(p, func(ref slab.Ref) {
		if r := t.at(ref); r.Live() {
			key, value, _ := t.parts(r)
			fn(key, int64(len(key)+len(value)))
		}
	})
}

// First returns the record with the earliest deadline.
func (t *Table) First() Record {
	if len(t.deadlines) == 0 {
		return Record{}
	}
	return t.at(t.deadlines[0].ref)
}

// Remove takes a record out.
func (t *Table) Remove(r Record, hash uint64) {
	t.dropLarge(r)
	if r.has(recordDeadline) {
		t.schedule(r.ref, r.place(), 0)
	}
	t.index.Remove(hash, r.ref)
	t.free(r.ref)
}

// free gives back the slot of a record that nothing refers to any more. What moves
// into it is still found.
func (t *Table) free(ref slab.Ref) {
	from := t.slots.Free(ref)
	if from == 0 {
		return
	}
	r := t.at(ref)
	key, _, _ := t.parts(r)
	t.index.Move(maphash.Bytes(t.seed, key), from, ref)
	if r.has(recordDeadline) {
		t.deadlines[r.place()].ref = ref
	}
}

// largeCost and deadlineCost are the bytes of an element of large and of deadlines.
const (
	largeCost    = int64(unsafe.Sizeof(large{}))
	deadlineCost = int64(unsafe.Sizeof(deadline{}))
)

// addLarge puts the body of a record on the Go heap.
func (t *Table) addLarge(s *shape) int {
	toTail := len(s.key) + len(s.value)
	body := slices.Concat(s.key, s.value, s.tail)
	t.pool.Charge(memory.Keys, int64(len(body))+largeCost)
	l := large{key: body[:len(s.key):len(s.key)], value: body[len(s.key):toTail:toTail], tail: body[toTail:]}
	if n := len(t.freeLarge); n > 0 {
		number := t.freeLarge[n-1]
		t.freeLarge = t.freeLarge[:n-1]
		t.large[number] = l
		return int(number)
	}
	t.large = append(t.large, l)
	return len(t.large) - 1
}

func (t *Table) dropLarge(r Record) {
	if r.has(recordLarge) {
		number := binary.LittleEndian.Uint32(r.b[r.body():])
		l := &t.large[number]
		t.pool.Credit(memory.Keys, int64(len(l.key)+len(l.value)+len(l.tail))+largeCost)
		*l = large{}
		t.freeLarge = append(t.freeLarge, number)
	}
}

// deadline is an element of the heap of records that expire. A record knows its
// place in it, so that a lease that is renewed ten times a second stays one element.
type deadline struct {
	ms  int64
	ref slab.Ref
}

// schedule gives the record at ref a deadline, 0 for none; place is where it stood in
// the heap so far, -1 for nowhere.
func (t *Table) schedule(ref slab.Ref, place int, ms int64) {
	switch h := (*deadlineHeap)(t); {
	case ms != 0:
		if place < 0 {
			place = len(t.deadlines)
			before := cap(t.deadlines)
			t.deadlines = append(t.deadlines, deadline{})
			t.pool.Charge(memory.Keys, int64(cap(t.deadlines)-before)*deadlineCost)
		}
		t.deadlines[place] = deadline{ms, ref}
		t.at(ref).setPlace(place)
		heap.Fix(h, place)
	case place >= 0:
		last := len(t.deadlines) - 1
		if place != last {
			t.deadlines[place] = t.deadlines[last]
			t.at(t.deadlines[place].ref).setPlace(place)
		}
		t.deadlines = t.deadlines[:last]
		if place != last {
			heap.Fix(h, place)
		}
	}
}

// deadlineHeap is a table as package heap wants to see it.
type deadlineHeap Table

func (h *deadlineHeap) Len() int           { return len(h.deadlines) }
func (h *deadlineHeap) Less(i, k int) bool { return h.deadlines[i].ms < h.deadlines[k].ms }
func (h *deadlineHeap) Push(any)           { panic("schedule appends") }
func (h *deadlineHeap) Pop() any           { panic("schedule removes") }

func (h *deadlineHeap) Swap(i, k int) {
	d, t := h.deadlines, (*Table)(h)
	d[i], d[k] = d[k], d[i]
	t.at(d[i].ref).setPlace(i)
	t.at(d[k].ref).setPlace(k)
}

// BringForward moves the deadlines of records that SetByWall was called for by step ms, to
// be earlier, and returns copies of the keys that have others.
func (t *Table) BringForward(step int64) (others [][]byte) {
	for i := range t.deadlines {
		d := &t.deadlines[i]
		r := t.at(d.ref)
		if !r.has(recordByWall) {
			key, _, _ := t.parts(r)
			others = append(others, slices.Clone(key))
			continue
		}
		d.ms = max(1, d.ms-step)
		r.setDeadlineMs(d.ms)
	}
	heap.Init((*deadlineHeap)(t))
	return others
}
