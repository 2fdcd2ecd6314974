package broker

import (
	"errors"
	"net"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Serve accepts connections until the listener is closed, which Close does.
func (b *Broker) Serve(l net.Listener) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return net.ErrClosed
	}
	b.listeners = append(b.listeners, l)
	b.mu.Unlock()
	var failing sockets.AcceptFailures
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// Out of file descriptors or of memory, most likely: it passes.
			pause := failing.Next()
			if n, said := failing.WorthALine(time.Now()); said {
				b.Log.Warn("cannot accept connections", "listener", l.Addr(), "error", err, "failures", n, "retry_in", pause)
			}
			select {
			case <-time.After(pause):
			case <-b.stop:
			}
			continue
		}
		failing.Succeeded()
		if !b.addReader() {
			_ = nc.Close()
			continue
		}
		go func() {
			defer failstop.End(b.Log, "beginning of a connection")
			b.serve(nc)
			b.readers.Done()
		}()
	}
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

// addConn takes in a connection whose client is not known yet, or says false. When all
// places are taken, the connection that has waited for its CONNECT longest makes room: an
// honest client sends it at once.
func (b *Broker) addConn(c *Conn) bool {
	victim, added := b.placeConn(c)
	if victim != nil {
		b.Counters.Strangers.Add(1)
		victim.Transport.Shut(0)
	}
	return added
}

// placeConn does the work of addConn; the caller closes victim, unless it is nil.
func (b *Broker) placeConn(c *Conn) (victim *Conn, added bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.Limits()
	c.reserved = c.Loopback() && b.reserved < l.LoopbackConnections
	if b.closed {
		return nil, false
	}
	if len(b.conns)-b.reserved >= l.MaxConnections+l.ReservedConnections+SpareConnections && !c.reserved {
		if victim, _ = b.Sessions.Principals.OldestStranger().(*Conn); victim == nil {
			return nil, false
		}
	}
	c.place = b.Sessions.Principals.Arrive(c, c.reserved)
	b.conns[c] = struct{}{}
	if c.reserved {
		b.reserved++
	}
	return victim, true
}

// SpareConnections is how many connections beyond the bounds have a place until their
// CONNECT: they are told of the bound in a CONNACK, or get the place of another one.
const SpareConnections = 64

// admit counts the connection for its principal, and ends another one in favour of it if
// that is what the bound asks for (package principals). refused says why it may not stay;
// empty: it may.
func (c *Conn) admit() (refused string) {
	b, id := c.b, c.Identity()
	// A connection that the client still has ends when this one gets the session.
	principal := registry.Principal(id.OwnedBy(), &c.Peer)
	replaces := b.Sessions.IsConnected(c.Client, principal)
	displaced, refused := b.Sessions.Principals.Admit(c.place, principal, access.QuotaOf(b.may, id), replaces)
	if victim, ok := displaced.(*Conn); ok {
		const reason = "the server has as many connections as it may (--max-connections), and this client's principal has most of them"
		b.Counters.Displaced.Add(1)
		b.audit.Ended(victim.audited(), reason)
		victim.Disconnect(mqtt.QuotaExceeded, reason)
	}
	return refused
}

func (b *Broker) removeConn(c *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Sessions.Principals.Depart(c.place)
	delete(b.conns, c)
	if c.reserved {
		b.reserved--
	}
}

// MaxConnections is how many connections there may be besides those that are reserved
// for clients on this machine.
func (b *Broker) MaxConnections() int64 {
	return int64(b.Limits().MaxConnections)
}

// background does something on a goroutine of its own, which the broker's end waits
// for. It says false if that has come.
func (b *Broker) background(do func(t *session.Turn)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.readers.Go(func() {
		defer failstop.End(b.Log, "work for a connection")
		b.Do(do)
	})
	return true
}
