package broker

import (
	"container/heap"
	"time"

	"holdfast/internal/lockrank"
)

// timers runs what is due at a time: expiries of sessions, delayed wills. One
// goroutine serves all of them.
type timers struct {
	mu   lockrank.Mutex[lockrank.Timers]
	heap timerHeap
	wake chan struct{} // something earlier was added
}

// timer is one entry; run is called with no lock held.
type timer struct {
	due   int64 // ms on the broker's clock
	run   func()
	index int // in the heap; -1: not in it
}

func (ts *timers) add(due int64, run func()) *timer {
	t := &timer{due: due, run: run}
	ts.mu.Lock()
	heap.Push(&ts.heap, t)
	first := t.index == 0
	ts.mu.Unlock()
	if first {
		select {
		case ts.wake <- struct{}{}:
		default:
		}
	}
	return t
}

// remove says whether t was still to come; false: it runs or has run.
func (ts *timers) remove(t *timer) bool {
	if t == nil {
		return false
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t.index < 0 {
		return false
	}
	heap.Remove(&ts.heap, t.index)
	return true
}

// runDue runs what is due and says how long until the next.
func (ts *timers) runDue(now int64) time.Duration {
	for {
		ts.mu.Lock()
		if len(ts.heap) == 0 {
			ts.mu.Unlock()
			return time.Hour
		}
		t := ts.heap[0]
		if t.due > now {
			ts.mu.Unlock()
			return time.Duration(t.due-now) * time.Millisecond
		}
		heap.Pop(&ts.heap)
		ts.mu.Unlock()
		t.run()
	}
}

// serve runs timers until stop is closed.
func (ts *timers) serve(now func() int64, stop <-chan struct{}) {
	for {
		wait := time.NewTimer(ts.runDue(now()))
		select {
		case <-wait.C:
		case <-ts.wake:
			wait.Stop()
		case <-stop:
			wait.Stop()
			return
		}
	}
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
