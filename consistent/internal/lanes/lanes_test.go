package lanes

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type task struct {
	Place
	id    string
	alone bool // it does not join others

	exited *bool // what Exited was told last
}

func (t *task) Same(other *task) bool { return t.id == other.id }
func (t *task) Joins(_ []*task) bool  { return !t.alone }
func (t *task) Exited(only bool)      { t.exited = &only }
func taskOf(lane, id string) *task    { return &task{Place: Place{Lane: lane}, id: id, alone: true} }

type ackFunc func()

func (f ackFunc) Ack() { f() }

// each works on tasks one by one.
func each(work func(*task) Outcome) func(*Run[*task]) bool {
	return func(r *Run[*task]) bool {
		for i, f := range r.Tasks {
			r.Outcomes[i] = work(f)
		}
		return true
	}
}

// Tasks of one key keep their order and never overlap; no more run at once than there are
// slots; every message is acknowledged.
func TestLanes(t *testing.T) {
	t.Parallel()
	const keys, messages, slots = 10, 100, 3
	var flying, acked atomic.Int64
	var mu sync.Mutex
	busy, order := make(map[string]bool), make(map[string][]string)
	l := New(slots, 1, each(func(f *task) Outcome {
		if n := flying.Add(1); n > slots {
			t.Errorf("%d run in %d slots", n, slots)
		}
		mu.Lock()
		if busy[f.Lane] {
			t.Errorf("two run in lane %s", f.Lane)
		}
		busy[f.Lane] = true
		order[f.Lane] = append(order[f.Lane], f.id)
		mu.Unlock()
		defer func() {
			mu.Lock()
			busy[f.Lane] = false
			mu.Unlock()
			flying.Add(-1)
		}()
		return Outcome{Settled: true}
	}))
	for i := range messages {
		for k := range keys {
			l.Add(taskOf(fmt.Sprint(k), fmt.Sprint(i)), ackFunc(func() { acked.Add(1) }))
		}
	}
	l.Wait()
	for k, ids := range order {
		for i, id := range ids {
			if id != fmt.Sprint(i) {
				t.Fatalf("lane %s: %v", k, ids)
			}
		}
	}
	if acked.Load() != keys*messages || len(l.byKey) != 0 || l.slots != slots {
		t.Errorf("%d acknowledged, %d lanes left, %d slots", acked.Load(), len(l.byKey), l.slots)
	}
}

// A message that comes again while its task waits or runs joins that task; afterwards it gets a new one.
func TestSameMessageIsOneFlight(t *testing.T) {
	t.Parallel()
	var tasks, acked atomic.Int64
	flying, land := make(chan struct{}), make(chan struct{})
	l := New(1, 1, each(func(*task) Outcome {
		tasks.Add(1)
		flying <- struct{}{}
		<-land
		return Outcome{Settled: true}
	}))
	ack := func() { acked.Add(1) }
	l.Add(taskOf("k", "1"), ackFunc(ack))
	<-flying
	l.Add(taskOf("k", "1"), ackFunc(ack))
	l.Add(taskOf("k", "2"), ackFunc(ack))
	l.Add(taskOf("k", "2"), ackFunc(ack))
	land <- struct{}{}
	<-flying
	land <- struct{}{}
	l.Wait()
	if tasks.Load() != 2 || acked.Load() != 4 {
		t.Errorf("%d tasks, %d acknowledgements", tasks.Load(), acked.Load())
	}
}

// After close no new task runs, and what did not end well is not acknowledged.
func TestLanesClosed(t *testing.T) {
	t.Parallel()
	flying, land := make(chan struct{}), make(chan struct{})
	l := New(1, 1, each(func(*task) Outcome {
		flying <- struct{}{}
		<-land
		return Outcome{}
	}))
	unexpected := func() { t.Error("acknowledged") }
	l.Add(taskOf("k", "1"), ackFunc(unexpected))
	<-flying
	l.Add(taskOf("k", "2"), ackFunc(unexpected))
	l.Add(taskOf("other", "3"), ackFunc(unexpected))
	l.Close()
	l.Add(taskOf("k", "4"), ackFunc(unexpected))
	close(land)
	l.Wait()
}

