package consistent

import (
	"sync"

	"holdfast/client"
)

// flight is a message on its way through a handler.
type flight struct {
	Incoming
	decoded any
	handled bool     // the handler has seen decoded
	lane    string   // the store's key; messages without one have a lane each
	refused error    // a dead letter from the start, because of this
	acks    []func() // under lanes.mu: one per delivery of the message
	from    *lane    // while it flies
}

// lanes runs flights: those of one key one after the other, in the order in which
// they came; of different keys as many at once as there are slots. A message that comes
// again while it waits or flies joins its flight, and is acknowledged with it.
//
// How many flights wait is bounded by whoever delivers: the server sends no more than
// the Receive Maximum without acknowledgement.
type lanes struct {
	fly func(*flight) (settled bool)

	mu      sync.Mutex
	slots   int              // under mu: how many more lanes may run
	byKey   map[string]*lane // under mu: those with flights
	ready   []*lane          // under mu: with flights, waiting for a slot
	closed  bool             // under mu
	running sync.WaitGroup
}

type lane struct {
	key     string
	current *flight   // under lanes.mu
	waiting []*flight // under lanes.mu
	// state is what the last flight has left in the store, for the next one to start
	// from without asking: of the flight that flies, nobody else touches it. If somebody
	// has changed the state meanwhile, or the message is a duplicate, STORE says so.
	// It lasts as long as messages wait in line.
	state *client.Message
}

func newLanes(slots int, fly func(*flight) bool) *lanes {
	return &lanes{fly: fly, slots: slots, byKey: make(map[string]*lane)}
}

// add queues a flight, unless the lanes are closed.
func (l *lanes) add(f *flight) {
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

// find returns the flight of the same message, if there is one.
func (in *lane) find(f *flight) *flight {
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

// run lets flights fly in one slot, as long as there are any.
func (l *lanes) run(in *lane) {
	defer l.running.Done()
	for in != nil {
		l.mu.Lock()
		f := in.waiting[0]
		in.current, in.waiting, f.from = f, in.waiting[1:], in
		l.mu.Unlock()

		settled := l.fly(f)

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

// next chooses the lane to go on with, lanes in turn; nil: none, the slot is free.
// The caller holds mu.
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

// close drops what waits. What flies goes on, see running.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.byKey, l.ready = nil, nil
}
