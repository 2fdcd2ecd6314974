//go:build lockrank

package lockrank

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

type (
	outer struct{ mu Mutex[DeferredOutput] }
	inner struct{ mu Mutex[Session] }
	last  struct{ mu RWMutex[Names] }
)

func TestLocksAreAcquiredInTheirOrder(t *testing.T) {
	t.Parallel()
	var o outer
	var i inner
	var l last
	for range 2 { // and again, once they have been released
		o.mu.Lock()
		i.mu.Lock()
		l.mu.RLock()
		o.mu.Unlock() // in any order
		l.mu.RUnlock()
		l.mu.Lock()
		l.mu.Unlock()
		i.mu.Unlock()
	}
}

func TestAWrongOrderPanics(t *testing.T) {
	t.Parallel()
	var o outer
	var i, i2 inner
	var l last
	for _, test := range []struct {
		name          string
		first, second sync.Locker
		want          string
	}{
		{"an outer lock under an inner one", &i.mu, &o.mu, "session.Env.deferredMu is acquired while session.Session.Mu is held"},
		{"two locks of one place", &i.mu, &i2.mu, "two locks session.Session.Mu"},
		{"a lock that is held", &i.mu, &i.mu, "session.Session.Mu is acquired by the goroutine that holds it"},
		{"a lock for reading that is held for reading", &reading{&l}, &reading{&l}, "topic.nameShard.mu is acquired by the goroutine that holds it"},
		{"an outer lock under one for reading", &reading{&l}, &i.mu, "session.Session.Mu is acquired while topic.nameShard.mu is held"},
	} {
		test.first.Lock()
		said := panicOf(test.second.Lock)
		test.first.Unlock()
		if !strings.Contains(said, test.want) {
			t.Errorf("%s: it said %q, want %q", test.name, said, test.want)
		}
	}
}

// Of some places a goroutine may hold several locks, in the order of their array.
func TestSeveralLocksInTheOrderOfTheirArray(t *testing.T) {
	t.Parallel()
	var shards [3]struct{ mu Mutex[Shard] }
	for range 2 {
		for i := range shards {
			shards[i].mu.Lock()
		}
		for i := range shards {
			shards[i].mu.Unlock()
		}
	}
	shards[1].mu.Lock()
	for i, want := range map[int]string{0: "engine.shard.mu is acquired while one that comes later in its array is held", 1: "by the goroutine that holds it"} {
		if said := panicOf(shards[i].mu.Lock); !strings.Contains(said, want) {
			t.Errorf("lock %d under lock 1: it said %q, want %q", i, said, want)
		}
	}
	shards[1].mu.Unlock()
}

// reading is an RWMutex as a Locker for reading.
type reading struct{ l *last }

func (r *reading) Lock()   { r.l.mu.RLock() }
func (r *reading) Unlock() { r.l.mu.RUnlock() }

func TestOnlyTheHolderUnlocks(t *testing.T) {
	t.Parallel()
	var i inner
	i.mu.Lock()
	said := make(chan string)
	go func() { said <- panicOf(i.mu.Unlock) }()
	if got := <-said; !strings.Contains(got, "does not hold it") {
		t.Errorf("another goroutine unlocked it: %q", got)
	}
	i.mu.Unlock()
}

// A goroutine that waits for a condition holds the lock only before and after.
func TestAConditionReleasesItsLock(t *testing.T) {
	t.Parallel()
	var i inner
	cond := sync.NewCond(&i.mu)
	ready := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.mu.Lock()
		defer i.mu.Unlock()
		for !ready {
			cond.Wait()
		}
	}()
	i.mu.Lock()
	ready = true
	cond.Signal()
	i.mu.Unlock()
	<-done
	var o outer
	o.mu.Lock()
	o.mu.Unlock()
}

func TestALockWithoutAPlaceIsRefused(t *testing.T) {
	t.Parallel()
	var m Mutex[int]
	if said := panicOf(m.Lock); !strings.Contains(said, "int is not in the order") {
		t.Errorf("it said %q", said)
	}
}

func panicOf(f func()) (said string) {
	defer func() {
		if p := recover(); p != nil {
			said = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}
