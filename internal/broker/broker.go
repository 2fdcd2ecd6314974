package broker

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"holdfast/internal/failstop"
	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
	"holdfast/internal/topic"
	"holdfast/internal/transport"
)

// Handler takes the publishes to some exact topics in place of routing them.
type Handler interface {
	// Open gives the handler's side of a connection, at its first publish.
	Open(c *Conn) Endpoint
}

// Endpoint is a Handler's side of one connection.
type Endpoint interface {
	// Handle takes one publish, on the reader's goroutine; p is a view that is
	// valid during the call. A publish of QoS 1 or 2 needs exactly one answer:
	// Conn.Answer within the call, or Conn.Hold within it and Conn.Release later
	// (QoS 1 only). Of a connection that is gone (Conn.Gone) it may be left without.
	Handle(t *Turn, p *mqtt.Publish)
	// Close says that the connection is gone.
	Close()
}

// Authorizer says who may connect, and who may do what. Its methods are called
// on many goroutines at once, for every packet concerned, and must not block.
type Authorizer interface {
	Connect(p *mqtt.Connect, remote net.Addr) (identity any, code mqtt.ReasonCode, reason string)
	MayPublish(identity any, topic []byte) bool
	MaySubscribe(identity any, filter string) bool
}

// Options configures a Broker.
type Options struct {
	Journal   *journal.Journal // sessions and subscriptions that outlive connections
	Limits    Limits
	Memory    *memory.Pool // charged with what clients have the broker hold; nil: no bound
	Logger    *slog.Logger
	WallMs    func() int64 // the machine's clock, ms since the Unix epoch; nil: time.Now
	Auth      Authorizer   // nil: every client may do everything
	Handler   Handler      // nil: every publish is routed
	Handled   []string     // topics whose publishes go to Handler; no client may subscribe to them
	Protected []string     // topic prefixes: clients can't publish to them or below, may subscribe to anything there and get nothing
}

// Broker is an MQTT broker. Its methods are safe for concurrent use.
type Broker struct {
	wallMs      func() int64
	epoch       int64 // wallMs when Now was 0
	steppedMs   int64 // the sweep's: how far the wall clock was stepped forward in all
	limits      Limits
	bounds      mqtt.Bounds // of one packet
	memory      *memory.Pool
	log         *slog.Logger
	auth        Authorizer
	handler     Handler
	handledIn   []string // topics of the handler: two, so that comparing is faster than a map
	protectedIn []string
	journal     *journal.Journal
	flushers    *transport.Flushers
	gate        *transport.Gate
	stats       Stats
	start       time.Time

	filters  topic.Index[*subscription]
	retained retainedStore
	timers   timers
	claims   claims
	lastSID  atomic.Uint64
	payloads payloads

	rejecting atomic.Int64 // sessions whose clients asked that publishes be refused when their queue is full
	nearTotal atomic.Bool  // all queues together are near their bound, and the log has it
	fairMu    lockrank.Mutex[lockrank.Fair]
	fair      int64 // guarded by fairMu, as fairAt
	fairAt    int64 // when fair was counted, on the broker's clock in ms
	lent      lent

	groupsMu lockrank.Mutex[lockrank.Groups]
	groups   map[string]*shareGroup // by {name}/{filter}; guarded by groupsMu

	laterMu lockrank.Mutex[lockrank.Turn]
	later   *Turn // guarded by laterMu

	mu        lockrank.Mutex[lockrank.Registry]
	sessions  map[string]*Session // by client ID; guarded by mu, as all below
	hosts     map[string]*host    // client addresses that have sessions
	conns     map[*Conn]struct{}
	reserved  int // of conns, those in a place that is kept for clients on this machine
	listeners []net.Listener
	closed    bool

	readers sync.WaitGroup // readers of connections, and whoever else works for one
	stop    chan struct{}
	loops   sync.WaitGroup
}

