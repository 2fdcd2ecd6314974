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
// is charged once, however many responses with it wait for their clients. Its lock
// also guards what retained messages are charged with.
type lent struct {
	mu     lockrank.Mutex[lockrank.Lent]
	values map[*byte]int // by the first byte; guarded by mu
}

// Charge charges the pool with a message, of which the caller has a
// reference, until its last reference goes; only the first call does. The store of
// retained messages charges them as well, for as long as they are stored: queues and
// outputs may refer to one that has been replaced or deleted.
func (a *Accounts) Charge(m *Message, k memory.Kind) {
	switch {
	case a.pool == nil:
	case m.Stamp != 0:
		a.chargeStored(m, k)
	case atomic.CompareAndSwapInt32(&m.charged, 0, int32(k)+1):
		m.chargedBy = a
		a.pool.Charge(k, int64(len(m.buf)))
		if m.value != nil {
			a.pool.Charge(k, a.lent.take(m.value))
		}
	}
}

// chargeStored is Charge for a message that is or was retained. The store gives references
// to it also after the last one has gone, so it may be charged several times, one after
// the other: a goroutine that gives the last reference back and one that has just got
// another agree under the lock.
func (a *Accounts) chargeStored(m *Message, k memory.Kind) {
	a.lent.mu.Lock()
	defer a.lent.mu.Unlock()
	if atomic.LoadInt32(&m.charged) != 0 {
		return
	}
	if m.chargedBy == nil {
		m.chargedBy = a
	}
	atomic.StoreInt32(&m.charged, int32(k)+1)
	a.pool.Charge(k, int64(len(m.buf)))
}

// creditStored undoes chargeStored, unless there is a reference again.
func (a *Accounts) creditStored(m *Message) {
	a.lent.mu.Lock()
	defer a.lent.mu.Unlock()
	if charged := atomic.LoadInt32(&m.charged); charged != 0 && atomic.LoadInt32(&m.refs) == 0 {
		atomic.StoreInt32(&m.charged, 0)
		a.pool.Credit(memory.Kind(charged-1), int64(len(m.buf)))
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
