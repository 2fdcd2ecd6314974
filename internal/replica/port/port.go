// Package port is the one address on which a node of a cluster listens for the other nodes.
// What a connection is about is said by its first 16 bytes: messages of the consensus (package
// transport), questions before a cluster is founded (package node), and what the owner adds
// with Handle, such as connections of clients that a follower passes on.
//
// # Who may connect
//
// A program that the nodes take for one of them can change everything that the cluster stores.
// So nodes prove themselves to each other by certificates (mutual TLS), and a node refuses to
// listen, or to connect, without that, unless the address is of the loopback interface.
package port

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// MagicSize is how many bytes say what a connection is about.
const MagicSize = 16

const (
	maxStrangers     = 64 // connections that have not yet said what they are about; beyond, the oldest of the address that has most is ended
	handshakeTimeout = 5 * time.Second
	tlsHandshake     = 0x16 // the first byte of a TLS connection; the second one is 3
)

// ErrNeedsTLS: the address is not one of the loopback interface, and there is no mutual TLS.
var ErrNeedsTLS = errors.New("nodes must prove themselves by certificates, unless they all run on one machine: give a certificate, its key and the CA of the nodes, or use loopback addresses")

var errRoom = fmt.Errorf("it had not said what it is about when more than %d connections were in that state, and was the oldest of its address", maxStrangers)

// errEarly: this node is still starting, and does not take the connection yet.
var errEarly = errors.New("this node is still starting")

// Options of Listen.
type Options struct {
	Address string // HOST:PORT
	// TLS has the node's certificate, and the CA of the nodes in both RootCAs and ClientCAs.
	// nil: without TLS, which only loopback addresses allow. It is not changed. If it has
	// GetConfigForClient, each connection, also one that the port makes, has what that gives for
	// nil.
	TLS *tls.Config
	// Dialer is how the port connects to others. nil: one of its own, with TLS.
	Dialer *Dialer
	Logger *slog.Logger // nil: slog.Default
}

// Port listens, and connects to the ports of other nodes. Its methods are safe for concurrent
// use.
type Port struct {
	o         Options
	listener  net.Listener
	patience  time.Duration // with strangers
	handlers  sync.Map      // func(net.Conn) by magic
	forFronts sync.Map      // the magics with which fronts may connect
	strangers *sockets.Handshakes
	complete  atomic.Bool // every handler is there
	said      complaints
	ending    context.Context
	end       context.CancelFunc
	running   sync.WaitGroup
}

// Listen listens; connections are accepted when Serve is called. It fails with ErrNeedsTLS, or
// with what the system says.
func Listen(o Options) (*Port, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Dialer == nil {
		o.Dialer = NewDialer(o.TLS, o.Logger)
	}
	if err := Allows(o.TLS, o.Address); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, err
	}
	p := &Port{o: o, listener: l, patience: handshakeTimeout, strangers: sockets.NewHandshakes(maxStrangers), said: newComplaints()}
	p.ending, p.end = context.WithCancel(context.Background())
	return p, nil
}

// Allows fails with ErrNeedsTLS if nodes must not speak with an address without TLS, and config
// is nil.
func Allows(config *tls.Config, address string) error {
	if config == nil && !isLoopback(address) {
		return fmt.Errorf("%s: %w", address, ErrNeedsTLS)
	}
	return nil
}

// Allows is the function of this name, for this node's TLS.
func (p *Port) Allows(address string) error { return Allows(p.o.TLS, address) }

// isLoopback says whether an address is certainly one of the loopback interface: a name
// other than localhost may become another address later.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Addr is the address that the node listens on.
func (p *Port) Addr() net.Addr { return p.listener.Addr() }

// Handle has h called, on a goroutine of its own, with each connection that begins with magic,
// which has been read and has MagicSize bytes. h closes the connection; it must return soon
// after Close, which closes it, too. A connection that comes before its Handle is closed, and its
// node tries again.
func (p *Port) Handle(magic string, h func(net.Conn)) {
	if _, taken := p.handlers.LoadOrStore(magic, h); taken || len(magic) != MagicSize {
		panic(fmt.Sprintf("port: %q cannot say what a connection is about", magic))
	}
}

