package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/audit"
	"github.com/holdfast-mqtt/holdfast/internal/auth"
	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rewrite"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/console"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
	"github.com/holdfast-mqtt/holdfast/internal/inside"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/service"
	"github.com/holdfast-mqtt/holdfast/internal/spans"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Server is a running broker with its state store. End it with Shutdown, or its
// data directory stays locked.
type Server struct {
	config    Config
	log       *slog.Logger
	memory    *memory.Pool
	maximum   int64 // of the process's memory; 0: unknown
	heapLimit int64 // Go's memory limit as set last; the goroutine of watch, once it runs
	journal   *journal.Journal
	engine    *engine.Local
	service   *service.Service
	broker    *broker.Broker
	login     *auth.Authenticator // nil: Config.Auth says who clients are, or they are not asked
	audit     *audit.Log          // nil: none

	descriptors descriptors
	wanted      int // connections, if the descriptors have room for them
	reloading   reloading

	bridges    []*bridge.Link
	inside     *inside.Listener   // nil: there are no bridges
	endBridges context.CancelFunc // the same
	places     []listen.Config    // of the listeners, with what TLS shows to clients
	listeners  []*listen.Listener
	handshakes *sockets.Handshakes
	control    *http.Server                 // nil: there is no control socket
	admin      *admin.Server                // nil: there is none
	phase      atomic.Pointer[string]       // what the server does besides serving clients; empty: it serves them
	metrics    atomic.Pointer[http.Handler] // nil: there are none yet
	tracer     trace.Tracer
	spans      *spans.Exporter             // nil: there are none
	api        atomic.Pointer[httpapi.API] // nil: there is none, or not yet
	nodeAPI    *httpapi.API                // serves what a node knows while api is nil; nil: there is no node
	console    console.Door
	serving    sync.WaitGroup
	stop       chan struct{}
	lost       lost
	started    time.Time
	shutdown   sync.Once
}

// Start is StartContext without a deadline.
func Start(cfg Config) (*Server, error) { return StartContext(context.Background(), cfg) }

// StartContext opens the data directory and returns when every listener accepts.
// With a clock that is behind the last version that the store has issued, it waits
// until the clock has caught up or ctx ends.
func StartContext(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	wire, err := protocol.ParseWire(orDefault(cfg.Wire, protocol.SDK.String()))
	if err != nil {
		return nil, err
	}
	s := &Server{config: cfg, log: logger(cfg), stop: make(chan struct{}), lost: newLost(), started: time.Now()}
	if err := errors.Join(s.openConfiguration(), s.openLogin()); err != nil {
		if s.login != nil {
			s.login.Close()
		}
		return nil, errors.Join(err, s.audit.Close())
	}
	if err := s.open(ctx, wire); err != nil {
		s.close(context.Background())
		return nil, err
	}
	return s, nil
}

func logger(cfg Config) *slog.Logger {
	if cfg.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return cfg.Logger
}

