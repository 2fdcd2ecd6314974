package message

import (
	"sync/atomic"
	"unsafe"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Accounts charges messages to the pool of memory: each once, however many queues and
// outputs refer to it.
type Accounts struct {
	pool *memory.Pool
	lent lent
}

// NewAccounts charges to the pool; nil: nothing is charged.
func NewAccounts(pool *memory.Pool) *Accounts {
	return &Accounts{pool: pool, lent: lent{values: make(map[*byte]int)}}
}

// lent counts the messages that refer to each value of a handler's, so that a value
// is charged once, however many responses with it wait for their clients.
type lent struct {
	mu     lockrank.Mutex[lockrank.Lent]
	values map[*byte]int // by the first byte; guarded by mu
}

// Charge charges the pool with a message, of which the caller has a
// reference, until its last reference goes; only the first call does. Retained
// messages are the store's to charge, whose reference never goes.
func (a *Accounts) Charge(m *Message, k memory.Kind) {
	if a.pool == nil || m.Stamp != 0 || !atomic.CompareAndSwapInt32(&m.charged, 0, int32(k)+1) {
		return
	}
	m.chargedBy = a
	a.pool.Charge(k, int64(len(m.buf)))
	if m.value != nil {
		a.pool.Charge(k, a.lent.take(m.value))
	}
}

// credit undoes Charge with the last reference.
func (a *Accounts) credit(m *Message) {
	k := memory.Kind(m.charged - 1)
	a.pool.Credit(k, int64(len(m.buf)))
	if m.value != nil {
		a.pool.Credit(k, a.lent.give(m.value))
	}
}

// take counts one more message with the value, and gives the bytes to be charged.
func (l *lent) take(value []byte) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := unsafe.SliceData(value)
	l.values[first]++
	if l.values[first] > 1 {
		return 0
	}
	return int64(len(value))
}

// give undoes take, and gives the bytes to be credited.
func (l *lent) give(value []byte) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := unsafe.SliceData(value)
	if l.values[first]--; l.values[first] > 0 {
		return 0
	}
	delete(l.values, first)
	return int64(len(value))
}
