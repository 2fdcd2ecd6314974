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
	// Exited tells the task that the goroutine was ended which worked on it, and on no other one
	// if only is true.
	Exited(only bool)
}

// Ack is the acknowledgement of a message.
type Ack interface{ Ack() }

// Place is what a Lanes knows of a task.
type Place struct {
	Lane  string // the key
	acks  []Ack  // under Lanes.mu: one for each delivery of the message
	room  [1]Ack // for acks, most of which are one
	timer *time.Timer
}

// At implements Task.
func (p *Place) At() *Place { return p }

// Outcome says what becomes of a task that was worked on. The zero value drops it: its
// message is not acknowledged.
type Outcome struct {
	Settled bool          // its message is to be acknowledged
	Again   time.Duration // work on it again after this time; 0: don't
	Aside   bool          // … and let the tasks behind it go first
	Back    bool          // work on it again at once, in its order
}

// Run is tasks of one lane that run together. It is good until its Finish, or until work has said
// that it has ended.
type Run[T Task[T]] struct {
	Tasks    []T
	Outcomes []Outcome // one for each of Tasks, which work fills in; they drop the tasks at first
	of       *Lanes[T]
	in       *lane[T]
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
// The lanes that have a slot are begun by workers, goroutines of which each takes one lane after
// the other. One worker is enough as long as no task waits for anything: when a worker takes a lane
// and leaves others, it wakes a second one, which finds nothing to do unless the first one waits
// or another processor is free. So a task that waits holds up no other lane, and tasks that do not
// wait cost no switch of goroutines each. Work that goes on elsewhere, at the server for example,
// needs no worker: it keeps its slot until Finish.
//
// The Receive Maximum bounds how many tasks wait: beyond it the server sends no more
// messages without an acknowledgement.
type Lanes[T Task[T]] struct {
	work func(*Run[T]) (ended bool)
	most int // tasks that run together

	mu      sync.Mutex
	more    sync.Cond           // on mu: workers wait for queue
	queue   []*lane[T]          // under mu: those that have a slot and are to run
	idle    int                 // under mu: workers that wait, and were not woken
	waking  bool                // under mu: a worker was begun or woken, and has not looked at queue yet
	slots   int                 // under mu: how many more lanes may run
	byKey   map[string]*lane[T] // under mu: those with tasks
	ready   []*lane[T]          // under mu: with tasks, waiting for a slot
	free    []*lane[T]          // under mu: without tasks, to be used again
	closed  bool                // under mu
	running sync.WaitGroup      // the slots in use, and acknowledgements under way
}

// maxFree is how many lanes without tasks are kept.
const maxFree = 1024

type lane[T Task[T]] struct {
	run       Run[T] // Tasks, under Lanes.mu: those that run
	key       string
	scheduled bool // under Lanes.mu: it has a slot, or is ready
	waiting   []T  // under Lanes.mu
	held      []T  // under Lanes.mu: they rest, and the lane waits for them
	aside     []T  // under Lanes.mu: they rest, and the lane goes on
	spare     []T  // under Lanes.mu: what waiting or run.Tasks had, empty
}

// New makes lanes of which slots run at once. work gets up to most tasks of one lane. If it
// returns true it has filled in what became of them; otherwise that comes by Run.Finish, perhaps
// before work has returned.
func New[T Task[T]](slots, most int, work func(*Run[T]) (ended bool)) *Lanes[T] {
	l := &Lanes[T]{work: work, most: most, slots: slots, byKey: make(map[string]*lane[T])}
	l.more.L = &l.mu
	return l
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
			in.run.of, in.run.in = l, in
		}
		in.key = key
		l.byKey[key] = in
	}
	for _, tasks := range [][]T{in.run.Tasks, in.held, in.waiting, in.aside} {
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
	l.wake()
}

// Acks are the acknowledgements of a task so far.
func (l *Lanes[T]) Acks(f T) []Ack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(f.At().acks)
}

// schedule gives a lane a slot, or has it wait for one, if it has a task to run and
// neither runs nor is ready. The caller holds mu, and wakes a worker.
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
	l.queue = append(l.queue, in)
}

// wake has a worker look at the queue, unless one is about to. The caller holds mu.
func (l *Lanes[T]) wake() {
	switch {
	case l.waking || len(l.queue) == 0:
		return
	case l.idle > 0:
		l.idle--
		l.more.Signal()
	default:
		go l.serve()
	}
	l.waking = true
}

