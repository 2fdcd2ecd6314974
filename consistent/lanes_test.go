package consistent

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

func taskOf(lane, id string, ack func()) *task {
	return &task{lane: lane, acks: []func(){ack}, Incoming: Incoming{MessageID: id}}
}

// Tasks of one key keep their order and never overlap; no more run at once than there are
// slots; every message is acknowledged.
func TestLanes(t *testing.T) {
	t.Parallel()
	const keys, each, slots = 10, 100, 3
	var flying, acked atomic.Int64
	var mu sync.Mutex
	busy, order := make(map[string]bool), make(map[string][]string)
	l := newLanes(slots, func(f *task) outcome {
		if n := flying.Add(1); n > slots {
			t.Errorf("%d run in %d slots", n, slots)
		}
		mu.Lock()
		if busy[f.lane] {
			t.Errorf("two run in lane %s", f.lane)
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
		return outcome{settled: true}
	})
	for i := range each {
		for k := range keys {
			l.add(taskOf(fmt.Sprint(k), fmt.Sprint(i), func() { acked.Add(1) }))
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

// A message that comes again while its task waits or runs joins that task; afterwards it gets a new one.
func TestSameMessageIsOneFlight(t *testing.T) {
	t.Parallel()
	var tasks, acked atomic.Int64
	flying, land := make(chan struct{}), make(chan struct{})
	l := newLanes(1, func(*task) outcome {
		tasks.Add(1)
		flying <- struct{}{}
		<-land
		return outcome{settled: true}
	})
	ack := func() { acked.Add(1) }
	l.add(taskOf("k", "1", ack))
	<-flying
	l.add(taskOf("k", "1", ack))
	l.add(taskOf("k", "2", ack))
	l.add(taskOf("k", "2", ack))
	land <- struct{}{}
	<-flying
	land <- struct{}{}
	l.running.Wait()
	if tasks.Load() != 2 || acked.Load() != 4 {
		t.Errorf("%d tasks, %d acknowledgements", tasks.Load(), acked.Load())
	}
}

// After close no new task runs, and what did not end well is not acknowledged.
func TestLanesClosed(t *testing.T) {
	t.Parallel()
	flying, land := make(chan struct{}), make(chan struct{})
	l := newLanes(1, func(*task) outcome {
		flying <- struct{}{}
		<-land
		return outcome{}
	})
	unexpected := func() { t.Error("acknowledged") }
	l.add(taskOf("k", "1", unexpected))
	<-flying
	l.add(taskOf("k", "2", unexpected))
	l.add(taskOf("other", "3", unexpected))
	l.close()
	l.add(taskOf("k", "4", unexpected))
	close(land)
	l.running.Wait()
}
