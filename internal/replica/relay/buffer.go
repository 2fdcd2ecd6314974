package relay

import (
	"net"
	"sync"
	"sync/atomic"
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
