package sockets

import (
	"net"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Handshakes bounds how many handshakes are under way at once, of TLS or of WebSocket.
// When there are too many, the oldest of the address that has most is ended in favour of
// the new one: an honest handshake takes milliseconds. Its methods are safe for
// concurrent use.
type Handshakes struct {
	most int

	mu    lockrank.Mutex[lockrank.Handshakes]
	hosts map[string][]*Handshake // under way, the oldest first; guarded by mu
	count int                     // guarded by mu
	ended int64                   // in favour of others; guarded by mu
}

// DefaultMaxHandshakes is how many handshakes may be under way unless a bound is set.
const DefaultMaxHandshakes = 1000

// NewHandshakes bounds handshakes to most at a time, at least 1.
func NewHandshakes(most int) *Handshakes {
	return &Handshakes{most: max(most, 1), hosts: make(map[string][]*Handshake)}
}

// Handshake is a handshake that is under way until its End.
type Handshake struct {
	conn net.Conn
	all  *Handshakes
	host string
}

// Begin counts the handshake of a connection, and closes that of another one if there are
// too many.
func (l *Handshakes) Begin(c net.Conn) *Handshake {
	h := &Handshake{conn: c, all: l, host: hostOf(c.RemoteAddr())}
	l.mu.Lock()
	var victim *Handshake
	if l.count >= l.most {
		most := ""
		for host, under := range l.hosts {
			if len(under) > len(l.hosts[most]) {
				most = host
			}
		}
		victim = l.hosts[most][0]
		l.remove(victim)
		l.ended++
	}
	l.hosts[h.host] = append(l.hosts[h.host], h)
	l.count++
	l.mu.Unlock()
	if victim != nil {
		_ = Close(victim.conn)
	}
	return h
}

// End says that the handshake is over.
func (h *Handshake) End() {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	h.all.remove(h)
}

// Under is how many handshakes are under way.
func (l *Handshakes) Under() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Ended is how many handshakes were ended because there were too many.
func (l *Handshakes) Ended() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// remove takes a handshake out, if it is still in; mu is held.
func (l *Handshakes) remove(h *Handshake) {
	under := l.hosts[h.host]
	i := slices.Index(under, h)
	if i < 0 {
		return
	}
	l.count--
	if l.hosts[h.host] = slices.Delete(under, i, i+1); len(under) == 1 {
		delete(l.hosts, h.host)
	}
}

// hostOf is the address without its port.
func hostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}
