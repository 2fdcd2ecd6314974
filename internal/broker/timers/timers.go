package timers

import (
	"container/heap"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Timers runs what is due at a time: expiries of sessions, delayed wills. One
// goroutine serves all of them.
type Timers struct {
	mu   lockrank.Mutex[lockrank.Timers]
	heap timerHeap
	wake chan struct{} // something earlier was added
}

// New has nothing to run.
func New() *Timers { return &Timers{wake: make(chan struct{}, 1)} }

// Timer is one entry; run is called with no lock held.
type Timer struct {
	Due   int64 // ms on the broker's clock
	run   func()
	index int // in the heap; -1: not in it
}

// Add has run called when due has come.
func (ts *Timers) Add(due int64, run func()) *Timer {
	t := &Timer{Due: due, run: run}
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

// Remove says whether t was still to come; false: it runs or has run.
func (ts *Timers) Remove(t *Timer) bool {
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
func (ts *Timers) runDue(now int64) time.Duration {
	for {
		ts.mu.Lock()
		if len(ts.heap) == 0 {
			ts.mu.Unlock()
			return time.Hour
		}
		t := ts.heap[0]
		if t.Due > now {
			ts.mu.Unlock()
			return time.Duration(t.Due-now) * time.Millisecond
		}
		heap.Pop(&ts.heap)
		ts.mu.Unlock()
		t.run()
	}
}

// Serve runs timers until stop is closed.
func (ts *Timers) Serve(now func() int64, stop <-chan struct{}) {
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

type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].Due < h[j].Due }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	t := x.(*Timer)
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
