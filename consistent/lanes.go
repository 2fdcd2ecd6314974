package consistent

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/record"
)

// task is a message that a handler is to process, from its arrival to its
// acknowledgement.
type task struct {
	Incoming
	decoded any
	digest  record.Digest // of the payload
	handled bool          // the handler has seen decoded
	lane    string        // the store's key; messages without one have a lane each
	refused error         // the message becomes a dead letter, because of this
	calls   int           // of the handler that have failed
	pause   pause         // before the next attempt
	kept    bool          // the dead letter is in the store, or cannot be
	acks    []func()      // under lanes.mu: one per delivery of the message
	from    *lane         // while it is being processed
	timer   *time.Timer   // under lanes.mu: while it rests
}

// outcome says what becomes of a task that was worked on. The zero value drops it: its
// message is not acknowledged.
type outcome struct {
	settled bool          // its message is to be acknowledged
	again   time.Duration // work on it again after this time; 0: don't
	aside   bool          // … and let the tasks behind it go first
}

// lanes runs tasks, in one lane for each key: the tasks of a lane one after the other, in
// the order in which their messages came, and as many lanes at once as there are slots. A
// message that comes again while its task waits, runs or rests is acknowledged with that
// task.
//
// A task that is to be tried again rests without a slot. Either its lane waits for it, or it
// steps aside, and comes back behind the tasks that are there by then: one of them may be
// what it needs.
//
// The Receive Maximum bounds how many tasks wait: beyond it the server sends no more
// messages without an acknowledgement.
type lanes struct {
	work func(*task) outcome

	mu      sync.Mutex
	slots   int              // under mu: how many more lanes may run
	byKey   map[string]*lane // under mu: those with tasks
	ready   []*lane          // under mu: with tasks, waiting for a slot
	closed  bool             // under mu
	running sync.WaitGroup
}

type lane struct {
	key       string
	scheduled bool    // under lanes.mu: it runs, or is ready
	current   *task   // under lanes.mu
	waiting   []*task // under lanes.mu
	held      *task   // under lanes.mu: it rests, and the lane waits for it
	aside     []*task // under lanes.mu: they rest, and the lane goes on
	// state is what the last task has stored. The next one starts from it without a
	// LOAD. Only the running task uses it. If another instance has changed the state
	// meanwhile, or the message is a duplicate, STORE fails. It is kept as long as tasks
	// wait in the lane.
	state *client.LoadResult
}

func newLanes(slots int, work func(*task) outcome) *lanes {
	return &lanes{work: work, slots: slots, byKey: make(map[string]*lane)}
}

// add queues a task, unless the lanes are closed.
func (l *lanes) add(f *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	in := l.byKey[f.lane]
	if in == nil {
		in = &lane{key: f.lane}
		l.byKey[f.lane] = in
	}
	if same := in.find(f); same != nil {
		same.acks = append(same.acks, f.acks...)
		return
	}
	in.waiting = append(in.waiting, f)
	l.schedule(in)
}

// find returns the task of the same message, if there is one. A message with another
// payload is another one, although it has the same ID.
func (in *lane) find(f *task) *task {
	same := func(t *task) bool { return t != nil && t.MessageID == f.MessageID && t.digest == f.digest }
	switch {
	case same(in.current):
		return in.current
	case same(in.held):
		return in.held
	}
	for _, tasks := range [][]*task{in.waiting, in.aside} {
		if i := slices.IndexFunc(tasks, same); i >= 0 {
			return tasks[i]
		}
	}
	return nil
}

// schedule gives a lane a slot, or has it wait for one, if it has a task to run and
// neither runs nor is ready. The caller holds mu.
func (l *lanes) schedule(in *lane) {
	if in.scheduled || in.held != nil || len(in.waiting) == 0 {
		return
	}
	in.scheduled = true
	if l.slots == 0 {
		l.ready = append(l.ready, in)
		return
	}
	l.slots--
	l.running.Add(1)
	go l.run(in)
}

// run runs tasks in one slot, as long as there are any.
func (l *lanes) run(in *lane) {
	defer l.running.Done()
	for in != nil {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return
		}
		f := in.waiting[0]
		in.current, in.waiting, f.from = f, in.waiting[1:], in
		l.mu.Unlock()

		o := l.work(f)

		l.mu.Lock()
		in.current = nil
		acks := f.acks
		if o.again > 0 {
			l.rest(in, f, o)
		}
		in = l.next(in)
		l.mu.Unlock()
		if o.settled {
			for _, ack := range acks {
				ack()
			}
		}
	}
}

// rest has a task wait for its next attempt. The caller holds mu.
func (l *lanes) rest(in *lane, f *task, o outcome) {
	if l.closed {
		return
	}
	if o.aside {
		in.aside = append(in.aside, f)
	} else {
		in.held = f
	}
	f.timer = time.AfterFunc(o.again, func() { l.back(in, f) })
}

// back ends the rest of a task.
func (l *lanes) back(in *lane, f *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if in.held == f {
		in.held = nil
		in.waiting = append([]*task{f}, in.waiting...)
	} else {
		in.aside = slices.DeleteFunc(in.aside, func(t *task) bool { return t == f })
		in.waiting = append(in.waiting, f)
	}
	l.schedule(in)
}

// next chooses the lane whose task runs next: the lanes take turns. It returns nil, and
// frees the slot, if no lane has a task. The caller holds mu.
func (l *lanes) next(in *lane) *lane {
	if l.closed {
		return nil
	}
	in.scheduled = false
	switch {
	case in.held != nil:
	case len(in.waiting) > 0:
		in.scheduled = true
		l.ready = append(l.ready, in)
	case len(in.aside) == 0:
		delete(l.byKey, in.key)
	}
	if len(l.ready) == 0 {
		l.slots++
		return nil
	}
	in, l.ready = l.ready[0], l.ready[1:]
	return in
}

// close drops the tasks that wait or rest. Tasks that run go on; running counts them.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, in := range l.byKey {
		for _, f := range append(in.aside, in.held) {
			if f != nil {
				f.timer.Stop()
			}
		}
	}
	l.byKey, l.ready = nil, nil
}
