package nowait

import (
	"net"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Conn is nc whose reads and writes wait only where there is nothing to read, or no room. It is
// for what reads and writes a connection itself, such as crypto/tls. At most one goroutine at a
// time reads, and one writes. Without a descriptor, Conn gives nc as it is.
func Conn(nc net.Conn) net.Conn {
	raw := sockets.Raw(nc)
	if raw == nil {
		return nc
	}
	c := &conn{Conn: nc, raw: raw}
	c.readable, c.writable = c.readReady, c.writeNow
	return c
}

type conn struct {
	net.Conn
	raw syscall.RawConn

	// Bound methods, made once: making one at each call would allocate.
	readable func(fd uintptr) bool
	writable func(fd uintptr)

	in, out         []byte
	readN, writeN   int   // results of readReady and writeNow
	readEnd, failed error // the same
}

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// SyscallConn is the way to the descriptor.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in = p
	err := c.raw.Read(c.readable)
	c.in = nil
	if err != nil {
		return 0, err
	}
	return c.readN, c.readEnd
}

// readReady is called by RawConn.Read, first at once and then whenever the socket may have
// become readable; false means: wait.
func (c *conn) readReady(fd uintptr) bool {
	n, again, err := Read(fd, c.in)
	c.readN, c.readEnd = n, err
	return !again
}

func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.out = p
	err := c.raw.Control(c.writable)
	c.out = nil
	if err == nil {
		err = c.failed
	}
	if err != nil {
		return 0, err
	}
	n := c.writeN
	if n < len(p) {
		var more int
		more, err = c.Conn.Write(p[n:])
		n += more
	}
	return n, err
}

// writeNow writes what the socket takes without a wait.
func (c *conn) writeNow(fd uintptr) { c.writeN, _, c.failed = Write(fd, c.out) }
