package port

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
)

const (
	// lateName is how long a node's name may take to lead to the node before the address at which it was last
	// reached is tried as well.
	lateName = 200 * time.Millisecond
	// maxReached bounds the names whose addresses are remembered: a cluster has few nodes, and replaces them seldom.
	maxReached = 64
)

// Dialer connects to the ports of nodes. Its methods are safe for concurrent use.
//
// The name of a node is looked up for each connection, so that a node is found that was started
// anew elsewhere. But DNS may answer late, or not at all, just when a machine has died, and then
// the other nodes must reach each other. So a Dialer remembers the address at which each node was
// reached, and tries that as well when the name leads nowhere in time. A program that has that
// address now must show a certificate for the name: without TLS nodes are at loopback addresses only.
type Dialer struct {
	tls     *tls.Config
	log     *slog.Logger
	system  func(ctx context.Context, network, address string) (net.Conn, error) // looks names up
	reached chan map[string]string                                               // IP:PORT by HOST:PORT; capacity 1
}

// NewDialer makes a Dialer. config is that of Options.TLS; log may be nil: slog.Default.
func NewDialer(config *tls.Config, log *slog.Logger) *Dialer {
	if log == nil {
		log = slog.Default()
	}
	d := &Dialer{tls: config, log: log, system: new(net.Dialer).DialContext, reached: make(chan map[string]string, 1)}
	d.reached <- map[string]string{}
	return d
}

// Dial connects to the port of the node at an address, HOST:PORT, and says what about, until ctx ends. It fails with
// ErrNeedsTLS, or with what the network or TLS say.
func (d *Dialer) Dial(ctx context.Context, address, magic string) (net.Conn, error) {
	if err := Allows(d.tls, address); err != nil {
		return nil, err
	}
	conn, err := d.reach(ctx, address)
	if err != nil {
		return nil, settings.Explain(err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err = conn.Write([]byte(magic)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, conn.SetDeadline(time.Time{})
}

// reach connects to a node by its name and, if that is late or the look-up fails, also to where it was last.
func (d *Dialer) reach(ctx context.Context, address string) (net.Conn, error) {
	last := d.last(address)
	if last == "" {
		conn, err := d.open(ctx, address, address)
		if err == nil {
			d.remember(address, conn)
		}
		return conn, err
	}
	type attempt struct {
		at   string
		conn net.Conn
		err  error
	}
	racing, lose := context.WithCancel(ctx)
	defer lose()
	attempts, decided := make(chan attempt), make(chan struct{})
	defer close(decided)
	try := func(at string) {
		defer failstop.End(d.log, "a connection to a node")
		conn, err := d.open(racing, at, address)
		select {
		case attempts <- attempt{at, conn, err}:
		case <-decided:
			if err == nil {
				_ = conn.Close()
			}
		}
	}
	running := 1
	go try(address)
	alsoTryLast := func() {
		if last != "" {
			running++
			go try(last)
			last = ""
		}
	}
	late := time.NewTimer(lateName)
	defer late.Stop()
	var failed error
	for running > 0 {
		select {
		case <-late.C:
			alsoTryLast()
		case a := <-attempts:
			if a.err == nil {
				d.remember(address, a.conn)
				return a.conn, nil
			}
			running--
			if failed == nil || a.at == address {
				failed = a.err
			}
			if lookupFailed(a.err) {
				alsoTryLast()
			}
		}
	}
	return nil, failed
}

// lookupFailed says whether a name could not be looked up, which is not that there is none.
func lookupFailed(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && !dns.IsNotFound
}

// open connects to the node of an address at a place, which is that address or where it has led to.
func (d *Dialer) open(ctx context.Context, at, address string) (net.Conn, error) {
	conn, err := d.system(ctx, "tcp", at)
	if err == nil && d.tls != nil {
		conn, err = secure(ctx, conn, latest(d.tls), address)
	}
	return conn, err
}

// last is where the node of an address was reached; empty: nowhere, or the address has no name.
func (d *Dialer) last(address string) string {
	m := <-d.reached
	defer func() { d.reached <- m }()
	return m[address]
}

func (d *Dialer) remember(address string, conn net.Conn) {
	host, _, _ := net.SplitHostPort(address)
	if _, err := netip.ParseAddr(host); err == nil {
		return
	}
	m := <-d.reached
	defer func() { d.reached <- m }()
	if _, known := m[address]; !known && len(m) >= maxReached {
		for other := range m {
			delete(m, other)
			break
		}
	}
	m[address] = conn.RemoteAddr().String()
}

// secure does the handshake with the node at address; config is the caller's copy.
func secure(ctx context.Context, conn net.Conn, config *tls.Config, address string) (net.Conn, error) {
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		config.ServerName = host
	}
	config.DynamicRecordSizingDisabled = true
	secured := tls.Client(nowait.Conn(conn), config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// latest is a copy of a configuration for one connection: certificates may have been read again.
func latest(config *tls.Config) *tls.Config {
	if config.GetConfigForClient != nil {
		if now, err := config.GetConfigForClient(nil); err == nil && now != nil {
			config = now
		}
	}
	return config.Clone()
}