// New restores the sessions that the journal has and starts the broker's clocks.
func New(o Options) (*Broker, error) {
	b := &Broker{
		limits: o.Limits.withDefaults(), memory: o.Memory, log: o.Logger, auth: o.Auth, handler: o.Handler,
		protectedIn: o.Protected,
		journal:     o.Journal, flushers: transport.NewFlushers(0), start: time.Now().Add(-time.Millisecond), wallMs: o.WallMs,
		groups: make(map[string]*shareGroup), later: new(Turn),
		sessions: make(map[string]*Session), hosts: make(map[string]*host), conns: make(map[*Conn]struct{}), stop: make(chan struct{}),
	}
	if b.wallMs == nil {
		b.wallMs = func() int64 { return time.Now().UnixMilli() }
	}
	b.epoch = b.wallMs() - b.Now()
	b.bounds = b.limits.bounds()
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if o.Handler != nil {
		b.handledIn = o.Handled
	}
	b.gate = transport.NewGate(func() int64 { return b.stats.PacketsIn.Load() - b.stats.PacketsPaced.Load() })
	b.later.b, b.later.hurried = b, true
	b.payloads.refs = make(map[uint64]referred)
	b.lent.values = make(map[*byte]int)
	b.retained.memory = o.Memory
	b.retained.seed = maphash.MakeSeed()
	b.retained.owners.byClient = make(map[string]holding)
	b.timers.wake = make(chan struct{}, 1)
	b.claims.held = make(map[string]chan struct{})
	if b.limits.ReceiveMaximum > 65535 || b.limits.MaxInflight > 65535 || b.limits.TopicAliasMaximum > 65535 {
		return nil, fmt.Errorf("receive maximum, inflight and topic alias maximum are at most 65535")
	}
	if err := b.load(); err != nil {
		b.flushers.Close()
		return nil, err
	}
	b.fitQueues()
	b.loops.Add(4)
	go func() { defer b.loops.Done(); b.relieve() }()
	go func() { defer b.loops.Done(); b.sweepRetained() }()
	go func() {
		defer failstop.End(b.log, "the broker's timers")
		b.timers.serve(b.Now, b.stop)
		b.loops.Done()
	}()
	go func() {
		defer failstop.End(b.log, "the look at keep-alives")
		b.sweep()
		b.loops.Done()
	}()
	return b, nil
}

// Now is the broker's clock: milliseconds since it started, from 1 on, as 0 stands for
// no time; never stepping back.
func (b *Broker) Now() int64 { return int64(time.Since(b.start) / time.Millisecond) }

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
			c.tr.Close()
		}
		err = ctx.Err()
	}
	close(b.stop)
	b.loops.Wait()
	b.flushers.Close()
	if err == nil { // no reader is left
		b.gate.Close()
	}
	return err
}

// sweepInterval is how often keep-alives are looked at, and how exactly they are
// kept: a client counts as silent from the first look on that finds it so.
const sweepInterval = 250 * time.Millisecond

// sweep closes the connections whose client has been silent for one and a half
// times its keep-alive [MQTT-3.1.2-22], or hasn't sent a CONNECT in time.
func (b *Broker) sweep() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	var conns []*Conn
	for {
		select {
		case <-tick.C:
		case <-b.stop:
			return
		}
		conns = conns[:0]
		b.mu.Lock()
		for c := range b.conns {
			conns = append(conns, c)
		}
		b.mu.Unlock()
		b.followClock()
		now := b.Now()
		for _, c := range conns {
			c.checkSilence(now)
		}
		clear(conns)
	}
}

