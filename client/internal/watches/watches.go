// Package watches keeps a client's registrations at the server in step with the keys that
// the application watches, and hands the changes to the watches: of one key (a [Watch]), or
// of all keys that a scan finds (a [Pattern]). It knows a connection only by what a [Link]
// does, and nothing of the protocol.
package watches

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

const (
	// maxWorkers is how many registrations are in work at once.
	maxWorkers = 64
	// retryPause is the wait before a registration that timed out on a
	// living connection is tried again.
	retryPause = time.Second
)

// Change is what has happened to a key.
type Change struct {
	Key     string
	Deleted bool
	Value   []byte        // of a key that was set
	Version hlc.Timestamp // zero: a deletion that was noticed after a reconnect
	Gap     bool          // changes right before this one may be missing
}

// State is what a GET finds.
type State struct {
	Present bool
	Value   []byte
	Version hlc.Timestamp
}

// Link is one connection to the server.
type Link interface {
	// Register registers for the changes of a key, reads the key, and returns when both
	// answers are there. The changes go to Set.Notified. read is called with what the key
	// holds by the goroutine that reads the connection, in order with the changes.
	Register(ctx context.Context, key string, read func(State)) error
	// Unregister takes a registration back, and returns when the server has answered.
	Unregister(ctx context.Context, key string)
	// Dead is closed when the connection has ended.
	Dead() <-chan struct{}
}

// Watch is one watch of one key.
type Watch[E any] struct {
	set    *Set[E]
	reg    *registration[E]
	member *member[E]    // of a watch that belongs to a Pattern; nil: it stands alone
	events chan E        // nil: changes go to the Pattern
	ready  chan struct{} // closed when the server has confirmed the watch, or it has ended
	unhook func() bool   // under set.mu: takes the hook off the context

	isReady bool  // under set.mu: ready is closed
	closed  bool  // under set.mu
	err     error // under set.mu: why it has ended
}

// Events are the changes, as the caller's events. The channel is closed when the watch ends.
func (w *Watch[E]) Events() <-chan E { return w.events }

// Ready is closed when the server has confirmed the watch, or the watch has ended.
func (w *Watch[E]) Ready() <-chan struct{} { return w.ready }

// Err says why the watch has ended.
func (w *Watch[E]) Err() error {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	return w.err
}

// End ends the watch, once, for a cause that Err gives.
func (w *Watch[E]) End(cause error) {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	w.set.end(w, cause)
}

// EndWith ends the watch when ctx ends, and says why it has ended already, if it has.
func (w *Watch[E]) EndWith(ctx context.Context) error {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	if !w.closed {
		w.unhook = context.AfterFunc(ctx, func() { w.End(context.Cause(ctx)) })
	}
	return w.err
}

// push queues an event, or puts it in the place of all that wait. The caller holds
// set.mu; only its holder pushes, so after emptying the queue there is room.
func (w *Watch[E]) push(c Change) {
	if w.member != nil {
		w.member.pattern.push(w, c)
		return
	}
	select {
	case w.events <- w.set.event(c):
		return
	default:
	}
	c.Gap = true
	for {
		select {
		case <-w.events:
		default:
			w.events <- w.set.event(c)
			return
		}
	}
}

// Set is the watches of one client, and their registrations at the server.
//
// A registration belongs to a connection, so a key has two states: whether the
// application watches it (watchers), and the connection on which it is registered (on).
// Workers register or unregister keys until the two agree: after the first Watch of a
// key, after the last Close, and after each reconnect. Only one worker at a time handles a
// key, so KEYNOTIFY and KEYNOTIFY STOP of one key cannot overtake each other.
//
// After a reconnect the watchers may have missed changes. So KEYNOTIFY and GET are sent
// together. Notifications and the answer to the GET come in order on one connection. If a
// notification comes before the answer, the notification is newer, and the answer is
// ignored. Otherwise the answer is compared with what the watchers know. The goroutine that
// reads the connection does this, so that no notification is handled in between.
type Set[E any] struct {
	ctx     context.Context  // ends with the client
	event   func(Change) E   // makes the caller's event
	lasting func(error) bool // reports errors of Register that will come again
	workers sync.WaitGroup

	mu       sync.Mutex
	link     Link                        // under mu: nil while there is no connection
	regs     map[string]*registration[E] // under mu
	patterns map[*Pattern[E]]struct{}    // under mu: those that have not ended
	queue    []*registration[E]          // under mu: waiting for a worker
	running  int                         // under mu: workers
	closed   bool                        // under mu
}

