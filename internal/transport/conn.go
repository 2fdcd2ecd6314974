package transport

import (
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Defaults of [Options].
const (
	DefaultReadBuffer  = 16 << 10 // bytes
	DefaultOutputLimit = 64 << 10 // bytes
)

// ErrNoMemory is what Fill returns when there is no memory for the packet that is
// coming in, even after a wait.
var ErrNoMemory = errors.New("transport: no memory for a packet that is not complete")

// ErrClosed is what Fill and WaitOutput return once Shut or Close was called on
// this side. What the peer does shows as io.EOF or the socket's own error.
var ErrClosed = errors.New("transport: connection closed")

// ErrInterrupted is what Fill returns after Interrupt, when there is nothing more
// to read at once.
var ErrInterrupted = errors.New("transport: reading was interrupted")

// Options of a [Conn]. The zero value is usable.
type Options struct {
	// ReadBuffer is the size of a pooled read buffer in bytes, rounded up to a
	// power of two, at most 1 MiB. 0 means DefaultReadBuffer.
	ReadBuffer int
	// OutputLimit is the size in bytes from which Full reports true. It is soft:
	// nothing is refused because of it. 0 means DefaultOutputLimit.
	OutputLimit int
	// Drained is called when the output has become empty after Full reported
	// true or WantDrained was asked: once for each time it was armed. It runs on
	// the goroutine that wrote, with no lock held, and must not block; it may
	// append and flush.
	Drained func()
	// Failed is called once when a write fails, on the goroutine that wrote,
	// with no lock held, and decides when to Close. From then on output is
	// dropped, but the reader may still find what the peer had sent before (in
	// MQTT, the DISCONNECT that cancels a will): let it come to its own end. If
	// Failed is nil, the connection closes itself after half a second. It is
	// not called once Shut or Close was.
	Failed func(error)
	// Memory is charged with output that the socket has not taken, as
	// memory.Output, and with input that waits for the rest of its packet, as
	// InputKind. nil: nothing is counted.
	Memory    *memory.Pool
	InputKind memory.Kind
}

// Conn is one client's connection. Create it with [NewConn]; end it with Shut or
// Close, or its socket leaks.
//
// Fill, Buffered, Discard and WaitOutput belong to the connection's one reader
// goroutine. Everything else is safe for concurrent use.
//
// A caller that appends output must see to it that Flush or FlushSoon is called after
// the Unlock; nothing leaves by itself.
type Conn struct {
	nc       net.Conn
	raw      syscall.RawConn // nil: the plain path
	tls      *TLSConn        // over raw; nil: bytes are not encrypted
	flushers *Flushers
	drained  func()
	failed   func(error)
	memory   *memory.Pool

	// Bound methods, made once: making one at each call would allocate.
	readable func(fd uintptr) bool
	pushable func(fd uintptr)

	// Input, owned by the reader: in[r:w] is buffered. in is nil while nothing
	// is.
	in          []byte
	r, w        int32
	readErr     error        // result of the last readable
	readN       int32        // result of the last readable
	inputHeld   atomic.Int32 // bytes of in that the pool of memory is charged with; written by the reader
	awaiting    atomic.Bool  // the reader waits for memory; written by the reader
	readSize    int32
	outputLimit int32
	probe       [1]byte
	probed      bool // the last fillPlain read probe only
	waited      bool // the last Fill had to wait for the peer
	inputKind   memory.Kind

	// Output. See write.go for who may touch what.
	mu        lockrank.Mutex[lockrank.Output]
	out       []byte      // mu: appended last, not yet taken by the writer
	queue     *chunk      // mu: appended before out, not yet taken by the writer
	last      *chunk      // mu: the last one of queue
	queued    int32       // mu: bytes of queue in pooled buffers
	charged   int32       // mu: bytes that the pool of memory is charged with
	unsent    int32       // mu: bytes that the writer held in pooled buffers when it last said so
	outClass  int8        // mu: buffer class that the next out begins with
	writing   bool        // mu: a goroutine is the writer
	stalled   bool        // mu: the writer waits for the socket, so what waits is charged
	shut      bool        // mu: no output is accepted any more
	broken    bool        // mu: a write failed
	closed    bool        // mu: the socket is closed, or about to be
	waitLimit int32       // mu: what WaitOutput waits to get below
	waiter    *sync.Cond  // mu: made at the first WaitOutput that has to wait
	deadline  *time.Timer // mu: closes what Shut could not finish in time

	sending  chunk // the writer's: taken from queue and out, being written; its p is nil if there is none
	sent     int   // the writer's: how much of sending.p the socket has
	writeErr error // the writer's: result of the last system call

	size    atomic.Int64 // bytes in queue, out and sending that the socket doesn't have
	armed   atomic.Bool  // Drained is due when size becomes 0
	waiting atomic.Bool  // WaitOutput waits
	closing atomic.Bool  // Shut or Close was called
	gone    atomic.Bool  // the same, or a write failed

	interrupted atomic.Bool // Interrupt was called

	writeN int32 // the writer's: result of the last system call

	places [2]place // in the flushers' queues
}

// NewConn makes a Conn of nc, which it owns from now on. f may be nil: FlushSoon
// is then the same as Flush. The caller may set read deadlines on nc, from the
// reader goroutine only; write deadlines never.
func NewConn(nc net.Conn, f *Flushers, o Options) *Conn {
	c := &Conn{
		nc:          nc,
		flushers:    f,
		drained:     o.Drained,
		failed:      o.Failed,
		memory:      o.Memory,
		inputKind:   o.InputKind,
		readSize:    DefaultReadBuffer,
		outputLimit: DefaultOutputLimit,
	}
	if o.ReadBuffer > 0 {
		c.readSize = int32(minBuffer << bufferClass(min(o.ReadBuffer, maxBuffer)))
	}
	if o.OutputLimit > 0 {
		c.outputLimit = int32(min(o.OutputLimit, math.MaxInt32))
	}
	c.takeRawPath()
	if c.raw != nil {
		c.readable = c.readReady
		c.pushable = c.pushRaw
	}
	return c
}

// Streamer is a connection that adds nothing to the bytes of the one below it, for
// example only an address: reads and writes may go around it.
type Streamer interface {
	net.Conn
	// Stream is the connection below.
	Stream() net.Conn
}

// Stream is a connection without a descriptor that can be written to without waiting, and that
// says when there is something to read: one of many that another connection carries.
type Stream interface {
	net.Conn
	// TryWrite writes what can be written now; 0 without an error: nothing.
	TryWrite(p []byte) (int, error)
	// Await waits until Read does not, and says whether it had to.
	Await() (waited bool)
	// PeerGone is Conn.PeerGone.
	PeerGone() bool
}

// takeRawPath finds the file descriptor below nc, if bytes may go to it directly.
func (c *Conn) takeRawPath() {
	nc := c.nc
	if s, ok := nc.(Streamer); ok {
		nc = s.Stream()
	}
	if t, ok := nc.(*TLSConn); ok {
		if c.raw = sockets.Raw(t.wire.Conn); c.raw != nil {
			c.tls = t
			t.wire.conn = c
		}
		return
	}
	c.raw = sockets.Raw(nc)
}

// stream is the Stream below nc; nil: there is none. A field would make each Conn larger.
func (c *Conn) stream() Stream {
	if c.raw != nil {
		return nil
	}
	nc := c.nc
	if s, ok := nc.(Streamer); ok {
		nc = s.Stream()
	}
	s, _ := nc.(Stream)
	return s
}

// Encrypted says whether Fill decrypts what it reads.
func (c *Conn) Encrypted() bool { return c.tls != nil }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// NetConn is the connection that this Conn was made of, for what only that one
// knows (a TLS state, a local address). Do not read, write or close it.
func (c *Conn) NetConn() net.Conn { return c.nc }
