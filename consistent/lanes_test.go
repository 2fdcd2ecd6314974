package consistent

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

func flightOf(lane, id string, ack func()) *flight {
	return &flight{lane: lane, acks: []func(){ack}, Incoming: Incoming{MessageID: id}}
}

// Flights of one key keep their order and never overlap; no more fly than there are
// slots; every message is acknowledged.
func TestLanes(t *testing.T) {
	t.Parallel()
	const keys, each, slots = 10, 100, 3
	var flying, acked atomic.Int64
	var mu sync.Mutex
	busy, order := make(map[string]bool), make(map[string][]string)
	l := newLanes(slots, func(f *flight) bool {
		if n := flying.Add(1); n > slots {
			t.Errorf("%d fly in %d slots", n, slots)
		}
		mu.Lock()
		if busy[f.lane] {
			t.Errorf("two fly in lane %s", f.lane)
		}
		busy[f.lane] = true
		order[f.lane] = append(order[f.lane], f.MessageID)
		mu.Unlock()
		defer func() {
			mu.Lock()
			busy[f.lane] = false
			mu.Unlock()
			flying.Add(-1)
		}()
		return true
	})
	for i := range each {
		for k := range keys {
			l.add(flightOf(fmt.Sprint(k), fmt.Sprint(i), func() { acked.Add(1) }))
		}
	}
	l.running.Wait()
	for k, ids := range order {
		for i, id := range ids {
			if id != fmt.Sprint(i) {
				t.Fatalf("lane %s: %v", k, ids)
			}
		}
	}
	if acked.Load() != keys*each || len(l.byKey) != 0 || l.slots != slots {
		t.Errorf("%d acknowledged, %d lanes left, %d slots", acked.Load(), len(l.byKey), l.slots)
	}
}

// The same message while its flight waits or flies joins it; afterwards it flies again.
func TestSameMessageIsOneFlight(t *testing.T) {
	t.Parallel()
	var flights, acked atomic.Int64
	flying, land := make(chan struct{}), make(chan struct{})
	l := newLanes(1, func(*flight) bool {
		flights.Add(1)
		flying <- struct{}{}
		<-land
		return true
	})
	ack := func() { acked.Add(1) }
	l.add(flightOf("k", "1", ack))
	<-flying
	l.add(flightOf("k", "1", ack))
	l.add(flightOf("k", "2", ack))
	l.add(flightOf("k", "2", ack))
	land <- struct{}{}
	<-flying
	land <- struct{}{}
	l.running.Wait()
	if flights.Load() != 2 || acked.Load() != 4 {
		t.Errorf("%d flights, %d acknowledgements", flights.Load(), acked.Load())
	}
}

// After close nothing new flies, and what did not end well is not acknowledged.
func TestLanesClosed(t *testing.T) {
	t.Parallel()
	flying, land := make(chan struct{}), make(chan struct{})
	l := newLanes(1, func(*flight) bool {
		flying <- struct{}{}
		<-land
		return false
	})
	unexpected := func() { t.Error("acknowledged") }
	l.add(flightOf("k", "1", unexpected))
	<-flying
	l.add(flightOf("k", "2", unexpected))
	l.add(flightOf("other", "3", unexpected))
	l.close()
	l.add(flightOf("k", "4", unexpected))
	close(land)
	l.running.Wait()
}
