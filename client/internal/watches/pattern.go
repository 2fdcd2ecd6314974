package watches

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Finder finds the keys of a Pattern.
type Finder struct {
	// Scan lists the keys that exist now. One that exists during the whole scan is listed
	// once; the list ends with the first error.
	Scan func(ctx context.Context) iter.Seq2[string, error]
	// Get reads a key.
	Get func(ctx context.Context, key string) (State, error)
	// Lasting reports errors of Scan and Get that will come again at each attempt.
	Lasting func(error) bool
	// Interval is the pause between two scans.
	Interval time.Duration
}

// Pattern watches all keys that a Finder finds. The server notifies of single keys only, so
// the Pattern has a Watch for each key, and scans at an interval for new ones.
//
// It gets every change of a key that it has found. When a scan finds a new key, its value
// makes an event with Gap set, because earlier changes of the key are unknown. The watch of
// a key that two scans in a row have not found ends: the notification of its deletion has
// come between the two.
//
// Changes wait in pending until the goroutine that runs deliver has sent them to events.
// While as many wait as queue says, a further change takes the place of the last one of the
// same key that waits. So a slow consumer sees the newest state of each key, and no more
// than queue changes and one for each key wait.
type Pattern[E any] struct {
	set    *Set[E]
	finder Finder
	queue  int
	events chan E
	ctx    context.Context // ends with the Pattern
	cancel context.CancelFunc

	watched map[string]*Watch[E] // under set.mu
	pending pending              // under set.mu
	more    sync.Cond            // on set.mu: pending is not empty, or closed
	unhook  func() bool          // under set.mu: takes the hook off the context
	closed  bool                 // under set.mu
	err     error                // under set.mu: why it has ended
}

// member is what a Watch has that belongs to a Pattern. All of it is under Set.mu.
type member[E any] struct {
	pattern *Pattern[E]
	last    hlc.Timestamp // of the newest change that was pushed
	told    bool          // the value that the key had when it was found needs no event any more
	missed  bool          // the last scan did not find the key
}

// AddPattern makes a Pattern; Begin starts it. queue is how many events may wait. The error
// is conn.ErrClosed.
func (s *Set[E]) AddPattern(f Finder, queue int) (*Pattern[E], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, conn.ErrClosed
	}
	p := &Pattern[E]{set: s, finder: f, queue: queue, events: make(chan E, queue), watched: map[string]*Watch[E]{}}
	p.more.L = &s.mu
	p.ctx, p.cancel = context.WithCancel(s.ctx)
	s.patterns[p] = struct{}{}
	s.workers.Go(p.deliver)
	return p, nil
}

// Events are the changes, as the caller's events. The channel is closed when the Pattern
// has ended.
func (p *Pattern[E]) Events() <-chan E { return p.events }

// Err says why the Pattern has ended; nil: it has not, or End was called with nil.
func (p *Pattern[E]) Err() error {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	return p.err
}

// End ends the Pattern, once, for a cause that Err gives.
func (p *Pattern[E]) End(cause error) {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	p.end(cause)
}

// EndWith ends the Pattern when ctx ends. If it has ended already, EndWith says why.
func (p *Pattern[E]) EndWith(ctx context.Context) error {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	if !p.closed {
		p.unhook = context.AfterFunc(ctx, func() { p.End(context.Cause(ctx)) })
	}
	return p.err
}

// end ends the Pattern and its watches, once. The caller holds the lock.
func (p *Pattern[E]) end(cause error) {
	if p.closed {
		return
	}
	p.closed, p.err = true, cause
	if p.unhook != nil {
		p.unhook()
	}
	p.cancel()
	for _, w := range p.watched {
		p.set.end(w, nil)
	}
	p.watched = nil
	delete(p.set.patterns, p)
	p.more.Signal()
}

// Begin scans, and returns when the server has confirmed the watches of all keys found.
// await waits for one of them: until ready is closed, or for as long as the caller has
// patience.
func (p *Pattern[E]) Begin(ctx context.Context, await func(ready <-chan struct{}) error) error {
	found, err := p.find(ctx, true)
	if err != nil {
		return err
	}
	for _, w := range found {
		if err := await(w.ready); err != nil {
			return err
		}
	}
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	if p.closed {
		return p.err
	}
	p.set.workers.Go(p.rescan)
	return nil
}

// rescan looks for new keys at an interval, until the Pattern ends. An error that does not
// last (the connection was lost, for example) leaves the work to the next scan.
func (p *Pattern[E]) rescan() {
	tick := time.NewTicker(p.finder.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		found, err := p.find(p.ctx, false)
		if err == nil {
			err = p.tell(found)
		}
		if err != nil && p.ctx.Err() == nil && p.finder.Lasting(err) {
			p.End(err)
			return
		}
	}
}