// serve is a worker. It ends when the lanes are closed: a goroutine that has run a handler has the
// stack for the next.
func (l *Lanes[T]) serve() {
	l.mu.Lock()
	l.waking = false
	for {
		for len(l.queue) == 0 && !l.closed {
			l.idle++
			l.more.Wait()
			l.waking = false
		}
		if l.closed {
			l.mu.Unlock()
			return
		}
		in := l.queue[0]
		l.queue = l.queue[1:]
		l.take(in)
		l.wake()
		l.mu.Unlock()
		l.attend(in)
		l.mu.Lock()
	}
}

// attend works on the tasks of a lane. If work ends the goroutine (runtime.Goexit), they are worked
// on again, by another worker.
func (l *Lanes[T]) attend(in *lane[T]) {
	returned := false
	defer func() {
		if returned {
			return
		}
		for i, f := range in.run.Tasks {
			in.run.Outcomes[i] = Outcome{Back: true}
			f.Exited(len(in.run.Tasks) == 1)
		}
		l.finish(in, true)
	}()
	ended := l.work(&in.run)
	returned = true
	if ended {
		l.finish(in, false)
	}
}

// take takes the tasks that run next. The caller holds mu.
func (l *Lanes[T]) take(in *lane[T]) {
	n := 1
	for n < l.most && n < len(in.waiting) && in.waiting[n].Joins(in.waiting[:n]) {
		n++
	}
	r := &in.run
	if n == len(in.waiting) {
		r.Tasks, in.waiting, in.spare = in.waiting, in.spare, nil
	} else {
		r.Tasks, in.waiting = slices.Clone(in.waiting[:n]), in.waiting[n:]
	}
	r.Outcomes = append(r.Outcomes[:0], make([]Outcome, n)...)
}

// Finish says that the tasks have ended, as Outcomes says. Any goroutine may call it, once, if work
// has returned false or is about to.
func (r *Run[T]) Finish() {
	r.of.finish(r.in, true)
}

// finish ends a run.
func (l *Lanes[T]) finish(in *lane[T], wake bool) {
	var room [8]Ack // on the stack, if that is enough
	acks := room[:0]
	l.mu.Lock()
	var back []T
	tasks := in.run.Tasks
	for i, f := range tasks {
		switch o := &in.run.Outcomes[i]; {
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
	in.run.Tasks, in.spare = nil, tasks[:0]
	if !l.leave(in) {
		l.running.Add(1) // another lane has the slot, and may be done with it before the acknowledgements
	}
	if wake {
		l.wake()
	}
	l.mu.Unlock()
	for _, a := range acks {
		a.Ack()
	}
	l.running.Done()
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
	l.wake()
}

// leave ends a lane's turn. The lane that waits longest gets its slot: the lanes take turns. If there
// is none the slot is freed, which the caller, who holds mu, counts once the tasks are acknowledged.
func (l *Lanes[T]) leave(in *lane[T]) (freed bool) {
	if l.closed {
		return true
	}
	in.scheduled = false
	switch {
	case len(in.held) > 0:
	case len(in.waiting) > 0:
		in.scheduled = true
		l.ready = append(l.ready, in)
	default:
		if len(in.aside) == 0 {
			delete(l.byKey, in.key)
			if in.key = ""; len(l.free) < maxFree {
				l.free = append(l.free, in)
			}
		}
	}
	if len(l.ready) == 0 {
		l.slots++
		return true
	}
	l.queue = append(l.queue, l.ready[0])
	l.ready = l.ready[1:]
	return false
}

// Close ends the workers that run nothing, and drops the tasks that wait or rest. Tasks that run go on; Wait waits for them.
func (l *Lanes[T]) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, in := range l.byKey {
		for _, f := range append(in.aside, in.held...) {
			f.At().timer.Stop()
		}
	}
	l.running.Add(-len(l.queue))
	l.byKey, l.queue, l.ready, l.free = nil, nil, nil, nil
	l.more.Broadcast()
}

// Wait waits, after Close, until no task runs.
func (l *Lanes[T]) Wait() { l.running.Wait() }

// Grace is for tasks to end that were stopped.
const Grace = 5 * time.Second

// Await calls wait, and returns true when that has returned. After patience it calls stop, and
// after Grace besides it returns false.
func Await(wait func(), patience time.Duration, stop func()) bool {
	ended := make(chan struct{})
	go func() { defer close(ended); wait() }()
	stopping, late := time.NewTimer(patience), time.NewTimer(patience+Grace)
	defer stopping.Stop()
	defer late.Stop()
	for {
		select {
		case <-ended:
			return true
		case <-stopping.C:
			stop()
		case <-late.C:
			return false
		}
	}
}