// Tasks that wait in one lane run together, up to a number, in their order; those that go back
// come first, and one that rests holds the lane.
func TestTogether(t *testing.T) {
	t.Parallel()
	var runs []string
	flying, land := make(chan struct{}), make(chan struct{})
	acked := make(chan struct{}, 8)
	l := New(1, 3, func(r *Run[*task]) bool {
		outcomes := r.Outcomes
		run := ""
		for i, f := range r.Tasks {
			run += f.id
			outcomes[i].Settled = true
		}
		runs = append(runs, run)
		switch len(runs) {
		case 1:
			flying <- struct{}{}
			<-land
		case 2: // the second goes back, and the third rests for a moment
			outcomes[1], outcomes[2] = Outcome{Back: true}, Outcome{Again: 1}
		}
		return true
	})
	add := func(ids string, alone bool) {
		for _, id := range ids {
			f := taskOf("k", string(id))
			f.alone = alone
			l.Add(f, ackFunc(func() { acked <- struct{}{} }))
		}
	}
	add("a", false)
	<-flying
	add("bcdef", false)
	add("g", true)
	add("d", false) // again
	close(land)
	for range 8 {
		<-acked
	}
	l.Close()
	l.Wait()
	order := strings.Join(runs, "")
	if runs[0] != "a" || runs[1] != "bcd" || !strings.HasSuffix(order, "g") || strings.Index(order[4:], "c") > strings.Index(order[4:], "e") {
		t.Errorf("ran %q", runs)
	}
}

// Work that waits holds up no lane that has a slot, and work that ends elsewhere keeps its slot until
// then.
func TestWorkThatWaits(t *testing.T) {
	t.Parallel()
	const lanes = 8
	began, land := make(chan *Run[*task], lanes), make(chan struct{})
	acked := make(chan struct{}, lanes+1)
	l := New(lanes, 1, func(r *Run[*task]) bool {
		elsewhere := r.Tasks[0].id == "elsewhere"
		r.Outcomes[0].Settled = true
		began <- r
		if !elsewhere {
			<-land
		}
		return !elsewhere
	})
	add := func(lane, id string) {
		l.Add(taskOf(lane, id), ackFunc(func() { acked <- struct{}{} }))
	}
	for i := range lanes - 1 {
		add(fmt.Sprint(i), "waits")
	}
	for range lanes - 1 {
		<-began
	}
	add("last", "elsewhere")
	add("none", "waits") // there is no slot for it
	last := <-began
	l.mu.Lock()
	if l.slots != 0 || len(l.queue) != 0 || len(l.ready) != 1 {
		t.Errorf("%d slots are free, %d lanes have one and do not run, %d wait", l.slots, len(l.queue), len(l.ready))
	}
	l.mu.Unlock()
	last.Finish()
	<-acked
	<-began
	close(land)
	for range lanes {
		<-acked
	}
	l.Wait()
	l.Close()
	if l.slots != lanes {
		t.Errorf("%d slots", l.slots)
	}
}

// Tasks that have a slot, and that no goroutine has begun, do not run after Close.
func TestClosedBeforeTheyBegin(t *testing.T) {
	t.Parallel()
	l := New(2, 1, each(func(*task) Outcome { return Outcome{Settled: true} }))
	l.waking = true // no worker comes
	l.Add(taskOf("a", "1"), ackFunc(func() { t.Error("acknowledged") }))
	l.Add(taskOf("b", "1"), ackFunc(func() { t.Error("acknowledged") }))
	l.Close()
	l.Wait()
}

// Work that ends its goroutine is told to its tasks, and they are worked on again: no slot is lost.
func TestGoexit(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 2} {
		begun, done := make(chan struct{}), make(chan struct{})
		first, acked := true, 0
		l := New(1, most, func(r *Run[*task]) bool {
			<-begun
			if first {
				first = false
				runtime.Goexit()
			}
			for i := range r.Outcomes {
				r.Outcomes[i] = Outcome{Settled: true}
			}
			return true
		})
		tasks := []*task{taskOf("k", "1"), taskOf("k", "2")}
		for _, f := range tasks {
			f.alone = false
			l.Add(f, ackFunc(func() {
				if acked++; acked == len(tasks) {
					close(done)
				}
			}))
		}
		close(begun)
		<-done
		if only := tasks[0].exited; only == nil || *only != (most == 1) {
			t.Errorf("%d together: told %v", most, only)
		}
		l.Close()
		l.Wait()
	}
}

// Await stops what takes long.
func TestAwait(t *testing.T) {
	t.Parallel()
	stopped := make(chan struct{})
	if !Await(func() {}, time.Hour, func() { t.Error("stopped") }) {
		t.Error("what ends at once is not awaited")
	}
	if !Await(func() { <-stopped }, time.Nanosecond, func() { close(stopped) }) {
		t.Error("what ends when it is stopped is not awaited")
	}
}
