package engine

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// shardCount spreads keys over locks; a power of two. A lock is held for some hundred
// nanoseconds, so these are enough for many processors. Each more takes pages of its
// own for its index and its records, and with some thousand keys the processor would
// have to look up nearly each of them anew.
const shardCount = 64

// shard is a part of the keys under one lock.
type shard struct {
	mu       lockrank.Mutex[lockrank.Shard]
	table    table.Table          // guarded by mu
	watchers map[string]*watchers // guarded by mu: of watched keys, with or without an entry

	// next is the earliest deadline in here, for the expiry to look at without
	// the lock; written under mu.
	next atomic.Int64
}

func (sh *shard) init(e *Local) {
	sh.table = table.New(table.Options{Seed: e.seed, Node: e.o.NodeID, Memory: e.memory, Pool: e.o.Memory})
	sh.watchers = map[string]*watchers{}
	sh.next.Store(table.Never)
}

// shard returns the shard of a key, and the key's hash for its table.
func (e *Local) shard(key []byte) (*shard, uint64) {
	hash := maphash.Bytes(e.seed, key)
	return &e.shards[hash%shardCount], hash // the table uses the upper bits
}

func (e *Local) stripe(key []byte) *stripe {
	return &e.stripes[maphash.Bytes(e.seed, key)%stripeCount]
}

// watching returns the key's watchers, nil if it has none. mu is held.
func (sh *shard) watching(key []byte) *watchers {
	if len(sh.watchers) == 0 {
		return nil
	}
	return sh.watchers[string(key)]
}

// put replaces a record; see table.Put. mu is held.
func (sh *shard) put(r table.Record, key []byte, hash uint64, entry *statestore.Entry, deletion hlc.Timestamp) table.Record {
	r = sh.table.Put(r, key, hash, entry, deletion)
	sh.publish()
	return r
}

// publish says which deadline is the earliest. mu is held.
func (sh *shard) publish() {
	next := sh.table.FirstDeadlineMs()
	if sh.next.Load() != next {
		sh.next.Store(next)
	}
}

// dropTombstone is called when a deletion is durable and its watchers have been told. If
// it is still the key's last change, the tombstone has done its work: no miss needs
// to wait any more. Otherwise a newer change looks after the record.
func (sh *shard) dropTombstone(key []byte, hash uint64, deletion hlc.Timestamp) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if r := sh.table.Get(key, hash); r.Exists() && !r.Live() && sh.table.Version(r) == deletion {
		sh.table.Remove(r, hash)
	}
}
