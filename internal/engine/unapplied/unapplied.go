// Package unapplied has what waits until the database has a batch of the journal: changes in
// the order of their batches. The engine takes changes of memos out of its overlays by it.
package unapplied

import (
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Queue is safe for concurrent use. The zero value is empty.
type Queue[T any] struct {
	mu    lockrank.Mutex[lockrank.Settling]
	items []item[T] // guarded by mu: in the order of batches
	from  int       // guarded by mu: those before it were taken
}

type item[T any] struct {
	batch journal.Seq
	value T
}

// Add adds what the rows of a batch have changed, which is no earlier than that of the last
// Add.
func (q *Queue[T]) Add(batch journal.Seq, value T) {
	q.mu.Lock()
	q.items = append(q.items, item[T]{batch, value})
	q.mu.Unlock()
}

// Take takes the oldest out if its batch is applied, which the newest one is that the
// database has; false: there is none.
func (q *Queue[T]) Take(applied journal.Seq) (value T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.from == len(q.items) || q.items[q.from].batch > applied {
		return value, false
	}
	value = q.items[q.from].value
	q.items[q.from] = item[T]{}
	q.from++
	if 2*q.from >= len(q.items) {
		n := copy(q.items, q.items[q.from:])
		clear(q.items[n:])
		q.items, q.from = q.items[:n], 0
	}
	return value, true
}