// checkSilence closes the connection if its client has been silent for too long, or has
// been sending one packet for too long: bytes of it keep a connection alive, as a large
// packet may take its time on a slow line, but not for ever. The sweep's.
func (c *Conn) checkSilence(now int64) {
	connected := c.connected.Load()
	heard := connected && c.heard.Load()&heardSweep != 0
	if heard {
		c.heard.And(^heardSweep)
	}
	if heard || c.heldUp() {
		c.active.Store(now)
	}
	if n := c.unfinished.Load(); n == 0 || n != c.unfinishedSeen || readerState(c.reads.Load()) != readerListens {
		c.unfinishedSeen, c.unfinishedSince = n, now
	}
	silent := time.Duration(now-c.active.Load()) * time.Millisecond
	switch {
	case !connected:
		if silent > c.b.limits.ConnectTimeout {
			c.Disconnect(mqtt.KeepAliveTimeout, "")
		}
	case c.keepAlive > 0 && silent > c.keepAlive+c.keepAlive/2:
		c.b.stats.KeepAliveTimeouts.Add(1)
		c.Disconnect(mqtt.KeepAliveTimeout, "nothing was heard for one and a half times the keep-alive")
	case time.Duration(now-c.unfinishedSince)*time.Millisecond > c.b.limits.PacketTimeout && c.unfinishedSeen != 0:
		c.b.stats.KeepAliveTimeouts.Add(1)
		c.Disconnect(mqtt.KeepAliveTimeout, "a packet was begun and not sent to its end in time")
	}
}

// heldUp says whether the client can't be heard, because its reader is at work or waits,
// for the disk, a lock or memory: what the client has sent meanwhile is in its socket.
// A reader that waits for its own client to take output is held up as long as the client
// takes some. The sweep's.
func (c *Conn) heldUp() bool {
	switch readerState(c.reads.Load()) {
	case readerWorks:
		return true
	case readerWaitsForClient:
		left := int64(c.tr.Size())
		return c.untaken.Swap(left) != left
	}
	return false
}

// addReader makes Close wait for one more reader, or says false if it waits already:
// a WaitGroup must not grow from zero meanwhile.
func (b *Broker) addReader() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.readers.Add(1)
	return true
}

func (b *Broker) addConn(c *Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.reserved = c.loopback() && b.reserved < b.limits.LoopbackConnections
	if b.closed || len(b.conns)-b.reserved >= b.limits.MaxConnections+SpareConnections && !c.reserved {
		return false
	}
	b.conns[c] = struct{}{}
	if c.reserved {
		b.reserved++
	}
	return true
}

// SpareConnections is how many connections beyond the bound are told so in a CONNACK.
const SpareConnections = 64

// mayStay says whether a connection that was added is within the bound.
func (b *Broker) mayStay(c *Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.reserved || len(b.conns)-b.reserved <= b.limits.MaxConnections
}

func (b *Broker) removeConn(c *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
	if c.reserved {
		b.reserved--
	}
}

// MaxConnections is how many connections there may be besides those that are reserved
// for clients on this machine.
func (b *Broker) MaxConnections() int64 { return int64(b.limits.MaxConnections) }

func (b *Broker) lookup(id string) *Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[id]
}

// handled says whether publishes to the topic go to the handler.
func (b *Broker) handled(topic []byte) bool {
	for _, name := range b.handledIn {
		if string(topic) == name {
			return true
		}
	}
	return false
}

// protected says whether clients must not publish to the topic. $SYS is the
// broker's own, but for the state of bridges, which they publish.
func (b *Broker) protected(topic []byte) bool {
	if ownSys(topic) {
		return true
	}
	for _, prefix := range b.protectedIn {
		if len(topic) >= len(prefix) && string(topic[:len(prefix)]) == prefix && (len(topic) == len(prefix) || topic[len(prefix)] == '/') {
			return true
		}
	}
	return false
}

func (b *Broker) mayPublish(c *Conn, topic []byte) bool {
	return b.auth == nil || b.auth.MayPublish(c.identity, topic)
}

// mayFilter says whether the client may subscribe. What is protected may be
// subscribed to by anybody: nothing is ever routed there.
func (b *Broker) mayFilter(c *Conn, filter string) bool {
	if b.auth == nil || b.auth.MaySubscribe(c.identity, filter) {
		return true
	}
	for _, prefix := range b.protectedIn {
		if strings.HasPrefix(filter, prefix+"/") {
			return true
		}
	}
	return false
}

func topicLevels(name []byte) int { return bytes.Count(name, []byte{'/'}) + 1 }

// viewOf gives the bytes of a string, not to be written to.
func viewOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
