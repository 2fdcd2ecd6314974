package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Socket is a listener for clients that stays open while the leader changes.
type Socket struct {
	relay *Relay
	tcp   net.Listener
	url   listen.URL
	place int  // among the relay's sockets
	proxy bool // a balancer says where clients come from

	lead *lead // relay.mu: nil unless this node serves clients itself
}

// Listen has the relay take the connections of a listener, which it owns from now on. c is
// what the listener is for the server, once this node leads. The nodes of a cluster call it
// with the same listeners in the same order: their place among them is how the leader knows
// which of its own listeners a client that is passed on belongs to.
func (r *Relay) Listen(tcp net.Listener, c listen.Config) *Socket {
	r.mu.Lock()
	s := &Socket{relay: r, tcp: tcp, url: c.URL, place: len(r.sockets), proxy: c.Proxy}
	r.sockets = append(r.sockets, s)
	closed := r.closed
	r.mu.Unlock()
	if closed {
		_ = tcp.Close()
		return s
	}
	r.running.Go(s.accept)
	return s
}

// Addr is the address that is listened on.
func (s *Socket) Addr() net.Addr { return s.tcp.Addr() }

// lead is a listener that has the connections of a Socket as long as it is open.
type lead struct {
	socket *Socket
	ready  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Lead begins to give the connections of the socket to the caller, those included that wait
// for a leader. Closing the listener that it returns ends that, and leaves the socket open.
// At most one such listener is open at a time.
func (s *Socket) Lead() net.Listener {
	l := &lead{socket: s, ready: make(chan net.Conn), closed: make(chan struct{})}
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	s.lead = l
	s.relay.wake()
	return l
}

func (l *lead) Addr() net.Addr { return l.socket.tcp.Addr() }

func (l *lead) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.closed:
	case <-l.socket.relay.ending.Done():
	}
	return nil, net.ErrClosed
}

func (l *lead) Close() error {
	l.once.Do(func() {
		r := l.socket.relay
		r.mu.Lock()
		if l.socket.lead == l {
			l.socket.lead = nil
			r.wake()
		}
		r.mu.Unlock()
		close(l.closed)
	})
	return nil
}

// state is what decides about a connection. current ends when that changes.
func (s *Socket) state() (here *lead, there Leader, current context.Context) {
	r := s.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.lead, r.leader, r.current
}

// accept accepts connections until the relay is closed.
func (s *Socket) accept() {
	r := s.relay
	defer failstop.End(r.o.Logger, "a listener of a cluster's node")
	var failing sockets.AcceptFailures
	for r.ending.Err() == nil {
		c, err := s.tcp.Accept()
		if err != nil {
			if r.ending.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			pause := failing.Next()
			if n, due := failing.WorthALine(time.Now()); due {
				r.o.Logger.Warn("cannot accept connections", "listener", s.Addr(), "error", err, "failures", n, "retry_in", pause)
			}
			select {
			case <-time.After(pause):
			case <-r.ending.Done():
			}
			continue
		}
		failing.Succeeded()
		if here, _, _ := s.state(); here == nil || !here.give(c, nil) {
			s.begin(c)
		}
	}
}

// give hands a connection to Accept. It says false if the listener is closed, or timeout
// fires, before.
func (l *lead) give(c net.Conn, timeout <-chan time.Time) bool {
	select {
	case l.ready <- c:
		return true
	case <-l.closed:
	case <-l.socket.relay.ending.Done():
	case <-timeout:
	}
	return false
}

// begin has a goroutine look after a connection, unless there are too many.
func (s *Socket) begin(c net.Conn) {
	r := s.relay
	if r.held.Add(1)+r.passing.Load() > r.most.Load() {
		r.held.Add(-1)
		s.turnAway(c)
		return
	}
	r.running.Go(func() {
		defer failstop.End(r.o.Logger, "a connection that is passed on")
		s.look(c)
	})
}

// retryPause is how long a relay waits before it asks again a leader that did not take a
// client: it may not serve clients yet.
const retryPause = 50 * time.Millisecond

// look holds a connection until a leader takes it.
func (s *Socket) look(c net.Conn) {
	r := s.relay
	held := true
	defer func() {
		if held {
			r.held.Add(-1)
		}
	}()
	late := time.NewTimer(r.o.Hold)
	defer late.Stop()
	end := time.Now().Add(r.o.Hold)
	var header *proxy.Header // once it is known
	for tried := false; ; tried = true {
		here, there, current := s.state()
		var again <-chan time.Time
		switch {
		case sockets.Gone(c):
			r.vanished.Add(1)
			_ = c.Close()
			return
		case here != nil && header != nil && s.proxy:
			_ = c.Close() // what the balancer said was read already, and the server would miss it
			return
		case here != nil:
			if here.give(c, late.C) {
				return
			}
			if time.Now().Before(end) {
				continue
			}
		case there.Address != "":
			if header == nil {
				var err error
				if header, err = s.headerOf(c, end); err != nil {
					r.o.Logger.Info("a connection ended before it was passed on", "remote", c.RemoteAddr(), "reason", err)
					_ = c.Close()
					return
				}
			}
			leader, err := r.connect(current, there, *header, end)
			if err == nil {
				if sockets.Gone(c) {
					r.vanished.Add(1)
					_ = c.Close()
					_ = leader.Close()
					return
				}
				held = false
				r.passing.Add(1)
				r.held.Add(-1)
				r.total.Add(1)
				r.pass(c, leader, there)
				r.passing.Add(-1)
				return
			}
			if !tried {
				r.o.Logger.Warn("the leader does not take a client yet", "leader", there.Address, "remote", header.Client, "error", err)
			}
			again = time.After(retryPause)
		}
		select {
		case <-current.Done():
		case <-again:
		case <-late.C:
			r.refused.Add(1)
			r.refuse(c, !s.url.IsTLS() && !s.url.IsWebSocket(), serverUnavailable)
			return
		}
		if r.ending.Err() != nil {
			_ = c.Close()
			return
		}
	}
}

// headerOf is what the leader is told of a client.
func (s *Socket) headerOf(c net.Conn, end time.Time) (*proxy.Header, error) {
	h := &proxy.Header{Client: addrPort(c.RemoteAddr())}
	if s.proxy {
		_ = c.SetReadDeadline(end)
		said, err := proxy.Read(c)
		if err != nil {
			return nil, err
		}
		_ = c.SetReadDeadline(time.Time{})
		if said.Client.IsValid() {
			h.Client = said.Client
		}
	}
	h.Listener = s.place
	return h, nil
}

func addrPort(a net.Addr) netip.AddrPort {
	if tcp, is := a.(*net.TCPAddr); is {
		return tcp.AddrPort()
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}
