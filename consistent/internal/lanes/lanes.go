// Package lanes decides which tasks run when: the tasks of a key one after the other, those of
// different keys side by side. It knows neither messages nor what a task does.
package lanes

import (
	"slices"
	"sync"
	"time"
)

// Task is a task of a Lanes. Its type embeds a Place.
type Task[T any] interface {
	comparable
	At() *Place
	// Same tells whether another task of the same key is for the same message.
	Same(T) bool
	// Joins tells whether the task may run together with those before it, which wait in the
	// same lane.
	Joins(before []T) bool
}

// Ack is the acknowledgement of a message.
type Ack interface{ Ack() }

// Place is what a Lanes knows of a task.
type Place struct {
	Lane  string // the key
	acks  []Ack  // under Lanes.mu: one for each delivery of the message
	room  [1]Ack // for acks, most of which are one
	timer *time.Timer
	next  *any
}

// At implements Task.
func (p *Place) At() *Place { return p }

// Next is what one task leaves for the next one of its lane. It is there for as long as tasks
// wait in the lane; only the task that runs uses it.
func (p *Place) Next() *any { return p.next }

// Outcome says what becomes of a task that was worked on. The zero value drops it: its
// message is not acknowledged.
type Outcome struct {
	Settled bool          // its message is to be acknowledged
	Again   time.Duration // work on it again after this time; 0: don't
	Aside   bool          // … and let the tasks behind it go first
	Back    bool          // work on it again at once, in its order
}

// Lanes runs tasks, in one lane for each key: the tasks of a lane one after the other, in
// the order in which their messages came, and as many lanes at once as there are slots. Tasks
// that wait in one lane can run together, as one. A message that comes again while its task
// waits, runs or rests is acknowledged with that task.
//
// A task that is to be tried again rests without a slot. Either its lane waits for it, or it
// steps aside, and comes back behind the tasks that are there by then: one of them may be
// what it needs.
//
// The Receive Maximum bounds how many tasks wait: beyond it the server sends no more
// messages without an acknowledgement.
type Lanes[T Task[T]] struct {
	work func([]T) []Outcome
	most int // tasks that run together
	idle chan *lane[T]
	end  chan struct{} // closed by Close

	mu      sync.Mutex
	slots   int                 // under mu: how many more lanes may run
	byKey   map[string]*lane[T] // under mu: those with tasks
	ready   []*lane[T]          // under mu: with tasks, waiting for a slot
	free    []*lane[T]          // under mu: without tasks, to be used again
	closed  bool                // under mu
	running sync.WaitGroup
}

// maxFree is how many lanes without tasks are kept.
const maxFree = 1024

type lane[T Task[T]] struct {
	key       string
	scheduled bool // under Lanes.mu: it runs, or is ready
	current   []T  // under Lanes.mu
	waiting   []T  // under Lanes.mu
	held      []T  // under Lanes.mu: they rest, and the lane waits for them
	aside     []T  // under Lanes.mu: they rest, and the lane goes on
	spare     []T  // under Lanes.mu: what waiting or current had, empty
	next      any  // see Place.Next
}

// New makes lanes of which slots run at once. work gets up to most tasks of one lane, and
// returns as many outcomes.
func New[T Task[T]](slots, most int, work func([]T) []Outcome) *Lanes[T] {
	return &Lanes[T]{work: work, most: most, idle: make(chan *lane[T]), end: make(chan struct{}), slots: slots, byKey: make(map[string]*lane[T])}
}

// Add queues a task with its acknowledgement, unless the lanes are closed.
func (l *Lanes[T]) Add(f T, ack Ack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	key := f.At().Lane
	in := l.byKey[key]
	if in == nil {
		if n := len(l.free) - 1; n >= 0 {
			in, l.free = l.free[n], l.free[:n]
		} else {
			in = new(lane[T])
		}
		in.key = key
		l.byKey[key] = in
	}
	for _, tasks := range [][]T{in.current, in.held, in.waiting, in.aside} {
		if i := slices.IndexFunc(tasks, f.Same); i >= 0 {
			same := tasks[i].At()
			same.acks = append(same.acks, ack)
			return
		}
	}
	at := f.At()
	at.acks = append(at.room[:0], ack)
	in.waiting = append(in.waiting, f)
	l.schedule(in)
}

// Acks are the acknowledgements of a task so far.
func (l *Lanes[T]) Acks(f T) []Ack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(f.At().acks)
}

