package message

import (
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// A retained message is charged while queues and outputs refer to it, however often they do
// so again after the last has let go: the store may have replaced it meanwhile.
func TestStoredMessagesAreChargedWhileReferredTo(t *testing.T) {
	t.Parallel()
	pool := memory.NewPool(1 << 20)
	accounts := NewAccounts(pool)
	m := stored(100)
	for range 2 {
		m.Keep()
		accounts.Charge(m, memory.Queues)
		m.Keep()
		accounts.Charge(m, memory.Output)
		if q, o := pool.UsedBy(memory.Queues), pool.UsedBy(memory.Output); q != 100 || o != 0 {
			t.Fatalf("%d bytes are charged to queues and %d to outputs, want 100 and 0", q, o)
		}
		m.Release()
		if used := pool.Used(); used != 100 {
			t.Fatalf("%d bytes are charged while there is a reference, want 100", used)
		}
		m.Release()
		if used := pool.Used(); used != 0 {
			t.Fatalf("%d bytes are charged without a reference", used)
		}
	}
}

// Goroutines get references from the store and give them back at the same time.
func TestStoredMessagesAreChargedExactly(t *testing.T) {
	t.Parallel()
	pool := memory.NewPool(1 << 20)
	accounts := NewAccounts(pool)
	m := stored(100)
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 20_000 {
				m.Keep()
				accounts.Charge(m, memory.Queues)
				if used := pool.Used(); used != 100 {
					t.Errorf("%d bytes are charged while there is a reference, want 100", used)
				}
				m.Release()
			}
		})
	}
	running.Wait()
	if used := pool.Used(); used != 0 {
		t.Errorf("%d bytes are charged without a reference", used)
	}
}

// stored is a message of so many bytes as the store of retained messages has it, without a
// reference.
func stored(size int) *Message {
	o := Outgoing{Topic: make([]byte, size)}
	m := o.Kept()
	m.Stamp = 1
	o.Done()
	return m
}
