package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/audit"
	"github.com/holdfast-mqtt/holdfast/internal/broker/autosub"
	"github.com/holdfast-mqtt/holdfast/internal/broker/events"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/broker/relief"
	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rewrite"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/stats"
	"github.com/holdfast-mqtt/holdfast/internal/broker/subscribe"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/wallclock"
)

// Limits bound what clients can make the broker hold.
type Limits = limits.Limits

// Turn is what a goroutine does until it has nothing more to do.
type Turn = session.Turn

// Stats counts what the broker did since it started.
type Stats = stats.Counters

// SessionInfo is what an operator wants to know of a session.
type SessionInfo = registry.Info

// Options configures a Broker.
type Options struct {
	Journal   *journal.Journal // sessions and subscriptions that outlive connections
	Limits    Limits
	Memory    *memory.Pool // charged with what clients have the broker hold; nil: no bound
	Logger    *slog.Logger
	WallMs    func() int64         // the machine's clock, ms since the Unix epoch; nil: time.Now
	Auth      access.Authenticator // nil: no client is asked who it is
	Audit     *audit.Log           // nil: none
	May       access.Permissions   // nil: every client may do everything
	Handler   Handler              // nil: every publish is routed
	Handled   []string             // topics whose publishes go to Handler; no client may subscribe to them
	Rewrites  *rewrite.Rules       // of topics and filters of clients; nil: none
	Protected []string             // topic prefixes: clients can't publish to them or below, may subscribe to anything there and get nothing
	Tracer    *trace.Tracer        // nil: nothing is ever traced
	Events    int                  // events of clients that are published in a second at most (package events); 0: none
	AwaitRead func() bool          // called after each read of a socket: waits until what was read may be answered from memory; false: never, the server is ending. nil: it always may
}

// Broker is an MQTT broker. Its methods are safe for concurrent use.
type Broker struct {
	*routing.Router
	Sessions       *registry.Registry
	peers          peer.Env
	auth           access.Authenticator
	audit          *audit.Log         // nil: none
	may            access.Permissions // nil: every client may do everything
	handler        Handler
	reservedTopics reserved.Topics
	rewrites       *rewrite.Rules // nil: none
	subscriptions  *subscribe.Maker
	flushers       *transport.Flushers
	awaitRead      func() bool // nil: memory is always the newest

	mu        lockrank.Mutex[lockrank.Connections]
	conns     map[*Conn]struct{} // guarded by mu, as all below
	reserved  int                // of conns, those in a place that is kept for clients on this machine
	listeners []net.Listener
	closed    bool

	readers sync.WaitGroup // readers of connections, and other goroutines that work for a connection
	stop    chan struct{}
	loops   sync.WaitGroup
}

