package engine

import "github.com/holdfast-mqtt/holdfast/internal/slab"

// Weigh calls fn with every key and the bytes of key and value; the key is good until fn
// returns. It holds a shard for one chunk of memory at a time, so that writers get in between:
// a key that is written meanwhile may be passed twice or not at all.
func (e *Local) Weigh(fn func(key []byte, bytes int64)) {
	for i := range e.shards {
		sh := &e.shards[i]
		for p, more := (slab.Place{}), true; more; {
			sh.mu.Lock()
			p, more = sh.table.WeighFrom(p, fn)
			sh.mu.Unlock()
		}
	}
}