// registration is one watched key. All of it is under Set.mu.
type registration[E any] struct {
	key      string
	watchers map[*Watch[E]]struct{}
	queued   bool // it is in the queue, or a worker handles it
	on       Link // where it is registered
	asked    Link // where KEYNOTIFY was sent: notifications from there count
	heard    bool // a notification has come since
	unsure   bool // the watchers may have missed something before the next event
	known    bool // the rest is what the watchers know of the key
	present  bool
	version  hlc.Timestamp
}

// NewSet makes a set that ends its work with ctx. event makes the caller's event of a
// change; lasting reports errors of Link.Register that will come again at each attempt.
func NewSet[E any](ctx context.Context, event func(Change) E, lasting func(error) bool) *Set[E] {
	return &Set[E]{ctx: ctx, event: event, lasting: lasting, regs: make(map[string]*registration[E]), patterns: make(map[*Pattern[E]]struct{})}
}

// Add watches a key. queue is how many events may wait. The error is conn.ErrClosed.
func (s *Set[E]) Add(key string, queue int) (*Watch[E], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, conn.ErrClosed
	}
	w := &Watch[E]{set: s, events: make(chan E, queue), ready: make(chan struct{})}
	s.add(key, w)
	return w, nil
}

// add has a worker register a key for a new watch, if it is not registered. The caller
// holds the lock.
func (s *Set[E]) add(key string, w *Watch[E]) {
	reg := s.regs[key]
	if reg == nil {
		reg = &registration[E]{key: key, watchers: make(map[*Watch[E]]struct{})}
		s.regs[key] = reg
	}
	w.reg = reg
	reg.watchers[w] = struct{}{}
	if reg.on != nil && reg.on == s.link {
		w.markReady()
		return
	}
	s.enqueue(reg)
}

// markReady closes ready. The caller holds the lock.
func (w *Watch[E]) markReady() {
	if !w.isReady {
		w.isReady = true
		close(w.ready)
	}
}

// end ends a watch, once. The caller holds the lock.
func (s *Set[E]) end(w *Watch[E], cause error) {
	if w.closed {
		return
	}
	w.closed, w.err = true, cause
	if w.unhook != nil {
		w.unhook()
	}
	if w.events != nil {
		close(w.events)
	}
	w.markReady()
	delete(w.reg.watchers, w)
	if len(w.reg.watchers) == 0 {
		s.enqueue(w.reg)
	}
	if w.member != nil && cause != nil {
		w.member.pattern.refused(w, cause)
	}
}

// enqueue has a worker handle a registration. The caller holds the lock.
func (s *Set[E]) enqueue(reg *registration[E]) {
	if s.link == nil && len(reg.watchers) == 0 && !reg.queued {
		delete(s.regs, reg.key) // the server has forgotten it with the connection
		return
	}
	if s.link == nil || reg.queued || s.closed {
		return // Up, or the worker that handles it, will see what is wanted
	}
	reg.queued = true
	s.queue = append(s.queue, reg)
	if s.running < maxWorkers {
		s.running++
		s.workers.Go(s.work)
	}
}

// Up registers all watched keys over a new connection.
func (s *Set[E]) Up(l Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	for _, reg := range s.regs {
		s.enqueue(reg)
	}
}

// Down forgets the connection.
func (s *Set[E]) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = nil
	for _, reg := range s.regs {
		reg.on, reg.asked = nil, nil
	}
}

