//go:build lockrank

package lockrank

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
)

// Mutex is a sync.Mutex whose place in the order is P.
type Mutex[P any] struct{ mu sync.Mutex }

// Lock locks m. It panics if that is against the order.
func (m *Mutex[P]) Lock() {
	acquire(m, placeOf[P]())
	m.mu.Lock()
	panicIfPlanted(placeOf[P]())
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
	panicIfPlanted(placeOf[P]())
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
	panicIfPlanted(placeOf[P]())
}

// RUnlock undoes RLock, by the same goroutine.
func (m *RWMutex[P]) RUnlock() {
	release(m)
	m.mu.RUnlock()
}

// planted is the place of the lock under which the next panic is planted, plus one.
var planted atomic.Int32

// PanicUnder makes the goroutine that next acquires the lock of this name panic, with
// the lock locked: for tests of what a defect does.
func PanicUnder(name string) {
	for i, e := range order {
		if e.name == name {
			planted.Store(int32(i + 1))
			return
		}
	}
	panic("lockrank: there is no lock " + name)
}

// LockNames are the names of all locks, outermost first.
func LockNames() (names []string) {
	for _, e := range order {
		names = append(names, e.name)
	}
	return names
}

func panicIfPlanted(place int) {
	if planted.Load() == int32(place+1) && planted.CompareAndSwap(int32(place+1), 0) {
		panic("a defect under " + order[place].name)
	}
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

// holder has the locks that one goroutine holds, in the order of acquiring, which
// is that of their places.
type holder struct{ locks []held }

// holders have a holder for each goroutine that holds a lock. They are spread by
// goroutine, so that the check orders the goroutines as little as possible.
var holders [256]struct {
	mu   sync.Mutex
	by   map[uintptr]*holder // guarded by mu
	free []*holder           // guarded by mu: so that acquiring allocates nothing
}

func acquire(lock any, place int) {
	id := goroutine()
	all := &holders[id>>8%uintptr(len(holders))]
	all.mu.Lock()
	defer all.mu.Unlock()
	h := all.by[id]
	if h == nil {
		if n := len(all.free); n > 0 {
			h, all.free = all.free[n-1], all.free[:n-1]
		} else {
			h = new(holder)
		}
		if all.by == nil {
			all.by = map[uintptr]*holder{}
		}
		all.by[id] = h
	}
	if n := len(h.locks); n > 0 {
		judge(h.locks[n-1], lock, place)
	}
	h.locks = append(h.locks, held{lock, place})
}

// judge panics if a lock must not be acquired while last is held.
func judge(last held, lock any, place int) {
	switch {
	case last.lock == lock:
		panic(fmt.Sprintf("lockrank: %s is acquired by the goroutine that holds it", order[place].name))
	case last.place == place && isSeveral(place) && address(lock) > address(last.lock):
	case last.place == place && isSeveral(place):
		panic(fmt.Sprintf("lockrank: %s is acquired while one that comes later in its array is held", order[place].name))
	case last.place == place:
		panic(fmt.Sprintf("lockrank: two locks %s are acquired by one goroutine, and there is no order between them", order[place].name))
	case last.place > place:
		panic(fmt.Sprintf("lockrank: %s is acquired while %s is held, which comes after it in the order (internal/lockrank/order.go)", order[place].name, order[last.place].name))
	}
}

func isSeveral(place int) bool { return slices.Contains(several, order[place].place) }

func address(lock any) uintptr { return reflect.ValueOf(lock).Pointer() }

func release(lock any) {
	id := goroutine()
	all := &holders[id>>8%uintptr(len(holders))]
	all.mu.Lock()
	defer all.mu.Unlock()
	h := all.by[id]
	if h == nil || !h.drop(lock) {
		panic(fmt.Sprintf("lockrank: a %T is unlocked by a goroutine that does not hold it", lock))
	}
	if len(h.locks) == 0 {
		delete(all.by, id)
		all.free = append(all.free, h)
	}
}

func (h *holder) drop(lock any) bool {
	for i := len(h.locks) - 1; i >= 0; i-- {
		if h.locks[i].lock == lock {
			last := len(h.locks) - 1
			copy(h.locks[i:], h.locks[i+1:])
			h.locks[last] = held{}
			h.locks = h.locks[:last]
			return true
		}
	}
	return false
}