// HandleFronts is Handle for what fronts may connect for, too.
func (p *Port) HandleFronts(magic string, h func(net.Conn)) {
	p.forFronts.Store(magic, true)
	p.Handle(magic, h)
}

// Complete says that every handler is there: from now on a connection that begins with something
// else is worth a line in the log. Before, it may be one of another node that was faster.
func (p *Port) Complete() { p.complete.Store(true) }

// Serve begins to accept connections.
func (p *Port) Serve() { p.running.Go(p.accept) }

func (p *Port) accept() {
	defer failstop.End(p.o.Logger, "the listener for nodes")
	var failing sockets.AcceptFailures
	for p.ending.Err() == nil {
		conn, err := p.listener.Accept()
		if err != nil {
			pause := failing.Next() // descriptors, for example, may be free again
			if n, due := failing.WorthALine(time.Now()); due && p.ending.Err() == nil {
				p.o.Logger.Warn("cannot accept connections of other nodes", "listener", p.Addr().String(), "error", err, "failures", n, "retry_in", pause)
			}
			select {
			case <-p.ending.Done():
			case <-time.After(pause):
			}
			continue
		}
		failing.Succeeded()
		stranger := p.strangers.Begin(conn)
		p.running.Go(func() {
			defer failstop.End(p.o.Logger, "a connection of a node")
			stop := context.AfterFunc(p.ending, func() { _ = conn.Close() })
			defer stop()
			h, secured, err := p.greet(conn)
			stranger.End()
			if errors.Is(err, net.ErrClosed) {
				err = errRoom
			}
			if err != nil {
				if p.ending.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, errEarly) {
					p.complain(conn.RemoteAddr().String(), err)
				}
				_ = conn.Close()
				return
			}
			h(secured)
		})
	}
}

// complain logs why a connection was closed.
func (p *Port) complain(address string, err error) {
	if reason := p.said.due(address, err, time.Now()); reason != "" {
		p.o.Logger.Warn("a connection to the cluster's port was closed", "address", address, "error", reason)
	}
}

// greet finds out who connects, and what about.
func (p *Port) greet(conn net.Conn) (func(net.Conn), net.Conn, error) {
	_ = conn.SetDeadline(time.Now().Add(p.patience))
	if p.o.TLS != nil {
		config := latest(p.o.TLS)
		config.ClientAuth = tls.RequireAndVerifyClientCert
		config.DynamicRecordSizingDisabled = true
		conn = transport.NewTLSConn(conn, config) // the connection of a client that is passed on is read and written without waiting
	}
	var magic [MagicSize]byte
	if _, err := io.ReadFull(conn, magic[:]); err != nil {
		return nil, nil, settings.Explain(err)
	}
	complete := p.complete.Load() // before the handler is looked for
	h, known := p.handlers.Load(string(magic[:]))
	if !known && !complete {
		return nil, nil, errEarly
	}
	if !known && magic[0] == tlsHandshake && magic[1] == 3 {
		return nil, nil, errors.New("the other node speaks TLS, and this one does not: give all nodes --cluster-cert, --cluster-key and --cluster-ca, or none of them")
	}
	if !known {
		return nil, nil, fmt.Errorf("it begins with %q, which this program does not know: is it a node of a newer version, or a client that wants the other port?", magic[:])
	}
	if secured, is := conn.(*transport.TLSConn); is && settings.IsFront(secured.ConnectionState().PeerCertificates[0]) {
		if _, may := p.forFronts.Load(string(magic[:])); !may {
			return nil, nil, fmt.Errorf("it shows the certificate of a front, and begins with %q, which only nodes may", magic[:])
		}
	}
	return h.(func(net.Conn)), conn, conn.SetDeadline(time.Time{})
}

// Dial connects to another node's port and says what about. It fails with ErrNeedsTLS, or with
// what the network or TLS say.
func (p *Port) Dial(ctx context.Context, address, magic string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return p.o.Dialer.Dial(ctx, address, magic)
}

// Close closes the listener and all connections that it has accepted, and waits for their
// handlers.
func (p *Port) Close() error {
	p.end()
	err := p.listener.Close()
	p.running.Wait()
	return err
}
