package engine

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"hash/maphash"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"holdfast/hlc"
	"holdfast/internal/lockrank"
	budget "holdfast/internal/memory"
	"holdfast/internal/slab"
	"holdfast/internal/statestore"
)

// shardCount spreads keys over locks; a power of two. A lock is held for some hundred
// nanoseconds, so these are enough for many processors. Each more takes pages of its
// own for its index and its records, and with some thousand keys the processor would
// have to look up nearly each of them anew.
const shardCount = 64

// shard is a part of the keys under one lock.
type shard struct {
	mu       lockrank.Mutex[lockrank.Shard]
	table    table                // guarded by mu
	watchers map[string]*watchers // guarded by mu: of keys that have some, be there an entry or not

	// next is the earliest deadline in here, for the expiry to look at without
	// the lock; written under mu.
	next atomic.Int64
}

const never = math.MaxInt64

func (sh *shard) init(e *Local) {
	sh.table.init(e)
	sh.watchers = map[string]*watchers{}
	sh.next.Store(never)
}

// shard returns the shard of a key, and the key's hash for its table.
func (e *Local) shard(key []byte) (*shard, uint64) {
	hash := maphash.Bytes(e.seed, key)
	return &e.shards[hash%shardCount], hash // the table uses the upper bits
}

func (e *Local) stripe(key []byte) *stripe {
	return &e.stripes[maphash.Bytes(e.seed, key)%stripeCount]
}

// watching returns who watches the key, nil for nobody. mu is held.
func (sh *shard) watching(key []byte) *watchers {
	if len(sh.watchers) == 0 {
		return nil
	}
	return sh.watchers[string(key)]
}

// put replaces a record; see table.put. mu is held.
func (sh *shard) put(r record, key []byte, hash uint64, entry *statestore.Entry, deletion hlc.Timestamp) record {
	r = sh.table.put(r, key, hash, entry, deletion)
	sh.publish()
	return r
}

// publish says which deadline is the earliest. mu is held.
func (sh *shard) publish() {
	next := int64(never)
	if len(sh.table.deadlines) > 0 {
		next = sh.table.deadlines[0].ms
	}
	if sh.next.Load() != next {
		sh.next.Store(next)
	}
}

// settle is called when a deletion is durable and everybody has been told. If it
// is still the key's last change, the tombstone has done its work: no miss needs
// to wait any more. Otherwise a newer change looks after the record.
func (sh *shard) settle(key []byte, hash uint64, deletion hlc.Timestamp) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if r := sh.table.find(key, hash); r.ref != 0 && r.has(recordTombstone) && sh.table.versionOf(r) == deletion {
		sh.table.remove(r, hash)
	}
}

// table has the records of one shard, in memory that the collector does not see:
// keys, values, and what goes with them (record.go). All that is known of its
// layout is in this file and that one.
//
// A record is good until the next put or remove, which may move it, and its bytes
// may be another's from then on. So what is to be kept beyond the shard's lock must
// be copied; only what is too large for a slot stays as it is.
type table struct {
	seed    maphash.Seed
	pool    *budget.Pool // charged with what is on the Go heap
	ownNode string       // in versions without a node ID
	slots   slab.Slots
	index   slab.Index

	deadlines []deadline        // a heap, earliest first: records that expire
	large     []large           // bodies of records too large for a slot
	freeLarge []uint32          // places in large that are free
	nodes     map[string]string // see node
	tail      []byte            // shape's
}

// maxSlot is how large a record in slab memory may be. A larger one is copied to
// the Go heap once, and then needs no copy for a reply.
const maxSlot = slab.MaxSize

func (t *table) init(e *Local) {
	t.seed, t.ownNode, t.pool = e.seed, e.o.NodeID, e.o.Memory
	t.slots, t.index = slab.NewSlots(e.memory), slab.NewIndex(e.memory)
}

// len is the number of records, tombstones among them.
func (t *table) len() int { return t.index.Len() }

// find returns the key's record.
func (t *table) find(key []byte, hash uint64) record {
	for ref, at := t.index.First(hash); ref != 0; ref, at = t.index.Next(hash, at) {
		r := t.at(ref)
		if k, _, _ := t.parts(r); bytes.Equal(k, key) {
			return r
		}
	}
	return record{}
}

func (t *table) at(ref slab.Ref) record { return record{ref, t.slots.Bytes(ref)} }

func (t *table) versionOf(r record) hlc.Timestamp {
	_, _, tail := t.parts(r)
	v, _ := t.version(r, tail)
	return v
}

// put replaces the key's record r, which find has just returned, by one of the
// entry; if that is nil, by a tombstone with the version of the deletion. key and
// entry are copied, and must not be views of r.
func (t *table) put(r record, key []byte, hash uint64, entry *statestore.Entry, deletion hlc.Timestamp) record {
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

// first returns the record with the earliest deadline.
func (t *table) first() record {
	if len(t.deadlines) == 0 {
		return record{}
	}
	return t.at(t.deadlines[0].ref)
}

// remove takes a record out.
func (t *table) remove(r record, hash uint64) {
	t.dropLarge(r)
	if r.has(recordDeadline) {
		t.schedule(r.ref, r.place(), 0)
	}
	t.index.Remove(hash, r.ref)
	t.free(r.ref)
}

// free gives back the slot of a record that nothing refers to any more. What moves
// into it is still found.
func (t *table) free(ref slab.Ref) {
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
func (t *table) addLarge(s *shape) int {
	toTail := len(s.key) + len(s.value)
	body := slices.Concat(s.key, s.value, s.tail)
	t.pool.Charge(budget.Keys, int64(len(body))+largeCost)
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

func (t *table) dropLarge(r record) {
	if r.has(recordLarge) {
		number := binary.LittleEndian.Uint32(r.b[r.body():])
		l := &t.large[number]
		t.pool.Credit(budget.Keys, int64(len(l.key)+len(l.value)+len(l.tail))+largeCost)
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
func (t *table) schedule(ref slab.Ref, place int, ms int64) {
	switch h := (*deadlineHeap)(t); {
	case ms != 0:
		if place < 0 {
			place = len(t.deadlines)
			before := cap(t.deadlines)
			t.deadlines = append(t.deadlines, deadline{})
			t.pool.Charge(budget.Keys, int64(cap(t.deadlines)-before)*deadlineCost)
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
type deadlineHeap table

func (h *deadlineHeap) Len() int           { return len(h.deadlines) }
func (h *deadlineHeap) Less(i, k int) bool { return h.deadlines[i].ms < h.deadlines[k].ms }
func (h *deadlineHeap) Push(any)           { panic("schedule appends") }
func (h *deadlineHeap) Pop() any           { panic("schedule removes") }

func (h *deadlineHeap) Swap(i, k int) {
	d, t := h.deadlines, (*table)(h)
	d[i], d[k] = d[k], d[i]
	t.at(d[i].ref).setPlace(i)
	t.at(d[k].ref).setPlace(k)
}
