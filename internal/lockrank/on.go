//go:build lockrank

package lockrank

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"sync"
)

// Mutex is a sync.Mutex whose place in the order is P.
type Mutex[P any] struct{ mu sync.Mutex }

// Lock locks m. It panics if that is against the order.
func (m *Mutex[P]) Lock() {
	acquire(m, placeOf[P]())
	m.mu.Lock()
}

// Unlock unlocks m, which the same goroutine must have locked.
func (m *Mutex[P]) Unlock() {
	release(m)
	m.mu.Unlock()
}

// RWMutex is a sync.RWMutex whose place in the order is P. Locking it for reading
// counts like locking it: a goroutine that already reads would wait for a writer
// that waits for it.
type RWMutex[P any] struct{ mu sync.RWMutex }

// Lock locks m for writing. It panics if that is against the order.
func (m *RWMutex[P]) Lock() {
	acquire(m, placeOf[P]())
	m.mu.Lock()
}

// Unlock unlocks m, which the same goroutine must have locked.
func (m *RWMutex[P]) Unlock() {
	release(m)
	m.mu.Unlock()
}

// RLock locks m for reading. It panics if that is against the order.
func (m *RWMutex[P]) RLock() {
	acquire(m, placeOf[P]())
	m.mu.RLock()
}

// RUnlock undoes RLock, by the same goroutine.
func (m *RWMutex[P]) RUnlock() {
	release(m)
	m.mu.RUnlock()
}

var places = func() map[any]int {
	places := make(map[any]int, len(order))
	for i, e := range order {
		if _, twice := places[e.place]; twice {
			panic("lockrank: " + e.name + " has the place of another lock")
		}
		places[e.place] = i
	}
	return places
}()

func placeOf[P any]() int {
	place, known := places[*new(P)]
	if !known {
		panic(fmt.Sprintf("lockrank: %T is not in the order", *new(P)))
	}
	return place
}

// held is a lock that a goroutine holds.
type held struct {
	lock  any // *Mutex or *RWMutex
	place int
}

// goroutines have the locks that each goroutine holds, in the order of acquiring,
// which is that of their places. They are spread over maps by the goroutine's number.
var goroutines [64]struct {
	mu   sync.Mutex
	held map[uint64][]held // guarded by mu
}

func acquire(lock any, place int) {
	id := goroutine()
	g := &goroutines[id%uint64(len(goroutines))]
	g.mu.Lock()
	defer g.mu.Unlock()
	locks := g.held[id]
	if n := len(locks); n > 0 {
		switch last := locks[n-1]; {
		case last.lock == lock:
			panic(fmt.Sprintf("lockrank: %s is acquired by the goroutine that holds it", order[place].name))
		case last.place == place:
			panic(fmt.Sprintf("lockrank: two locks %s are acquired by one goroutine, and there is no order between them", order[place].name))
		case last.place > place:
			panic(fmt.Sprintf("lockrank: %s is acquired while %s is held, which comes after it in the order (internal/lockrank/order.go)", order[place].name, order[last.place].name))
		}
	}
	if g.held == nil {
		g.held = map[uint64][]held{}
	}
	g.held[id] = append(locks, held{lock, place})
}

func release(lock any) {
	id := goroutine()
	g := &goroutines[id%uint64(len(goroutines))]
	g.mu.Lock()
	defer g.mu.Unlock()
	locks := g.held[id]
	for i := len(locks) - 1; i >= 0; i-- {
		if locks[i].lock == lock {
			if locks = append(locks[:i], locks[i+1:]...); len(locks) == 0 {
				delete(g.held, id)
			} else {
				g.held[id] = locks
			}
			return
		}
	}
	panic(fmt.Sprintf("lockrank: a %T is unlocked by a goroutine that does not hold it", lock))
}

// goroutine is the number of the calling goroutine, as its stack trace gives it:
// "goroutine 17 [running]:". Slow, but there is no other way that Go supports.
func goroutine() uint64 {
	var buf [64]byte
	text := buf[len("goroutine "):runtime.Stack(buf[:], false)]
	text = text[:bytes.IndexByte(text, ' ')]
	id, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		panic("lockrank: the number of the goroutine cannot be read: " + err.Error())
	}
	return id
}
