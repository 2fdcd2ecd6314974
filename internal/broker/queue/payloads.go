package queue

import (
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// NewPayloads counts none.
func NewPayloads() *Payloads { return &Payloads{refs: make(map[uint64]referred)} }

// Payloads counts how many queues refer to each p row.
type Payloads struct {
	mu   lockrank.Mutex[lockrank.Payloads]
	last uint64              // number given last
	refs map[uint64]referred // by number

	spared atomic.Int64 // bytes of messages that are on disk once and not for each queue; changed under mu
}

type referred struct {
	refs int32
	size uint32 // bytes of the message
}

// Add gives the number of a message that is in several queues.
func (p *Payloads) Add(refs, size int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	return true
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
