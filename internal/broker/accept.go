package broker

import (
	"errors"
	"net"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
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
	var failing acceptFailures
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// Out of file descriptors or of memory, most likely: it passes.
			pause := failing.next()
			if n, said := failing.worthALine(time.Now()); said {
				b.Log.Warn("cannot accept connections", "listener", l.Addr(), "error", err, "failures", n, "retry_in", pause)
			}
			select {
			case <-time.After(pause):
			case <-b.stop:
			}
			continue
		}
		failing.pause = 0
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

// acceptFailures paces a listener that cannot accept, and what is said of it.
type acceptFailures struct {
	pause  time.Duration // before the next attempt
	since  int           // failures since the last line in the log
	logged time.Time     // when that was
}

const (
	shortestAcceptPause = 5 * time.Millisecond
	longestAcceptPause  = time.Second
	// acceptLogPause is how often failures are worth a line in the log.
	acceptLogPause = 10 * time.Second
)

// next is how long to wait after one more failure.
func (f *acceptFailures) next() time.Duration {
	f.since++
	f.pause = min(max(2*f.pause, shortestAcceptPause), longestAcceptPause)
	return f.pause
}

// worthALine says whether a line is due, and how many failures it tells of.
func (f *acceptFailures) worthALine(now time.Time) (failures int, due bool) {
	if !f.logged.IsZero() && now.Sub(f.logged) < acceptLogPause {
		return 0, false
	}
	failures, f.since, f.logged = f.since, 0, now
	return failures, true
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
	c.reserved = c.Loopback() && b.reserved < b.Limits.LoopbackConnections
	if b.closed || len(b.conns)-b.reserved >= b.Limits.MaxConnections+SpareConnections && !c.reserved {
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
	return c.reserved || len(b.conns)-b.reserved <= b.Limits.MaxConnections
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
func (b *Broker) MaxConnections() int64 { return int64(b.Limits.MaxConnections) }

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
