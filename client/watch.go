package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/hlc"
	"holdfast/internal/protocol"
)

// EventKind says what happened to a watched key.
type EventKind uint8

const (
	KeySet     EventKind = iota + 1 // the key has this value now
	KeyDeleted                      // the key is gone: deleted or expired
)

func (k EventKind) String() string {
	if k == KeyDeleted {
		return "deleted"
	}
	return "set"
}

// Event is a change of a watched key.
type Event struct {
	Kind EventKind
	Key  string
	// Value is the new value of a KeySet. Watches of the same key share it: it
	// must not be changed.
	Value []byte
	// Version is the new version, or the deletion's. It rises from event to
	// event; only a KeyDeleted that was noticed after a reconnect has none.
	Version hlc.Timestamp
	// Gap tells that changes right before this one may be missing: the
	// connection was lost meanwhile, or this watch's queue was full. The event
	// itself is the newest state.
	Gap bool
}

// Watch is a registration for the changes of one key; see [Client.Watch].
type Watch struct {
	events chan Event
	ready  chan struct{} // closed when the server knows
	set    *watches
	reg    *registration
	unhook func() bool // takes the hook off the context

	// Under set.mu:
	isReady bool
	closed  bool
	err     error
}

// Watch registers for the changes of a key and returns when the server has
// confirmed it: every later change of the key gives an event, in order. A Get
// after Watch therefore misses nothing. Changes by this client count as well.
//
// The watch ends with ctx, with [Watch.Close], or with the client. It survives
// reconnects: the key is read then, and if it has changed meanwhile there is an
// event with Gap set.
//
// Events wait in a queue of 64 (see [Queue]). If it is full, all that wait are
// replaced by the newest one, with Gap set: a slow consumer sees the newest
// state late, and memory stays bounded. Several watches of one key share one
// registration at the server.
func (c *Client) Watch(ctx context.Context, key string, opts ...WatchOption) (*Watch, error) {
	a := watchArgs{queue: defaultWatchQueue}
	for _, o := range opts {
		o.applyWatch(&a)
	}
	if a.queue < 1 {
		return nil, &Error{Op: "watch", Key: key, Err: fmt.Errorf("%w: a queue of %d events", ErrInvalidOption, a.queue)}
	}
	w := &Watch{events: make(chan Event, a.queue), ready: make(chan struct{}), set: c.watches}
	if err := c.watches.add(key, w); err != nil {
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	if err := w.confirm(ctx); err != nil {
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	return w, nil
}

// confirm waits for the server's word on a new watch, then ties it to ctx.
func (w *Watch) confirm(ctx context.Context) error {
	c := w.set.client
	bounded, cancel := c.bound(ctx)
	defer cancel()
	select {
	case <-w.ready:
	case <-bounded.Done():
		err := bounded.Err()
		c.mu.Lock()
		up, cause := c.link != nil, c.lastErr
		c.mu.Unlock()
		if !up {
			err = notConnected(cause, err)
		}
		w.set.end(w, err)
		return err
	}
	w.set.mu.Lock()
	err := w.err
	if !w.closed {
		w.unhook = context.AfterFunc(ctx, func() { w.set.end(w, context.Cause(ctx)) })
	}
	w.set.mu.Unlock()
	return err
}

// Events returns the channel of events. It is closed when the watch ends; Err
// then tells why.
func (w *Watch) Events() <-chan Event { return w.events }

// Close ends the watch. Events that wait can still be received. Closing twice
// is harmless.
func (w *Watch) Close() { w.set.end(w, nil) }

// Err says why the watch ended: nil while it goes on and after Close, the
// context's error, [ErrClosed], or the server's refusal to register it again
// after a reconnect.
func (w *Watch) Err() error {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	return w.err
}

// push queues an event, or puts it in the place of all that wait. Only the
// holder of set.mu pushes, so after emptying the queue there is room.
func (w *Watch) push(e Event) {
	select {
	case w.events <- e:
		return
	default:
	}
	e.Gap = true
	for {
		select {
		case <-w.events:
		default:
			w.events <- e
			return
		}
	}
}

const (
	// watchWorkers is how many registrations are in work at once.
	watchWorkers = 64
	// watchRetryPause is the wait before a registration that timed out on a
	// living connection is tried again.
	watchRetryPause = time.Second
)

// watches keeps the server's registrations in step with what is watched.
//
// A registration belongs to a connection, so what is wanted (watchers) and
// what is (on) are kept apart, and workers bring the two together: after the
// first Watch of a key, after the last Close, and after each reconnect. One
// registration is in one worker's hands at a time, so KEYNOTIFY and KEYNOTIFY
// STOP of one key never overtake each other.
//
// Closing the gap after a reconnect: KEYNOTIFY and GET are sent together. What
// the server says about the key from then on comes in order on one connection,
// so the first word counts: if a notification comes before the GET's answer,
// that is newer and the answer is ignored; else the answer is compared with
// what the watchers know. Answers are looked at in the goroutine that reads the
// connection, or a notification could slip in between.
type watches struct {
	client  *Client
	workers sync.WaitGroup

	mu      sync.Mutex
	link    *link                    // under mu: nil while there is no connection
	regs    map[string]*registration // under mu
	queue   []*registration          // under mu: to be looked at by a worker
	running int                      // under mu: workers
	closed  bool                     // under mu
}

// registration is one watched key. All of it is under watches.mu.
type registration struct {
	key      string
	watchers map[*Watch]struct{}
	queued   bool  // it is in the queue or in a worker's hands
	on       *link // where it is registered
	asked    *link // where KEYNOTIFY was sent: notifications from there count
	heard    bool  // a notification has come since
	unsure   bool  // the watchers may have missed something before the next event
	known    bool  // the rest is what the watchers know of the key
	present  bool
	version  hlc.Timestamp
}

func newWatches(c *Client) *watches {
	return &watches{client: c, regs: make(map[string]*registration)}
}

// add puts a new watch on its key.
func (s *watches) add(key string, w *Watch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	reg := s.regs[key]
	if reg == nil {
		reg = &registration{key: key, watchers: make(map[*Watch]struct{})}
		s.regs[key] = reg
	}
	w.reg = reg
	reg.watchers[w] = struct{}{}
	if reg.on != nil && reg.on == s.link {
		w.markReady()
		return nil
	}
	s.enqueue(reg)
	return nil
}

// markReady lets Watch return. The caller holds the lock.
func (w *Watch) markReady() {
	if !w.isReady {
		w.isReady = true
		close(w.ready)
	}
}

// end ends a watch, once.
func (s *watches) end(w *Watch, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(w, cause)
}

func (s *watches) endLocked(w *Watch, cause error) {
	if w.closed {
		return
	}
	w.closed, w.err = true, cause
	if w.unhook != nil {
		w.unhook()
	}
	close(w.events)
	w.markReady()
	delete(w.reg.watchers, w)
	if len(w.reg.watchers) == 0 {
		s.enqueue(w.reg)
	}
}

// enqueue has a worker look at a registration. The caller holds the lock.
func (s *watches) enqueue(reg *registration) {
	if s.link == nil && len(reg.watchers) == 0 && !reg.queued {
		delete(s.regs, reg.key) // the server has forgotten it with the connection
		return
	}
	if s.link == nil || reg.queued || s.closed {
		return // linkUp comes back to it; so does the worker that holds it
	}
	reg.queued = true
	s.queue = append(s.queue, reg)
	if s.running < watchWorkers {
		s.running++
		s.workers.Go(s.work)
	}
}

func (s *watches) linkUp(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	for _, reg := range s.regs {
		s.enqueue(reg)
	}
}

func (s *watches) linkDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = nil
	for _, reg := range s.regs {
		reg.on, reg.asked = nil, nil
	}
}

// close ends all watches and waits for the workers, whose requests have failed
// with the connection.
func (s *watches) close() {
	s.mu.Lock()
	s.closed = true
	for _, reg := range s.regs {
		for w := range reg.watchers {
			s.endLocked(w, ErrClosed)
		}
	}
	s.mu.Unlock()
	s.workers.Wait()
}

// work takes registrations from the queue until it is empty.
func (s *watches) work() {
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

// settle brings one registration in step. The lock is held on entry and on
// return, but not while it waits for the server.
func (s *watches) settle(reg *registration) {
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

// register sends KEYNOTIFY and GET. Locking is as for settle.
func (s *watches) register(l *link, reg *registration) {
	reg.asked, reg.heard, reg.unsure = l, false, reg.known
	s.mu.Unlock()
	err := s.registerAndRead(l, reg)
	s.mu.Lock()
	switch {
	case l != s.link: // lost meanwhile; settle sees to it
	case err == nil:
		reg.on = l
		for w := range reg.watchers {
			w.markReady()
		}
	case isLasting(err):
		for w := range reg.watchers {
			s.endLocked(w, err)
		}
		reg.on = l // it may be the GET that was refused: settle sends a STOP
	default:
		s.mu.Unlock()
		s.pause(l)
		s.mu.Lock()
	}
}

// isLasting tells errors that will be the same the next time.
func isLasting(err error) bool {
	var store storeError
	return errors.As(err, &store) || isRefusal(err) || errors.Is(err, ErrTooLarge)
}

func (s *watches) pause(l *link) {
	t := time.NewTimer(watchRetryPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.dead:
	case <-s.client.ctx.Done():
	}
}

// registerAndRead returns when both answers are there, and have been looked at.
func (s *watches) registerAndRead(l *link, reg *registration) error {
	ctx, cancel := context.WithTimeout(s.client.ctx, s.client.cfg.timeout)
	defer cancel()
	keyNotify := newRequest("watch", reg.key, []byte("KEYNOTIFY"), []byte(reg.key))
	get := newRequest("watch", reg.key, []byte("GET"), []byte(reg.key))
	registering, err := l.start(ctx, keyNotify, nil)
	if err != nil {
		return err
	}
	reading, err := l.start(ctx, get, func(r reply) { s.read(l, reg, &r) })
	if err != nil {
		l.forget(registering)
		return err
	}
	registered, value := l.result(ctx, registering), l.result(ctx, reading)
	for _, r := range []reply{registered, value} {
		switch {
		case r.err != nil:
			return r.err
		case r.Kind == protocol.Error:
			return toStoreError(&r.Response)
		}
	}
	return nil
}

// unregister sends KEYNOTIFY STOP. What goes wrong doesn't matter: nobody
// listens, and a later registration of the key starts anew.
func (s *watches) unregister(l *link, reg *registration) {
	reg.on, reg.asked, reg.known = nil, nil, false
	s.mu.Unlock()
	defer s.mu.Lock()
	ctx, cancel := context.WithTimeout(s.client.ctx, s.client.cfg.timeout)
	defer cancel()
	stop := newRequest("watch", reg.key, []byte("KEYNOTIFY"), []byte(reg.key), []byte("STOP"))
	if stopping, err := l.start(ctx, stop, nil); err == nil {
		_ = l.result(ctx, stopping)
	}
}

// notified is called with each notification, in the order of the connection.
func (s *watches) notified(l *link, n notification) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reg := s.regs[n.key]
	if reg == nil || reg.asked != l {
		return
	}
	reg.heard = true
	stale := reg.known && !n.version.IsZero() && n.version.Compare(reg.version) <= 0
	// A KeyDeleted after the GET found no key is the deletion that the GET saw.
	repeated := reg.known && !reg.present && n.deleted
	switch {
	case stale:
	case repeated:
		reg.version, reg.unsure = n.version, false
	default:
		reg.tell(Event{Kind: kindOf(n.deleted), Key: n.key, Value: n.value, Version: n.version})
	}
}
func kindOf(deleted bool) EventKind {
	if deleted {
		return KeyDeleted
	}
	return KeySet
}

// read is called with the answer to a registration's GET, in the order of the
// connection.
func (s *watches) read(l *link, reg *registration, r *reply) {
	if r.err != nil || r.Kind != protocol.Blob && r.Kind != protocol.Nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	present := r.Kind == protocol.Blob
	switch {
	case reg.asked != l || reg.heard:
	case !reg.known:
		reg.known, reg.present, reg.version = true, present, r.version
	case present && (!reg.present || r.version != reg.version):
		reg.tell(Event{Kind: KeySet, Key: reg.key, Value: r.Blob, Version: r.version})
	case !present && reg.present:
		reg.tell(Event{Kind: KeyDeleted, Key: reg.key})
	default:
		reg.unsure = false // nothing has changed
	}
}

// tell gives an event to all watchers and remembers what they know now.
func (reg *registration) tell(e Event) {
	e.Gap = reg.unsure
	reg.unsure = false
	reg.known, reg.present, reg.version = true, e.Kind == KeySet, e.Version
	for w := range reg.watchers {
		w.push(e)
	}
}
