// Package unapplied has changes of memos that the database may not have yet. The engine finds
// them in an Overlay until the database has their batch, which a Queue notices.
package unapplied

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Memo is what is remembered under one row: a change under way, or what the disk has.
type Memo struct {
	rows.Memo
	Batch journal.Seq // where it rides; 0: long durable. Guarded by the lock of the key's stripe
}

// DecodeMemo makes a Memo of what the disk has under its row.
func DecodeMemo(value []byte, baseMs int64) (*Memo, error) {
	found, err := rows.DecodeMemo(value, baseMs)
	if err != nil {
		return nil, fmt.Errorf("the record cannot be read: %w", err)
	}
	return &Memo{Memo: found}, nil
}

// LastBatch is what a reply that has seen the memo waits for; there is none by nil.
func (m *Memo) LastBatch() journal.Seq {
	if m == nil {
		return 0
	}
	return m.Batch
}

// Known is what the rules know of the message; nil: nothing.
func (m *Memo) Known() *statestore.Memo {
	if m == nil {
		return nil
	}
	return m.What
}

// Overlay has the newest changes by their rows. It is safe for concurrent use; the zero value
// is empty.
type Overlay struct {
	mu    lockrank.Mutex[lockrank.Overlay] // held for a look at memos only
	memos map[string]*Memo                 // guarded by mu
}

// Find finds the change of a row; nil: there is none.
func (o *Overlay) Find(row []byte) *Memo {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.memos[string(row)]
}

// Len is how many changes there are.
func (o *Overlay) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.memos)
}

// Add puts a change in place of the one of the same row, if there is one, and charges it to
// pool until it leaves by a Queue.
func (o *Overlay) Add(row string, m *Memo, pool *memory.Pool) Change {
	c := Change{overlay: o, row: row, memo: m, cost: costOf(row, m)}
	pool.Charge(memory.Remembered, c.cost)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.memos == nil {
		o.memos = map[string]*Memo{}
	}
	o.memos[c.row] = m
	return c
}

// drop takes a change out, unless a newer one of the same row has replaced it.
func (c *Change) drop() {
	c.overlay.mu.Lock()
	defer c.overlay.mu.Unlock()
	if c.overlay.memos[c.row] == c.memo {
		delete(c.overlay.memos, c.row)
	}
}

// costOf is what a change in an overlay is charged with: its bytes, and about what it takes
// besides.
func costOf(row string, m *Memo) int64 {
	cost := int64(len(row)) + 300
	if m.What != nil {
		cost += int64(len(m.What.State) + len(m.What.Context))
	}
	return cost
}

// Change is a change in an Overlay. The zero value is none.
type Change struct {
	overlay *Overlay
	row     string
	memo    *Memo
	cost    int64
}

// IsZero says that there is no change.
func (c *Change) IsZero() bool { return c.memo == nil }

// Queue has changes that are durable, in the order of their batches. It is safe for
// concurrent use; the zero value is empty.
type Queue struct {
	mu    lockrank.Mutex[lockrank.Settling]
	items []item // guarded by mu: in the order of batches
	from  int    // guarded by mu: those before it were taken
}

type item struct {
	batch  journal.Seq
	change Change
}

// Add adds changes that ride in a batch, which is no earlier than that of the last Add.
func (q *Queue) Add(batch journal.Seq, changes ...Change) {
	q.mu.Lock()
	for _, c := range changes {
		q.items = append(q.items, item{batch, c})
	}
	q.mu.Unlock()
}

// Drop takes changes that the database has, up to the batch applied, out of their overlays,
// oldest first, at most so many.
func (q *Queue) Drop(applied journal.Seq, most int, pool *memory.Pool) {
	var room [64]Change
	for most > 0 {
		taken := q.take(applied, room[:0:min(most, len(room))])
		if len(taken) == 0 {
			return
		}
		most -= len(taken)
		cost := int64(0)
		for i := range taken {
			taken[i].drop()
			cost += taken[i].cost
		}
		pool.Credit(memory.Remembered, cost)
	}
}

// take takes the oldest changes out whose batches are applied, as many as fit in taken.
func (q *Queue) take(applied journal.Seq, taken []Change) []Change {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(taken) < cap(taken) && q.from < len(q.items) && q.items[q.from].batch <= applied {
		taken = append(taken, q.items[q.from].change)
		q.items[q.from] = item{}
		q.from++
	}
	if 2*q.from >= len(q.items) {
		n := copy(q.items, q.items[q.from:])
		clear(q.items[n:])
		q.items, q.from = q.items[:n], 0
	}
	return taken
}
