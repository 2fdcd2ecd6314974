package queue

import (
	"maps"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// NewPayloads counts none. Its counts are charged to the pool; nil: nothing is charged.
func NewPayloads(pool *memory.Pool) *Payloads {
	return &Payloads{pool: pool, refs: make(map[uint64]referred), room: payloadsStep}
}

// Payloads counts how many queues refer to each p row. The messages are on disk, so there may
// be far more of them than fit in memory.
type Payloads struct {
	pool *memory.Pool

	mu   lockrank.Mutex[lockrank.Payloads]
	last uint64              // number given last
	refs map[uint64]referred // by number
	room int                 // entries that refs has room for; those beyond the first step are charged

	spared atomic.Int64 // bytes of messages that are on disk once and not for each queue; changed under mu
}

type referred struct {
	refs int32
	size uint32 // bytes of the message
}

const (
	// payloadsStep is the number of entries in which refs grows, as far as the pool goes.
	payloadsStep = 1 << 10
	// entryMemory is what an entry takes of memory in bytes, with the room that a map leaves.
	entryMemory = 48
	// mostMoved is how many entries are moved at once to a smaller map.
	mostMoved = 8 << 10
)

// Add gives the number of a message that is in several queues; 0: there is no memory to count
// them, so each queue is to have the message in its own row.
func (p *Payloads) Add(refs, size int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.refs) >= p.room {
		if !p.pool.Take(memory.Sessions, payloadsStep*entryMemory) {
			return 0
		}
		p.room += payloadsStep
	}
	p.last++
	p.refs[p.last] = referred{int32(refs), uint32(size)}
	p.spared.Add(int64(refs-1) * int64(size))
	return p.last
}

// Refer adds a reference to a message that was found on disk.
func (p *Payloads) Refer(number uint64, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.refs[number]
	if r.refs > 0 {
		p.spared.Add(int64(size))
	} else if len(p.refs) >= p.room {
		p.pool.Charge(memory.Sessions, payloadsStep*entryMemory)
		p.room += payloadsStep
	}
	p.refs[number] = referred{r.refs + 1, uint32(size)}
}

// Drop takes a reference away, and says whether the row is to be deleted: in the
// batch in which the referring row goes, or a later one.
func (p *Payloads) Drop(number uint64) (gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.refs[number]
	if r.refs--; r.refs > 0 {
		p.refs[number] = r
		p.spared.Add(-int64(r.size))
		return false
	}
	delete(p.refs, number)
	p.shrink()
	return true
}

// shrink gives memory back, when only a small part of it is used: a map does not shrink by
// itself. mu is held.
func (p *Payloads) shrink() {
	n := len(p.refs)
	if p.room == payloadsStep || n > p.room/4 || n > mostMoved {
		return
	}
	refs := make(map[uint64]referred, n)
	maps.Copy(refs, p.refs)
	room := max(1, (n+payloadsStep-1)/payloadsStep) * payloadsStep
	p.pool.Credit(memory.Sessions, int64(p.room-room)*entryMemory)
	p.refs, p.room = refs, room
}

// Memory is how many bytes the pool is charged with.
func (p *Payloads) Memory() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.room-payloadsStep) * entryMemory
}

// Release takes a reference away whose row is gone, or going; the last one
// deletes the row referred to.
func (p *Payloads) Release(j *journal.Journal, number uint64) {
	if p.Drop(number) {
		a := j.Begin()
		a.Delete(rows.PayloadKey(number))
		a.End(nil)
	}
}

// Found notes a number that is in use on disk, while the server starts.
func (p *Payloads) Found(number uint64) { p.last = max(p.last, number) }

// Used says whether a queue refers to the row.
func (p *Payloads) Used(number uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refs[number].refs > 0
}

// SavedBytes is how many bytes are on disk once and not for each queue.
func (p *Payloads) SavedBytes() int64 { return p.spared.Load() }