// Close ends all watches and Patterns with conn.ErrClosed and waits for the workers. The
// requests of the workers must have failed, with the connection.
func (s *Set[E]) Close() {
	s.mu.Lock()
	s.closed = true
	for p := range s.patterns {
		p.end(conn.ErrClosed)
	}
	for _, reg := range s.regs {
		for w := range reg.watchers {
			s.end(w, conn.ErrClosed)
		}
	}
	s.mu.Unlock()
	s.workers.Wait()
}

// work takes registrations from the queue until it is empty.
func (s *Set[E]) work() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		reg := s.queue[0]
		s.queue = s.queue[1:]
		s.settle(reg)
		reg.queued = false
	}
	s.running--
}

// settle registers or unregisters one key, until that agrees with its watchers. The lock
// is held on entry and on return, but not while it waits for the server.
func (s *Set[E]) settle(reg *registration[E]) {
	for {
		l, wanted := s.link, len(reg.watchers) > 0
		switch {
		case l == nil || s.closed:
			if !wanted {
				delete(s.regs, reg.key)
			}
			return
		case wanted && reg.on != l:
			s.register(l, reg)
		case !wanted && reg.on == l:
			s.unregister(l, reg)
		default:
			if !wanted {
				delete(s.regs, reg.key)
			}
			return
		}
	}
}

// register registers and reads a key. Locking is as for settle.
func (s *Set[E]) register(l Link, reg *registration[E]) {
	reg.asked, reg.heard, reg.unsure = l, false, reg.known
	s.mu.Unlock()
	err := l.Register(s.ctx, reg.key, func(state State) { s.read(l, reg, &state) })
	s.mu.Lock()
	switch {
	case l != s.link: // the connection was lost; settle repeats it on the next one
	case err == nil:
		reg.on = l
		for w := range reg.watchers {
			w.markReady()
		}
	case s.lasting(err):
		for w := range reg.watchers {
			s.end(w, err)
		}
		reg.on = l // perhaps only the GET was refused, so settle unregisters the key
	default:
		s.mu.Unlock()
		s.pause(l)
		s.mu.Lock()
	}
}

func (s *Set[E]) pause(l Link) {
	t := time.NewTimer(retryPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.Dead():
	case <-s.ctx.Done():
	}
}

// unregister takes a registration back. Locking is as for settle.
func (s *Set[E]) unregister(l Link, reg *registration[E]) {
	reg.on, reg.asked, reg.known = nil, nil, false
	s.mu.Unlock()
	defer s.mu.Lock()
	l.Unregister(s.ctx, reg.key)
}

// Notified is called with each notification, in the order of the connection.
func (s *Set[E]) Notified(l Link, n Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reg := s.regs[n.Key]
	if reg == nil || reg.asked != l {
		return
	}
	reg.heard = true
	stale := reg.known && !n.Version.IsZero() && n.Version.Compare(reg.version) <= 0
	// A KeyDeleted after the GET found no key is the deletion that the GET saw.
	repeated := reg.known && !reg.present && n.Deleted
	switch {
	case stale:
	case repeated:
		reg.version, reg.unsure = n.Version, false
	default:
		reg.tell(n)
	}
}

// read is called with the answer to a registration's GET, in the order of the
// connection.
func (s *Set[E]) read(l Link, reg *registration[E], r *State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case reg.asked != l || reg.heard:
	case !reg.known:
		reg.known, reg.present, reg.version = true, r.Present, r.Version
	case r.Present && (!reg.present || r.Version != reg.version):
		reg.tell(Change{Key: reg.key, Value: r.Value, Version: r.Version})
	case !r.Present && reg.present:
		reg.tell(Change{Key: reg.key, Deleted: true})
	default:
		reg.unsure = false // nothing has changed
	}
}

// tell gives a change to all watchers and remembers what they know now.
func (reg *registration[E]) tell(c Change) {
	c.Gap = reg.unsure
	reg.unsure = false
	reg.known, reg.present, reg.version = true, !c.Deleted, c.Version
	for w := range reg.watchers {
		w.push(c)
	}
}