// New restores the sessions that the journal has and starts the broker's clocks.
func New(o Options) (*Broker, error) {
	if o.WallMs == nil {
		o.WallMs = func() int64 { return time.Now().UnixMilli() + wallclock.ShiftMs }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Limits.ReceiveMaximum > 65535 || o.Limits.MaxInflight > 65535 || o.Limits.TopicAliasMaximum > 65535 {
		return nil, fmt.Errorf("receive maximum, inflight and topic alias maximum are at most 65535")
	}
	env := session.NewEnv(o.Journal, o.Memory, o.Limits.WithDefaults(), o.Logger, o.WallMs)
	l := env.Limits()
	kept := retained.New(retained.Options{Journal: o.Journal, Memory: o.Memory, Now: env.Now, Bounds: retainedBounds(l)})
	b := &Broker{
		auth: o.Auth, audit: o.Audit, may: o.May, handler: o.Handler, rewrites: o.Rewrites, awaitRead: o.AwaitRead, reservedTopics: reserved.Topics{Servers: o.Protected}, flushers: transport.NewFlushers(0, env.Gate),
		conns: make(map[*Conn]struct{}), stop: make(chan struct{}),
	}
	env.Background = b.background
	b.peers = peer.Env{Memory: env.Memory, Accounts: env.Accounts, Stats: &env.Counters, Log: env.Log, Tracer: o.Tracer, MaxAliasBytes: l.MaxAliasBytes, TakeoverWait: l.TakeoverWait}
	if o.Handler != nil {
		b.reservedTopics.Handlers = o.Handled
	}
	b.Sessions = registry.New(env, kept, b.may)
	b.Router = b.Sessions.Router
	b.subscriptions = &subscribe.Maker{Router: b.Router, Rewrites: b.rewrites, Reserved: &b.reservedTopics, May: b.may}
	if err := b.Sessions.Restore(); err != nil {
		b.flushers.Close()
		return nil, err
	}
	b.loop("the relief of memory", func() { relief.Serve(b.Memory, (*memorySource)(b), b.stop) })
	b.loop("the expiry of retained messages", func() { b.Retained.Sweep(sweepInterval, b.stop) })
	b.loop("the broker's timers", func() { b.Sessions.Serve(b.stop) })
	b.loop("messages that are published later", func() { b.Timers.Serve(b.stop) })
	b.loop("the look at keep-alives", b.sweep)
	if o.Events > 0 {
		b.peers.Events = events.New(events.Options{PerSecond: o.Events, Wanted: b.Subscribed, Publish: b.PublishEvent})
		b.loop("events of clients", func() { b.peers.Events.Serve(b.stop) })
	}
	return b, nil
}

// loop does something on a goroutine of its own until the broker stops.
func (b *Broker) loop(what string, do func()) {
	b.loops.Add(1)
	go func() {
		defer failstop.End(b.Log, what)
		do()
		b.loops.Done()
	}()
}

// Events publishes events of clients; nil: it does not.
func (b *Broker) Events() *events.Publisher { return b.peers.Events }

// SetAutomatic sets the automatic subscriptions of clients that connect from now on; nil: none.
func (b *Broker) SetAutomatic(r *autosub.Rules) { b.subscriptions.Rules.Set(r) }

// SetBounds puts in force what to, which has its defaults, says of the bounds that may change
// (limits.Limits.Adjust). What there is beyond a bound stays: package routing says what the next
// message for a queue does that has more than it may. One goroutine at a time calls it.
func (b *Broker) SetBounds(to *Limits) {
	l := *b.Limits()
	l.Adjust(to)
	b.Sessions.Principals.SetMost(l.MaxConnections)
	b.Retained.SetBounds(retainedBounds(&l))
	b.SetLimits(l)
}

func retainedBounds(l *Limits) retained.Bounds {
	return retained.Bounds{Messages: l.MaxRetained, Bytes: l.MaxRetainedBytes, ClientMessages: l.MaxClientRetained, ClientBytes: l.MaxClientRetainedBytes}
}

// Close disconnects every client (0x8B), waits for their readers, or for ctx, and stops.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	for _, l := range b.listeners {
		l.Close()
	}
	conns := make([]*Conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	b.mu.Unlock()
	for _, c := range conns {
		c.Disconnect(mqtt.ServerShuttingDown, "the server is shutting down")
	}
	var err error
	gone := make(chan struct{})
	go func() { b.readers.Wait(); close(gone) }()
	select {
	case <-gone:
	case <-ctx.Done():
		for _, c := range conns {
			c.Transport.Close()
		}
		err = ctx.Err()
	}
	close(b.stop)
	b.loops.Wait()
	b.flushers.Close()
	if err == nil { // no reader is left
		b.Gate.Close()
	}
	return err
}

func (b *Broker) mayPublish(c *Conn, topic []byte) bool {
	return b.may == nil || b.may.MayPublish(c.Identity(), topic)
}

// mayBeAnswered says whether the client may subscribe to the Response Topic, if there is one.
// Otherwise it could make other clients, which may publish where it may not, send answers to
// a topic that it may not read.
func (b *Broker) mayBeAnswered(c *Conn, responseTopic []byte) bool {
	return b.may == nil || len(responseTopic) == 0 || b.may.MaySubscribe(c.Identity(), responseTopic)
}
