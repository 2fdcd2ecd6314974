package relay

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// DefaultHold is how long a client waits for a leader.
const DefaultHold = 5 * time.Second

// DefaultMaxConnections is how many connections are held or passed on.
const DefaultMaxConnections = 10_000

// DefaultMaxBuffered is how many bytes of clients that do not read, or of a leader that does
// not, are in large buffers.
const DefaultMaxBuffered = 64 << 20

// maxDials is how many clients the leader is asked to take at the same time. The others wait,
// as far as they do not connect one after the other anyway.
const maxDials = 32

// Options of New.
type Options struct {
	// Dial connects to the cluster port of a node. Needed.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// MaxConnections bounds what is held and passed on. 0: DefaultMaxConnections.
	MaxConnections int
	// MaxBuffered bounds, in bytes, the buffers of connections with something to pass on.
	// The connections beyond have 1 KiB for each direction. 0: DefaultMaxBuffered.
	MaxBuffered int64
	// Hold is how long a client waits for a leader. 0: DefaultHold.
	Hold   time.Duration
	Logger *slog.Logger // nil: slog.Default

	farewell time.Duration // 0: the default
}

// Leader is the node that leads, as this node knows it. The zero value: none is known.
type Leader struct {
	Term    uint64
	Address string // of its cluster port; empty: no leader is known, or this node leads
}

// Relay passes connections on. Its methods are safe for concurrent use.
type Relay struct {
	o       Options
	ending  context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	dials   chan struct{} // a place for each client that the leader is asked to take
	buffers supply

	began     time.Time
	farewells chan struct{} // a place for each client that is told why it is turned away
	said      atomic.Int64  // when the log last said that clients are turned away, since began

	mu      lockrank.Mutex[lockrank.Relay]
	leader  Leader               // mu
	current context.Context      // mu: ends when the leader or the listener of a Socket changes
	change  context.CancelFunc   // mu: of current
	passed  map[*passed]struct{} // mu
	sockets []*Socket            // mu
	closed  bool                 // mu

	most                             atomic.Int64 // Options.MaxConnections, or what SetMaxConnections was given
	held, passing                    atomic.Int64
	total, refused, beyond, vanished atomic.Uint64
}

// Figures are what a Relay has at the moment, and has counted since it was made.
type Figures struct {
	Held     int64  // connections that wait for a leader, or for its answer
	Passing  int64  // connections that are passed on
	Buffered int64  // bytes of the large buffers in use
	Passed   uint64 // connections that were ever passed on
	Refused  uint64 // connections that no leader has taken in time
	Beyond   uint64 // connections that were closed because of MaxConnections
	Vanished uint64 // connections whose client had gone before a leader took it

	MaxConnections, MaxBuffered int64 // those of Options
}

// New makes a Relay that knows no leader.
func New(o Options) *Relay {
	if o.Hold <= 0 {
		o.Hold = DefaultHold
	}
	if o.farewell <= 0 {
		o.farewell = farewell
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxBuffered <= 0 {
		o.MaxBuffered = DefaultMaxBuffered
	}
	r := &Relay{o: o, buffers: supply{most: o.MaxBuffered}, passed: map[*passed]struct{}{}, dials: make(chan struct{}, maxDials), began: time.Now(), farewells: make(chan struct{}, maxFarewells)}
	r.ending, r.end = context.WithCancel(context.Background())
	r.current, r.change = context.WithCancel(r.ending)
	r.SetMaxConnections(o.MaxConnections)
	return r
}

// SetMaxConnections replaces Options.MaxConnections. What there is beyond stays.
func (r *Relay) SetMaxConnections(most int) {
	if most <= 0 {
		most = DefaultMaxConnections
	}
	r.most.Store(int64(most))
}

// Figures gives them.
func (r *Relay) Figures() Figures {
	return Figures{
		Held: r.held.Load(), Passing: r.passing.Load(), Buffered: r.buffers.used.Load(), Passed: r.total.Load(),
		Refused: r.refused.Load(), Beyond: r.beyond.Load(), Vanished: r.vanished.Load(),
		MaxConnections: r.most.Load(), MaxBuffered: r.o.MaxBuffered,
	}
}

// Follow says who leads from now on. Connections that were passed on to another leader, or
// to the same one in another term, are closed: at once, or, as long as no leader is known,
// when Options.Hold has passed.
func (r *Relay) Follow(l Leader) {
	r.mu.Lock()
	if r.closed || r.leader == l {
		r.mu.Unlock()
		return
	}
	r.leader = l
	r.wake()
	r.mu.Unlock()
	if l.Address != "" {
		r.closeOthers(l)
		return
	}
	time.AfterFunc(r.o.Hold, func() {
		r.mu.Lock()
		still := r.leader == l
		r.mu.Unlock()
		if still {
			r.closeOthers(l)
		}
	})
}

// wake has everything look again that waits for a change. mu is held.
func (r *Relay) wake() {
	r.change()
	r.current, r.change = context.WithCancel(r.ending)
}

// closeOthers closes the connections that are passed on to another leader than l.
func (r *Relay) closeOthers(l Leader) {
	r.mu.Lock()
	var others []*passed
	for p := range r.passed {
		if p.to != l {
			others = append(others, p)
		}
	}
	r.mu.Unlock()
	for _, p := range others {
		p.close()
	}
	if len(others) > 0 {
		r.o.Logger.Info("the leader has changed: connections to the former one were closed", "connections", len(others))
	}
}

// CloseAll closes the connections that are passed on: the node that leads from now on is this
// one.
func (r *Relay) CloseAll() { r.closeOthers(Leader{Address: "none"}) }

// Close closes all sockets and connections, and waits until that is done.
func (r *Relay) Close() error {
	r.mu.Lock()
	r.closed = true
	sockets := r.sockets
	r.mu.Unlock()
	r.end()
	for _, s := range sockets {
		_ = s.tcp.Close()
	}
	r.CloseAll()
	r.running.Wait()
	return nil
}
