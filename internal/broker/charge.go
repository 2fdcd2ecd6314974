package broker

import (
	"sync/atomic"
	"unsafe"

	"holdfast/internal/lockrank"
	"holdfast/internal/memory"
)

// lent counts the messages that refer to each value of a handler's, so that a value
// is charged once, however many responses with it wait for their clients.
type lent struct {
	mu     lockrank.Mutex[lockrank.Lent]
	values map[*byte]int // by the first byte; guarded by mu
}

// Release implements transport.Owner.
func (m *Message) Release() { m.release() }

// charge charges the pool of memory with a message, of which the caller has a
// reference, until its last reference goes; only the first call does. Retained
// messages are the store's to charge, whose reference never goes.
func (b *Broker) charge(m *Message, k memory.Kind) {
	if b.memory == nil || m.stamp != 0 || !atomic.CompareAndSwapInt32(&m.charged, 0, int32(k)+1) {
		return
	}
	m.chargedBy = b
	b.memory.Charge(k, int64(len(m.buf)))
	if m.value != nil {
		b.memory.Charge(k, b.lent.take(m.value))
	}
}

// credit undoes charge with the last reference.
func (b *Broker) credit(m *Message) {
	k := memory.Kind(m.charged - 1)
	b.memory.Credit(k, int64(len(m.buf)))
	if m.value != nil {
		b.memory.Credit(k, b.lent.give(m.value))
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