// schedule gives a lane a slot, or has it wait for one, if it has a task to run and
// neither runs nor is ready. The caller holds mu.
func (l *Lanes[T]) schedule(in *lane[T]) {
	if in.scheduled || len(in.held) > 0 || len(in.waiting) == 0 {
		return
	}
	in.scheduled = true
	if l.slots == 0 {
		l.ready = append(l.ready, in)
		return
	}
	l.slots--
	l.running.Add(1)
	select {
	case l.idle <- in:
	default:
		go l.serve(in)
	}
}

// serve runs lanes one after the other, each when it is ready, until the lanes are closed: a
// goroutine that has run a handler has the stack for the next.
func (l *Lanes[T]) serve(in *lane[T]) {
	for {
		l.run(in)
		select {
		case in = <-l.idle:
		case <-l.end:
			return
		}
	}
}

// run runs tasks in one slot, as long as there are any.
func (l *Lanes[T]) run(in *lane[T]) {
	defer l.running.Done()
	var acks []Ack
	for in != nil {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return
		}
		n := 1
		for n < l.most && n < len(in.waiting) && in.waiting[n].Joins(in.waiting[:n]) {
			n++
		}
		var tasks []T
		if n == len(in.waiting) {
			tasks, in.waiting, in.spare = in.waiting, in.spare, nil
		} else {
			tasks, in.waiting = slices.Clone(in.waiting[:n]), in.waiting[n:]
		}
		in.current = tasks
		l.mu.Unlock()
		for _, f := range tasks {
			f.At().next = &in.next
		}

		outcomes := l.work(tasks)

		acks = acks[:0]
		l.mu.Lock()
		in.current = nil
		var back []T
		for i, f := range tasks {
			switch o := &outcomes[i]; {
			case o.Settled:
				acks = append(acks, f.At().acks...)
			case o.Back:
				back = append(back, f)
			case o.Again > 0:
				l.rest(in, f, o)
			}
		}
		if len(back) > 0 {
			in.waiting = append(back, in.waiting...)
		}
		clear(tasks)
		in.spare = tasks[:0]
		in = l.next(in)
		l.mu.Unlock()
		for _, a := range acks {
			a.Ack()
		}
		clear(acks)
	}
}

// rest has a task wait for its next attempt. The caller holds mu.
func (l *Lanes[T]) rest(in *lane[T], f T, o *Outcome) {
	if l.closed {
		return
	}
	if o.Aside {
		in.aside = append(in.aside, f)
	} else {
		in.held = append(in.held, f)
	}
	f.At().timer = time.AfterFunc(o.Again, func() { l.back(in, f) })
}

// back ends the rest of a task.
func (l *Lanes[T]) back(in *lane[T], f T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	is := func(t T) bool { return t == f }
	if slices.ContainsFunc(in.held, is) {
		in.held = slices.DeleteFunc(in.held, is)
		in.waiting = append([]T{f}, in.waiting...)
	} else {
		in.aside = slices.DeleteFunc(in.aside, is)
		in.waiting = append(in.waiting, f)
	}
	l.schedule(in)
}

// next chooses the lane whose tasks run next: the lanes take turns. It returns nil, and
// frees the slot, if no lane has a task. The caller holds mu.
func (l *Lanes[T]) next(in *lane[T]) *lane[T] {
	if l.closed {
		return nil
	}
	in.scheduled = false
	switch {
	case len(in.held) > 0:
	case len(in.waiting) > 0:
		in.scheduled = true
		l.ready = append(l.ready, in)
	default:
		in.next = nil
		if len(in.aside) == 0 {
			delete(l.byKey, in.key)
			if in.key = ""; len(l.free) < maxFree {
				l.free = append(l.free, in)
			}
		}
	}
	if len(l.ready) == 0 {
		l.slots++
		return nil
	}
	in, l.ready = l.ready[0], l.ready[1:]
	return in
}

// Close ends the goroutines that run nothing, and drops the tasks that wait or rest. Tasks that run go on; Wait waits for them.
func (l *Lanes[T]) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		close(l.end)
	}
	l.closed = true
	for _, in := range l.byKey {
		for _, f := range append(in.aside, in.held...) {
			f.At().timer.Stop()
		}
	}
	l.byKey, l.ready, l.free = nil, nil, nil
}

// Wait waits, after Close, until no task runs.
func (l *Lanes[T]) Wait() { l.running.Wait() }
