package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Defaults of Options.
const (
	DefaultMaxConnections = 100_000
	DefaultLinks          = 2
	DefaultConnectTimeout = 10 * time.Second
	DefaultMaxBuffered    = 256 << 20 // bytes
)

const (
	sweepInterval = 250 * time.Millisecond
	maxHandshakes = 128 // under way
)

// Options of Start.
type Options struct {
	Listeners      []listen.Config // as those of the nodes, in the same order
	Peers          []settings.Peer // nodes of the cluster
	TLS            *tls.Config     // by which front and nodes prove themselves to each other; nil: none
	MaxConnections int             // needed
	MaxBuffered    int64           // bytes of all clients that they, or the leader, have not read yet; needed
	Links          int             // to the leader; needed
	ConnectTimeout time.Duration   // that a connection has for its handshakes, and for the beginning of its CONNECT; needed
	Logger         *slog.Logger    // needed
}

// Figures are what a front counts.
type Figures struct {
	Connections, MaxConnections int
	Links                       int
	Term                        uint64 // of the leader to which the links are
	Buffered, MaxBuffered       int64  // bytes that clients, or the leader, have not read yet
	Beyond                      int64  // connections that were closed because of MaxConnections, or of the process's descriptors
	Slow                        int64  // clients that were disconnected because of MaxBuffered
	Unserved                    int64  // clients that were refused because no leader took them
	Silent                      int64  // clients that were silent for too long
	Pings                       int64  // that the front has answered
}

// Front is a running front. End it with Close.
type Front struct {
	o         Options
	listeners []*listen.Listener
	flushers  *transport.Flushers
	links     *links
	memory    *memory.Pool

	descriptors *sockets.DescriptorBounds // nil: not known

	mu      sync.Mutex
	clients map[*client]struct{} // mu

	beyond, unserved, silent, slow, pings atomic.Int64

	running sync.WaitGroup
	readers sync.WaitGroup
	ending  context.Context
	end     context.CancelFunc
}

// Start listens, and looks for the leader.
func Start(o Options) (*Front, error) {
	f := &Front{o: o, clients: map[*client]struct{}{}, memory: newMemory(o.MaxBuffered), flushers: transport.NewFlushers(0, transport.NewGate())}
	f.ending, f.end = context.WithCancel(context.Background())
	f.links = newLinks(f)
	f.boundByDescriptors()
	shared := listen.Options{
		Handshakes: sockets.NewHandshakes(maxHandshakes), Turns: transport.NewTurns(max(1, runtime.GOMAXPROCS(0)/2)),
		Timeout: o.ConnectTimeout, Logger: o.Logger,
	}
	if f.descriptors != nil {
		shared.Bound = f.descriptors.Listener
	}
	for _, c := range o.Listeners {
		l, err := listen.Open(c, shared)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.listeners = append(f.listeners, l)
	}
	for place, l := range f.listeners {
		f.running.Go(func() { f.accept(place, l) })
	}
	f.running.Go(f.sweep)
	f.running.Go(f.relieve)
	f.running.Go(f.links.follow)
	return f, nil
}

// URLs are those of the listeners, with the ports that they listen on.
func (f *Front) URLs() (all []listen.URL) {
	for _, l := range f.listeners {
		all = append(all, l.URL())
	}
	return all
}

// Unready says why clients that connect are not served; empty: they are.
func (f *Front) Unready() []string {
	to, open := f.links.figures()
	switch {
	case open > 0:
		return nil
	case to.address == "":
		return []string{"no node of the cluster says which one leads"}
	}
	return []string{fmt.Sprintf("the leader at %s does not take clients", to.address)}
}

// Figures are those of now.
func (f *Front) Figures() Figures {
	f.mu.Lock()
	n := len(f.clients)
	f.mu.Unlock()
	to, open := f.links.figures()
	beyond := f.beyond.Load()
	if f.descriptors != nil {
		beyond += f.descriptors.TurnedAway()
	}
	return Figures{
		Connections: n, MaxConnections: f.o.MaxConnections, Links: open, Term: to.term,
		Buffered: f.memory.Used(), MaxBuffered: f.memory.Limit() / 2, Slow: f.slow.Load(),
		Beyond: beyond, Unserved: f.unserved.Load(), Silent: f.silent.Load(), Pings: f.pings.Load(),
	}
}

// Reload reads the certificates of the listeners again.
func (f *Front) Reload() error {
	var errs []error
	for _, l := range f.listeners {
		if certificates := l.Certs(); certificates != nil {
			errs = append(errs, certificates.Reload())
		}
	}
	return errors.Join(errs...)
}

func (f *Front) accept(place int, l *listen.Listener) {
	defer failstop.End(f.o.Logger, "a listener")
	var failing sockets.AcceptFailures
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause := failing.Next()
			if n, said := failing.WorthALine(time.Now()); said {
				f.o.Logger.Warn("cannot accept connections", "listener", l.Addr(), "error", err, "failures", n, "retry_in", pause)
			}
			select {
			case <-time.After(pause):
			case <-f.ending.Done():
			}
			continue
		}
		failing.Succeeded()
		f.take(place, l, nc)
	}
}

// take takes in a connection, or closes it.
func (f *Front) take(place int, l *listen.Listener, nc net.Conn) {
	c := &client{front: f, place: place, scheme: l.URL().Scheme, origin: access.OriginOf(nc), active: time.Now()}
	f.mu.Lock()
	if f.ending.Err() != nil || len(f.clients) >= f.o.MaxConnections {
		f.mu.Unlock()
		f.turnAway()
		_ = sockets.Close(nc)
		return
	}
	c.conn = transport.NewConn(nc, f.flushers, transport.Options{ReadBuffer: mux.Window, OutputLimit: mux.Window, Drained: c.drained, Memory: f.memory, InputKind: memory.Input})
	f.clients[c] = struct{}{}
	f.readers.Add(1)
	f.mu.Unlock()
	go func() {
		defer failstop.End(f.o.Logger, "a client of the front")
		c.serve()
		f.mu.Lock()
		delete(f.clients, c)
		f.mu.Unlock()
		f.readers.Done()
	}()
}

func (f *Front) all() (clients []*client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clients = make([]*client, 0, len(f.clients))
	for c := range f.clients {
		clients = append(clients, c)
	}
	return clients
}

// sweep closes connections of silent clients.
func (f *Front) sweep() {
	defer failstop.End(f.o.Logger, "the look at keep-alives")
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-f.ending.Done():
			return
		}
		now := time.Now()
		for _, c := range f.all() {
			c.checkSilence(now)
		}
	}
}

// Close disconnects the clients and ends.
func (f *Front) Close() {
	f.mu.Lock()
	f.end()
	f.mu.Unlock()
	for _, l := range slices.Backward(f.listeners) {
		_ = l.Close()
	}
	for _, c := range f.all() {
		c.disconnect(mqtt.ServerShuttingDown, "the front is shutting down")
	}
	f.readers.Wait()
	f.running.Wait()
	f.flushers.Close()
}
