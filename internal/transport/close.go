package transport

import (
	"errors"
	"math"
	"net"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// lingerTime is how long a peer that is still sending has to read our last words,
// and our reader to read its: some round trips on a slow line.
const lingerTime = 500 * time.Millisecond

// past is a deadline that has gone by.
var past = time.Unix(1, 0)

// WaitOutput blocks until Size is below limit (at least 1: until the output is
// empty). It flushes first, so that there is something to wait for. It returns
// ErrClosed after Shut or Close; after a failed write there is nothing to wait
// for, and the reader goes on to its own end. For the reader goroutine only.
func (c *Conn) WaitOutput(limit int) error {
	limit = max(limit, 1)
	c.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiter == nil {
		c.waiter = sync.NewCond(&c.mu)
	}
	c.waitLimit = int32(min(limit, math.MaxInt32))
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	for !c.shut {
		if c.size.Load() < int64(limit) {
			return nil
		}
		c.waiter.Wait()
	}
	return ErrClosed
}

// Pause blocks for d, or until Shut or Close, and then returns ErrClosed. For the reader
// goroutine only, with nothing left to flush.
func (c *Conn) Pause(d time.Duration) error {
	over := false // guarded by mu
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiter == nil {
		c.waiter = sync.NewCond(&c.mu)
	}
	timer := time.AfterFunc(d, func() {
		c.mu.Lock()
		over = true
		c.waiter.Broadcast()
		c.mu.Unlock()
	})
	defer timer.Stop()
	for !over && !c.shut {
		c.waiter.Wait()
	}
	if c.shut {
		return ErrClosed
	}
	return nil
}

// Shut ends the connection politely: no output is accepted any more, what is
// there is written, then the socket is closed, after grace at the latest. Fill
// and WaitOutput return ErrClosed at once. Shut itself does not wait; after the
// first Shut or Close it does nothing.
func (c *Conn) Shut(grace time.Duration) {
	c.mu.Lock()
	if c.shut {
		c.mu.Unlock()
		return
	}
	c.shut = true
	c.closing.Store(true)
	c.gone.Store(true)
	writer := !c.writing
	if writer {
		c.writing = true
	}
	if grace > 0 {
		c.deadline = time.AfterFunc(grace, c.abandon)
	}
	if c.waiter != nil {
		c.waiter.Broadcast()
	}
	c.mu.Unlock()

	_ = c.nc.SetReadDeadline(past) // unblocks Fill, which then sees closing
	if writer {
		c.write(true)
	}
	if grace <= 0 {
		_ = c.Close()
	}
}

// abandon is Close for a timer.
func (c *Conn) abandon() { _ = c.Close() }

// closeWritten closes the socket after the last byte was written. The caller was the
// writer and has set closed.
//
// A socket that is closed with unread input, or that gets more input afterwards,
// answers with a reset. On a reset the peer's system may drop what the peer has not
// read yet: the reason for the disconnect. So closeWritten discards the input first,
// ends the stream at once, and closes the socket a little later.
func (c *Conn) closeWritten() {
	if c.raw != nil && discardInput(c.raw) && c.linger() {
		return
	}
	// On the plain path Close may still write to the peer (TLS's close_notify), and so
	// may take a while. Then this is the connection's own goroutine, and the deadline
	// holds until Close has returned.
	_ = c.nc.Close()
	c.stopDeadline()
}

// linger ends the stream and has a timer close the socket. It returns false if there is
// no time for that. Meanwhile the peer's input stays in the system, which bounds it.
func (c *Conn) linger() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline == nil || halfClose(c.nc) != nil {
		return false
	}
	time.AfterFunc(lingerTime, func() {
		discardInput(c.raw)
		_ = c.nc.Close()
		c.stopDeadline()
	})
	return true
}

func (c *Conn) stopDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline != nil {
		c.deadline.Stop()
	}
}

// Gone reports whether what is appended from now on is dropped: after Shut or Close,
// or after a write has failed.
func (c *Conn) Gone() bool { return c.gone.Load() }

// Close closes the socket at once; output that it has not taken is lost. After
// the first call it does nothing and returns nil.
func (c *Conn) Close() error {
	c.mu.Lock()
	done := c.closed && c.deadline == nil
	c.shut = true
	c.closed = true
	if c.deadline != nil {
		c.deadline.Stop()
		c.deadline = nil
	}
	c.closing.Store(true)
	c.gone.Store(true)
	c.dropOutput()
	c.mu.Unlock()
	if done {
		return nil
	}
	if err := sockets.Close(c.nc); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// halfClose ends the stream to the peer of the socket underneath nc.
func halfClose(nc net.Conn) error {
	for {
		switch c := nc.(type) {
		case *net.TCPConn:
			return c.CloseWrite()
		case *net.UnixConn:
			return c.CloseWrite()
		case interface{ NetConn() net.Conn }:
			nc = c.NetConn()
		default:
			return errors.ErrUnsupported
		}
	}
}

// PeerGone says whether the peer has closed the connection, and nothing that it had sent
// before is still unread. It does not wait. Bytes that are buffered are the caller's to look
// at. If the connection is encrypted, or WebSocket's, what is unread may be no more than the
// farewell of that protocol, so it counts as nothing. For the reader.
func (c *Conn) PeerGone() bool {
	if c.raw != nil && c.tls == nil {
		return sockets.AtEnd(c.raw)
	}
	if s := c.stream(); s != nil {
		return s.PeerGone()
	}
	return sockets.Gone(c.nc)
}
