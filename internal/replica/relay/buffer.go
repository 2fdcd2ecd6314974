package relay

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// buffer is what one read has read. A connection has one for each direction at the most, and
// none while it is idle.
type buffer struct {
	bytes []byte
	n     int
}

const (
	bufferBytes = 32 << 10
	// smallBytes is the size of a buffer beyond the bound: less than the stacks of the
	// connection's goroutines.
	smallBytes = 1 << 10
)

var (
	largeBuffers = sync.Pool{New: func() any { return &buffer{bytes: make([]byte, bufferBytes)} }}
	smallBuffers = sync.Pool{New: func() any { return &buffer{bytes: make([]byte, smallBytes)} }}
)

// supply has the buffers of a Relay. A connection whose peer does not read keeps its buffer,
// so the large ones are bounded in bytes; the connections beyond go on with small ones.
type supply struct {
	most int64
	used atomic.Int64 // bytes of the large buffers in use
}

func (s *supply) take() *buffer {
	for used := s.used.Load(); used+bufferBytes <= s.most; used = s.used.Load() {
		if s.used.CompareAndSwap(used, used+bufferBytes) {
			return largeBuffers.Get().(*buffer)
		}
	}
	return takeSmall()
}

func takeSmall() *buffer { return smallBuffers.Get().(*buffer) }

func (s *supply) free(b *buffer) {
	if len(b.bytes) == smallBytes {
		smallBuffers.Put(b)
		return
	}
	s.used.Add(-bufferBytes)
	largeBuffers.Put(b)
}

// source is where one direction of a connection comes from. One goroutine uses it.
type source struct {
	supply   *supply
	conn     net.Conn
	raw      syscall.RawConn       // nil: the connection has no descriptor
	readable func(fd uintptr) bool // readReady, made once: making it at each read would allocate
	read     *buffer               // result of the last readReady; nil: nothing
	err      error                 // result of the last readReady
}

func (s *supply) source(conn net.Conn) *source {
	src := &source{supply: s, conn: conn, raw: sockets.Raw(conn)}
	src.readable = src.readReady
	return src
}

// next waits until there is something to read, and only then takes a buffer for it. The
// buffer is nil if nothing was read; otherwise the caller frees it. more says that the read
// before has filled its buffer.
func (src *source) next(more bool) (*buffer, error) {
	if src.raw == nil {
		return src.supply.readPlainly(src.conn, more)
	}
	if err := src.raw.Read(src.readable); err != nil {
		return nil, err
	}
	return src.read, src.err
}

// readReady is called by RawConn.Read, first at once and then whenever the socket may have
// become readable; false means: wait.
func (src *source) readReady(fd uintptr) bool {
	b := src.supply.take()
	n, again, err := nowait.Read(fd, b.bytes)
	if n == 0 {
		src.supply.free(b)
		b = nil
	} else {
		b.n = n
	}
	src.read, src.err = b, err
	return !again
}

// readPlainly reads where a connection has no descriptor to wait for, such as one of TLS. It
// waits with a small buffer; more says that the read before has filled its own.
func (s *supply) readPlainly(src net.Conn, more bool) (b *buffer, err error) {
	if more {
		b = s.take()
	} else {
		b = takeSmall()
	}
	b.n, err = src.Read(b.bytes)
	if b.n == 0 {
		s.free(b)
		return nil, err
	}
	return b, err
}
