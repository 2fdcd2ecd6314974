package consistent

import (
	"sync"

	"github.com/holdfast-mqtt/holdfast/client"
)

// task is a message that a handler is to process, from its arrival to its
// acknowledgement.
type task struct {
	Incoming
	decoded any
	handled bool     // the handler has seen decoded
	lane    string   // the store's key; messages without one have a lane each
	refused error    // a dead letter from the start, because of this
	acks    []func() // under lanes.mu: one per delivery of the message
	from    *lane    // while it is being processed
}

// lanes runs tasks, in one lane for each key: the tasks of a lane one after the other, in
// the order in which their messages came, and as many lanes at once as there are slots. A
// message that comes again while its task waits or runs is acknowledged with that task.
//
// The Receive Maximum bounds how many tasks wait: beyond it the server sends no more
// messages without an acknowledgement.
type lanes struct {
	work func(*task) (settled bool)

	mu      sync.Mutex
	slots   int              // under mu: how many more lanes may run
	byKey   map[string]*lane // under mu: those with tasks
	ready   []*lane          // under mu: with tasks, waiting for a slot
	closed  bool             // under mu
	running sync.WaitGroup
}

type lane struct {
	key     string
	current *task   // under lanes.mu
	waiting []*task // under lanes.mu
	// state is what the last task has stored. The next one starts from it without a
	// LOAD. Only the running task uses it. If another instance has changed the state
	// meanwhile, or the message is a duplicate, STORE fails. It is kept as long as tasks
	// wait in the lane.
	state *client.LoadResult
}

func newLanes(slots int, work func(*task) bool) *lanes {
	return &lanes{work: work, slots: slots, byKey: make(map[string]*lane)}
}

// add queues a task, unless the lanes are closed.
func (l *lanes) add(f *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	in, exists := l.byKey[f.lane]
	if !exists {
		in = &lane{key: f.lane}
		l.byKey[f.lane] = in
	}
	if same := in.find(f); same != nil {
		same.acks = append(same.acks, f.acks...)
		return
	}
	in.waiting = append(in.waiting, f)
	switch {
	case exists: // it is running or ready
	case l.slots > 0:
		l.slots--
		l.running.Add(1)
		go l.run(in)
	default:
		l.ready = append(l.ready, in)
	}
}

// find returns the task of the same message, if there is one.
func (in *lane) find(f *task) *task {
	if in.current != nil && in.current.MessageID == f.MessageID {
		return in.current
	}
	for _, w := range in.waiting {
		if w.MessageID == f.MessageID {
			return w
		}
	}
	return nil
}

// run runs tasks in one slot, as long as there are any.
func (l *lanes) run(in *lane) {
	defer l.running.Done()
	for in != nil {
		l.mu.Lock()
		f := in.waiting[0]
		in.current, in.waiting, f.from = f, in.waiting[1:], in
		l.mu.Unlock()

		settled := l.work(f)

		l.mu.Lock()
		in.current = nil
		acks := f.acks
		in = l.next(in)
		l.mu.Unlock()
		if settled {
			for _, ack := range acks {
				ack()
			}
		}
	}
}

// next chooses the lane whose task runs next: the lanes take turns. It returns nil, and
// frees the slot, if no lane has a task. The caller holds mu.
func (l *lanes) next(in *lane) *lane {
	if l.closed {
		return nil
	}
	if len(in.waiting) == 0 {
		delete(l.byKey, in.key)
	} else {
		l.ready = append(l.ready, in)
	}
	if len(l.ready) == 0 {
		l.slots++
		return nil
	}
	in, l.ready = l.ready[0], l.ready[1:]
	return in
}

// close drops the tasks that wait. Tasks that run go on; running counts them.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.byKey, l.ready = nil, nil
}
