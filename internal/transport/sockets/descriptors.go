package sockets

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// DescriptorBounds keep clients from taking the last file descriptors of the process,
// which the log, tables and the control socket need. A new descriptor is always the
// lowest number that is free, so a socket whose number is n says that n others are open,
// whatever they are: clients, handshakes that are not done, sockets that linger, tables.
// No count of them could be wrong.
//
// Set the fields before the first Listener, and don't change them.
type DescriptorBounds struct {
	Clients  int          // sockets with this number or a higher one are closed
	Loopback int          // the same for clients on this machine; at least Clients
	Logger   *slog.Logger // nil: slog.Default

	turnedAway atomic.Int64
	said       atomic.Int64 // when that was logged, ns; 0: never
}

// turnedAwayPause is how often closing sockets is worth a line in the log.
const turnedAwayPause = 10 * time.Second

// TurnedAway is how many sockets were closed because too many descriptors were in use.
func (b *DescriptorBounds) TurnedAway() int64 { return b.turnedAway.Load() }

// Listener is l without the connections that are beyond the bounds: those are closed
// without a word, as there is nothing left to serve them with.
// loopback says whether clients on this machine get what is reserved for them.
func (b *DescriptorBounds) Listener(l net.Listener, loopback bool) net.Listener {
	return &boundListener{l, b, loopback}
}

type boundListener struct {
	net.Listener
	bounds   *DescriptorBounds
	loopback bool
}

func (l *boundListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil || l.bounds.admits(nc, descriptorOf(nc), l.loopback) {
			return nc, err
		}
		_ = nc.Close()
	}
}

// admits says whether a socket with this number may stay; -1: not known.
func (b *DescriptorBounds) admits(nc net.Conn, descriptor int, loopback bool) bool {
	bound := b.Clients
	if loopback && IsLoopback(nc.RemoteAddr()) {
		bound = b.Loopback
	}
	if descriptor < bound {
		return true
	}
	n := b.turnedAway.Add(1)
	last, now := b.said.Load(), time.Now().UnixNano()
	if (last == 0 || now-last > int64(turnedAwayPause)) && b.said.CompareAndSwap(last, now) {
		logger := b.Logger
		if logger == nil {
			logger = slog.Default()
		}
		logger.Warn("closing new connections: the process has nearly as many files open as it may; raise the limit (ulimit -n, LimitNOFILE=)",
			"remote", nc.RemoteAddr(), "open", descriptor, "closed", n)
	}
	return false
}

// IsLoopback says whether a peer with this address is on this machine: it came over a
// loopback interface, or through a Unix socket.
func IsLoopback(addr net.Addr) bool {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}