func orDefault(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// open opens the packages from the bottom up.
func (s *Server) open(ctx context.Context, wire protocol.Wire) (err error) {
	cfg := &s.config
	s.shareMemory()
	if err := s.shareDescriptors(); err != nil {
		return err
	}
	s.setPhase("the data is being read")
	if err := errors.Join(s.openAdmin(), s.readCertificates()); err != nil {
		return err
	}
	var flush atomic.Pointer[broker.Broker]
	idle := func() {
		if b := flush.Load(); b != nil {
			b.FlushDeferred()
		}
	}
	options := journal.Options{
		Dir: cfg.DataDir, FS: cfg.FS, Logger: s.log, Idle: idle, Durability: cfg.Durability, Reserve: cfg.DiskReserve, OpenTables: s.descriptors.tables, Progress: cfg.Progress, New: rows.IsNew,
	}
	if err := s.replicate(&options); err != nil {
		return err
	}
	if err := s.openSpans(); err != nil {
		return err
	}
	s.startReloading()
	if s.journal, err = journal.Open(options); err != nil {
		return err
	}
	if r := cfg.Replicated; r != nil {
		r.Log.SetJournal(s.journal)
	}
	if !cfg.Durability.KeepsAcknowledged() {
		s.log.Warn("a crash loses what was acknowledged last: writes are acknowledged before they are on disk", "durability", cfg.Durability)
	}
	nodeID := orDefault(cfg.NodeID, "StateStore")
	clock, wallMs := s.clock()
	s.engine, err = engine.Open(engine.Options{
		Journal: s.journal, NodeID: nodeID, MaxSkew: cfg.MaxClockSkew, MaxKeys: cfg.MaxKeys, MaxBytes: cfg.MaxStoreBytes,
		Remember: cfg.Remember, MaxRemember: cfg.MaxRemember, MaxRemembered: cfg.MaxRemembered,
		MaxClientKeys: cfg.MaxClientKeys, MaxClientBytes: cfg.MaxClientKeyBytes,
		MaxWatches: cfg.MaxWatches, MaxWatchBytes: cfg.MaxWatchBytes, MaxScans: cfg.MaxScans, AllowClockRegression: cfg.AllowClockRegression, Clock: clock, Logger: s.log,
		CanRead: service.CanRead, Memory: s.memory,
	})
	if err != nil {
		return err
	}
	s.setPhase("the machine's clock is behind the last version that the store has issued")
	if err := s.awaitClock(ctx); err != nil {
		return err
	}
	s.setPhase("sessions are being read")
	s.engine.FollowClock() // which may have been set while it was waited for
	s.service = service.New(service.Options{Engine: s.engine, Wire: wire, NodeID: nodeID, MaxKey: cfg.MaxKeySize, MaxTxn: cfg.MaxTxnOperations, May: cfg.May, Logger: s.log, Tracer: &s.tracer, Spans: s.spans, Await: s.journal.Await})
	rewrites, err := rewrite.Parse(cfg.TopicRewrites)
	if err != nil {
		return err
	}
	s.broker, err = broker.New(broker.Options{
		Journal: s.journal, WallMs: wallMs, Limits: cfg.Limits, Logger: s.log, Auth: inside.Also(cfg.Auth), Audit: s.audit, May: cfg.May,
		Handler: s.service, Handled: service.Topics(), Protected: service.Protected(), Memory: s.memory, Tracer: &s.tracer, AwaitRead: s.awaitRead(), Events: cfg.ClientEvents, Rewrites: rewrites,
	})
	if err != nil {
		return err
	}
	s.subscribeClients(cfg)
	flush.Store(s.broker)
	s.attachReloading()
	if err := s.listen(); err != nil {
		return err
	}
	s.listenControl()
	s.startBridges()
	s.openMetrics()
	s.openAPI()
	s.publishSys()
	s.serving.Add(1)
	go func() {
		defer failstop.End(s.log, "the server's figures")
		s.watch()
		s.serving.Done()
	}()
	s.setPhase("")
	return nil
}

// awaitClock waits until the machine's clock has caught up with the versions
// that the store has issued (protocol, section 4).
func (s *Server) awaitClock(ctx context.Context) error {
	for warned := false; ; warned = true {
		err := s.engine.Ready()
		if err == nil {
			return nil
		}
		if s.config.Replicated != nil {
			return fmt.Errorf("%w: %w", ErrClockBehind, err)
		}
		if !warned {
			s.log.Warn("waiting before accepting connections", "reason", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("not started: %w", err)
		}
	}
}

// readCertificates reads what the listeners show to clients, which are opened when the data was
// read: on a node of a cluster that follows, long after this.
func (s *Server) readCertificates() (err error) {
	if s.places, err = s.config.ListenConfigs(); err != nil {
		return err
	}
	for i := range s.places {
		c := &s.places[i]
		if err := c.ReadCertificates(); err != nil {
			return err
		}
		if certificates := c.Certs; certificates != nil {
			s.addReloader(Reloader{Name: "TLS configuration of " + c.URL.String(), Files: certificates.Files, Reload: s.endingRevoked(certificates.Reload)})
			if err := certificates.Reload(); err != nil { // they may have changed before they were watched
				return fmt.Errorf("%s: %w", c.URL, err)
			}
		}
	}
	return nil
}

func (s *Server) listen() error {
	configs := s.places
	s.handshakes = sockets.NewHandshakes(s.maxHandshakes())
	options := listen.Options{
		Bound:      s.withinDescriptors,
		Handshakes: s.handshakes,
		Turns:      transport.NewTurns(max(1, runtime.GOMAXPROCS(0)/2)),
		Timeout:    s.broker.Limits().ConnectTimeout,
		Logger:     s.log,
		Refused: func(r listen.Refusal) {
			s.audit.HandshakeRefused(r.Listener, r.Remote.String(), r.Subject, r.Reason)
		},
	}
	for place, c := range configs {
		l, err := s.openListener(place, c, options)
		if err != nil {
			return err
		}
		s.listeners = append(s.listeners, l)
	}
	for _, l := range s.listeners {
		s.accept(l, l.URL())
	}
	if r := s.config.Replicated; r != nil && r.Fronts != nil {
		s.accept(r.Fronts(s.listeners), "fronts")
	}
	if s.admin != nil {
		s.accept(s.console.Open(s.admin, configs, s.broker.Limits().ConnectTimeout, s.log), "console")
	}
	return nil
}

// accept has the broker serve the connections of l, which the log calls name.
func (s *Server) accept(l net.Listener, name any) {
	s.serving.Go(func() {
		if err := s.broker.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			s.log.Error("a listener failed", "listener", name, "error", err)
		}
	})
}

// maxHandshakes is how many handshakes may be under way.
func (s *Server) maxHandshakes() int {
	if s.memory == nil {
		return cmp.Or(s.config.MaxHandshakes, sockets.DefaultMaxHandshakes)
	}
	return handshakesWithin(s.config.MaxHandshakes, s.memory.Limit())
}

// handshakesWithin is how many handshakes may be under way with a pool of memory of so many
// bytes: unless that is set, as many as there is memory for before clients have said who
// they are.
func handshakesWithin(setting int, pool int64) int {
	if setting > 0 {
		return setting
	}
	share := pool / memory.UnconnectedShare
	return int(max(16, min(sockets.DefaultMaxHandshakes, share/listen.HandshakeBytes)))
}

func (s *Server) withinDescriptors(l net.Listener, loopback bool) net.Listener {
	if s.descriptors.bounds == nil {
		return l
	}
	return s.descriptors.bounds.Listener(l, loopback)
}

// URLs are those of the listeners, with the ports that they listen on: those of
// Config.Listen, of Config.WebSocket and of Config.Listeners.
func (s *Server) URLs() (out []listen.URL) {
	for _, l := range s.listeners {
		out = append(out, l.URL())
	}
	return out
}

// Addrs are the addresses of the listeners that are not WebSocket's, in the same order.
func (s *Server) Addrs() []net.Addr { return s.addrs(false) }

// WebSocketAddrs are the addresses of the WebSocket listeners.
func (s *Server) WebSocketAddrs() []net.Addr { return s.addrs(true) }

func (s *Server) addrs(webSocket bool) (out []net.Addr) {
	for _, l := range s.listeners {
		if l.URL().IsWebSocket() == webSocket {
			out = append(out, l.Addr())
		}
	}
	return out
}

// Keys is how many keys the store holds.
func (s *Server) Keys() int64 { return s.engine.Stats().Keys }

// Shutdown disconnects the clients (0x8B), writes everything to disk and closes
// the data directory. Clients that don't take their last packets are cut off
// when ctx ends; what was acknowledged is on disk all the same.
func (s *Server) Shutdown(ctx context.Context) (err error) {
	s.shutdown.Do(func() { err = s.close(ctx) })
	return err
}

// close closes what was opened, from the top down.
func (s *Server) close(ctx context.Context) error {
	s.setPhase("the server is shutting down")
	close(s.stop)
	if s.login != nil {
		s.login.Close()
	}
	var errs []error
	if s.endBridges != nil {
		s.endBridges()
	}
	if s.broker != nil {
		errs = append(errs, s.broker.Close(ctx))
	}
	for _, l := range s.listeners {
		l.Close()
	}
	errs = append(errs, s.closeControl(ctx), s.closeAdmin(ctx))
	s.closeSpans(ctx)
	s.serving.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	errs = append(errs, s.audit.Close())
	return errors.Join(errs...)
}
