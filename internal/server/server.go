package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/broker"
	"holdfast/internal/engine"
	"holdfast/internal/failstop"
	"holdfast/internal/journal"
	"holdfast/internal/memory"
	"holdfast/internal/protocol"
	"holdfast/internal/service"
	"holdfast/internal/transport"
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

	descriptors descriptors

	listeners  []net.Listener // TCP
	webSockets []net.Listener
	control    *http.Server // nil: there is no control socket
	serving    sync.WaitGroup
	stop       chan struct{}
	started    time.Time
	shutdown   sync.Once
}

// Start is StartContext without an end to its patience.
func Start(cfg Config) (*Server, error) { return StartContext(context.Background(), cfg) }

// StartContext opens the data directory and returns when every listener accepts.
// With a clock that is behind what the store has issued it waits for the clock,
// or for ctx.
func StartContext(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	wire, err := protocol.ParseWire(orDefault(cfg.Wire, protocol.SDK.String()))
	if err != nil {
		return nil, err
	}
	s := &Server{config: cfg, log: logger(cfg), stop: make(chan struct{}), started: time.Now()}
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

// open opens the rooms from the bottom up.
func (s *Server) open(ctx context.Context, wire protocol.Wire) (err error) {
	cfg := &s.config
	s.shareMemory()
	if err := s.shareDescriptors(); err != nil {
		return err
	}
	var flush atomic.Pointer[broker.Broker]
	idle := func() {
		if b := flush.Load(); b != nil {
			b.FlushLater()
		}
	}
	s.journal, err = journal.Open(journal.Options{
		Dir: cfg.DataDir, FS: cfg.FS, Logger: s.log, Idle: idle, Durability: cfg.Durability, Reserve: cfg.DiskReserve, OpenTables: s.descriptors.tables,
	})
	if err != nil {
		return err
	}
	if !cfg.Durability.KeepsAcknowledged() {
		s.log.Warn("a crash loses what was acknowledged last: writes are acknowledged before they are on disk", "durability", cfg.Durability)
	}
	nodeID := orDefault(cfg.NodeID, "StateStore")
	s.engine, err = engine.Open(engine.Options{
		Journal: s.journal, NodeID: nodeID, MaxSkew: cfg.MaxClockSkew, MaxKeys: cfg.MaxKeys, MaxBytes: cfg.MaxStoreBytes,
		Remember: cfg.Remember, MaxRemember: cfg.MaxRemember, MaxRemembered: cfg.MaxRemembered,
		MaxClientKeys: cfg.MaxClientKeys, MaxClientBytes: cfg.MaxClientKeyBytes,
		MaxWatches: cfg.MaxWatches, MaxWatchBytes: cfg.MaxWatchBytes, MaxScans: cfg.MaxScans, AllowClockRegression: cfg.AllowClockRegression, Clock: cfg.Clock, Logger: s.log,
		CanRead: service.CanRead, Memory: s.memory,
	})
	if err != nil {
		return err
	}
	if err := s.awaitClock(ctx); err != nil {
		return err
	}
	s.engine.FollowClock() // which may have been set while it was waited for
	s.service = service.New(service.Options{Engine: s.engine, Wire: wire, NodeID: nodeID, MaxKey: cfg.MaxKeySize, Keys: cfg.Keys, Logger: s.log})
	s.broker, err = broker.New(broker.Options{
		Journal: s.journal, Limits: cfg.Limits, Logger: s.log, Auth: cfg.Auth,
		Handler: s.service, Handled: service.Topics(), Protected: service.Protected(), Memory: s.memory,
	})
	if err != nil {
		return err
	}
	flush.Store(s.broker)
	if err := s.listen(); err != nil {
		return err
	}
	s.listenControl()
	s.publishSys()
	s.serving.Add(1)
	go func() {
		defer failstop.End(s.log, "the server's figures")
		s.watch()
		s.serving.Done()
	}()
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

func (s *Server) listen() error {
	for _, addr := range s.config.Listen {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("cannot listen on %s: %w", addr, err)
		}
		s.listeners = append(s.listeners, s.withinDescriptors(l))
	}
	for _, addr := range s.config.WebSocket {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("cannot listen on %s: %w", addr, err)
		}
		s.webSockets = append(s.webSockets, transport.ServeWebSocket(s.withinDescriptors(l), transport.WebSocketOptions{AllowOrigins: s.config.AllowOrigins, Logger: s.log}))
	}
	for _, l := range append(append([]net.Listener(nil), s.listeners...), s.webSockets...) {
		s.serving.Add(1)
		go func() {
			defer s.serving.Done()
			if err := s.broker.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
				s.log.Error("a listener failed", "listener", l.Addr(), "error", err)
			}
		}()
	}
	return nil
}

func (s *Server) withinDescriptors(l net.Listener) net.Listener {
	if s.descriptors.bounds == nil {
		return l
	}
	return s.descriptors.bounds.Listener(l)
}

// Addrs are the addresses of the TCP listeners, in the order of Config.Listen.
func (s *Server) Addrs() []net.Addr { return addrs(s.listeners) }

// WebSocketAddrs are the addresses of the WebSocket listeners.
func (s *Server) WebSocketAddrs() []net.Addr { return addrs(s.webSockets) }

func addrs(listeners []net.Listener) (out []net.Addr) {
	for _, l := range listeners {
		out = append(out, l.Addr())
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
	close(s.stop)
	var errs []error
	if s.broker != nil {
		errs = append(errs, s.broker.Close(ctx))
	}
	for _, l := range append(append([]net.Listener(nil), s.listeners...), s.webSockets...) {
		l.Close()
	}
	errs = append(errs, s.closeControl(ctx))
	s.serving.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	return errors.Join(errs...)
}