// find scans, watches new keys, and ends watches of keys that are gone. It returns the
// watches whose keys' values are still to be told; of the first scan, all watches.
func (p *Pattern[E]) find(ctx context.Context, first bool) (found []*Watch[E], err error) {
	present := map[string]bool{}
	for key, err := range p.finder.Scan(ctx) {
		if err != nil {
			return nil, err
		}
		present[key] = true
	}
	s := p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.closed {
		return nil, p.err
	}
	for key := range present {
		w := p.watched[key]
		if w == nil {
			w = &Watch[E]{set: s, ready: make(chan struct{}), member: &member[E]{pattern: p, told: first}}
			p.watched[key] = w
			s.add(key, w)
		}
		w.member.missed = false
		if first || !w.member.told {
			found = append(found, w)
		}
	}
	for key, w := range p.watched {
		switch {
		case present[key]:
		case w.member.missed:
			s.end(w, nil)
			delete(p.watched, key)
		default:
			w.member.missed = true
		}
	}
	return found, nil
}

// tell makes events of the values of keys that were found. It reads up to maxWorkers keys
// at a time, and stops at the first error.
func (p *Pattern[E]) tell(found []*Watch[E]) error {
	ctx, stop := context.WithCancelCause(p.ctx)
	defer stop(nil)
	next := make(chan *Watch[E])
	var workers sync.WaitGroup
	for range min(len(found), maxWorkers) {
		workers.Go(func() {
			for w := range next {
				if err := p.tellOne(ctx, w); err != nil {
					stop(err)
				}
			}
		})
	}
	for _, w := range found {
		next <- w
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

// tellOne makes an event of a key's value, once the key is watched: so no later change is
// missed. A change that has come before the value is at least as new.
func (p *Pattern[E]) tellOne(ctx context.Context, w *Watch[E]) error {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	state, err := p.finder.Get(ctx, w.reg.key)
	if err != nil {
		return err
	}
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	w.member.told = true
	if state.Present && !w.closed {
		p.push(w, Change{Key: w.reg.key, Value: state.Value, Version: state.Version, Gap: true})
	}
	return nil
}

// push queues a change of a member's key, unless one as new has been queued. The caller
// holds the lock.
func (p *Pattern[E]) push(w *Watch[E], c Change) {
	if !c.Version.IsZero() {
		if c.Version.Compare(w.member.last) <= 0 {
			return
		}
		w.member.last = c.Version
	}
	p.pending.push(c, p.queue)
	p.more.Signal()
}

// deliver sends the pending changes to events, until the Pattern ends.
func (p *Pattern[E]) deliver() {
	defer close(p.events)
	for {
		c, ok := p.next()
		if !ok {
			return
		}
		select {
		case p.events <- p.set.event(c):
		case <-p.ctx.Done():
			return
		}
	}
}

// next waits for a pending change; false: the Pattern has ended.
func (p *Pattern[E]) next() (c Change, ok bool) {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for p.pending.empty() && !p.closed {
		p.more.Wait()
	}
	if p.closed {
		return c, false
	}
	return p.pending.pop(), true
}

// refused ends the Pattern because the watch of one of its keys has ended. The caller holds
// the lock.
func (p *Pattern[E]) refused(w *Watch[E], cause error) {
	p.end(fmt.Errorf("watching %q, one of %d keys: %w", w.reg.key, len(p.watched), cause))
}

// pending is a queue of changes, oldest first.
type pending struct {
	list  []Change
	taken uint64            // number of changes taken out so far: list[0] is number taken
	last  map[string]uint64 // by key: number of its newest change in list
}

func (q *pending) empty() bool { return len(q.list) == 0 }

// push adds a change. If most changes or more wait, and one of them is of the same key, the
// new change replaces the newest of these, with Gap set.
func (q *pending) push(c Change, most int) {
	if at, waits := q.last[c.Key]; waits && len(q.list) >= most {
		c.Gap = true
		q.list[at-q.taken] = c
		return
	}
	if q.last == nil {
		q.last = map[string]uint64{}
	}
	q.last[c.Key] = q.taken + uint64(len(q.list))
	q.list = append(q.list, c)
}

// pop takes the oldest change out.
func (q *pending) pop() Change {
	c := q.list[0]
	q.list[0] = Change{}
	q.list = q.list[1:]
	if q.last[c.Key] == q.taken {
		delete(q.last, c.Key)
	}
	q.taken++
	return c
}
