package engine

import (
	"container/heap"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"

	"holdfast/internal/journal"
	"holdfast/internal/statestore"
)

// shardCount spreads keys over locks; a power of two.
const shardCount = 256

// shard is a part of the keys under one lock.
type shard struct {
	mu        sync.Mutex
	table     table     // guarded by mu
	deadlines deadlines // guarded by mu

	// next is the earliest deadline in here, for the expiry to look at without
	// the lock; written under mu.
	next atomic.Int64
}

const never = math.MaxInt64

func (sh *shard) init() {
	sh.table.init()
	sh.next.Store(never)
}

func (e *Local) shard(key []byte) *shard {
	return &e.shards[maphash.Bytes(e.seed, key)%shardCount]
}

func (e *Local) stripe(key []byte) *stripe {
	return &e.stripes[maphash.Bytes(e.seed, key)%stripeCount]
}

// table finds the records of one shard by key. All that is known of its layout
// is in these few methods.
type table struct {
	records map[string]*record
}

func (t *table) init() { t.records = map[string]*record{} }

func (t *table) len() int { return len(t.records) }

// get returns nil if there is no record.
func (t *table) get(key []byte) *record { return t.records[string(key)] }

// add makes a record for a key that has none.
func (t *table) add(key []byte) *record {
	rec := &record{key: string(key)}
	t.records[rec.key] = rec
	return rec
}

func (t *table) remove(rec *record) { delete(t.records, rec.key) }

// record is what is known of one key. It is there while the key has an entry,
// or a deletion that is not durable yet (a tombstone), or a watcher. All of it
// is guarded by its shard's lock; the entry is immutable.
type record struct {
	key      string
	entry    *statestore.Entry // nil: no such key
	batch    journal.Seq       // where the last change rides; 0: long durable
	watchers *watchers         // nil: none
	slot     int32             // place in the heap of deadlines, from 1; 0: not in it
	changes  uint32            // counts changes, so that a completed one knows whether it is the last
}

// idle reports whether the record has nothing left to remember.
func (rec *record) idle() bool {
	return rec.entry == nil && rec.watchers == nil && rec.batch == 0
}

// drop removes the record if it has become idle. mu is held.
func (sh *shard) drop(rec *record) {
	if rec.idle() {
		sh.table.remove(rec)
	}
}

// settle is called when a deletion is durable and everybody has been told. If it
// is still the key's last change, the tombstone has done its work: no miss needs
// to wait any more. Otherwise a newer change looks after the record.
func (sh *shard) settle(rec *record, change uint32) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if rec.entry == nil && rec.changes == change {
		rec.batch = 0
		sh.drop(rec)
	}
}

// deadlines is a heap of the records that expire, earliest first. Each record
// knows its place, so that a lease that is renewed ten times a second stays one
// element.
type deadlines []*record

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, k int) bool { return d[i].entry.DeadlineMs < d[k].entry.DeadlineMs }

func (d deadlines) Swap(i, k int) {
	d[i], d[k] = d[k], d[i]
	d[i].slot, d[k].slot = int32(i+1), int32(k+1)
}

func (d *deadlines) Push(x any) {
	rec := x.(*record)
	*d = append(*d, rec)
	rec.slot = int32(len(*d))
}

func (d *deadlines) Pop() any {
	last := len(*d) - 1
	rec := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	rec.slot = 0
	return rec
}

// replace gives the record its new entry, nil for none, and keeps the heap in
// order: a record leaves it before its deadline changes. mu is held.
func (sh *shard) replace(rec *record, entry *statestore.Entry) {
	if rec.slot != 0 {
		heap.Remove(&sh.deadlines, int(rec.slot-1))
	}
	rec.entry = entry
	sh.schedule(rec)
}

// schedule puts the record into the heap if its entry has a deadline, and
// publishes the earliest. mu is held.
func (sh *shard) schedule(rec *record) {
	if rec.entry != nil && rec.entry.DeadlineMs != 0 {
		heap.Push(&sh.deadlines, rec)
	}
	next := int64(never)
	if len(sh.deadlines) > 0 {
		next = sh.deadlines[0].entry.DeadlineMs
	}
	if sh.next.Load() != next {
		sh.next.Store(next)
	}
}
