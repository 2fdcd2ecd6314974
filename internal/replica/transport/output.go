package transport

import (
	"net"
	"sync/atomic"
	"syscall"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// output is how Send writes to a node's socket itself, while the goroutine that sends to the node has
// nothing to do: to wake that for each message costs more processor time than the message. Send
// never waits for the socket: what that doesn't take is left to the goroutine. So are all messages on
// a connection with TLS.
//
// Send alone adds to waiting, and the goroutine writes only while something waits. So one of the two
// writes at a time.
type output struct {
	raw     atomic.Pointer[syscall.RawConn] // of the connection; nil: there is none, or the goroutine writes
	waiting atomic.Int64                    // what the goroutine was left with, and has not written
	buffer  []byte                          // scratch of Send
}

// queued is what the goroutine that sends to a node is left with: a message, or the end of one that
// has begun to be written to a connection.
type queued struct {
	message *raftpb.Message // nil: rest
	rest    []byte
	of      *syscall.RawConn
}

// appendTo appends what is to be written to the connection with o's socket. The end of a message of an earlier
// connection is nothing.
func (q *queued) appendTo(dst []byte, o *output) ([]byte, error) {
	switch {
	case q.message != nil:
		return appendMessage(dst, q.message)
	case q.of == o.raw.Load():
		return append(dst, q.rest...), nil
	}
	return dst, nil
}

// open tells that there is a connection.
func (o *output) open(conn net.Conn) {
	if raw := sockets.Raw(conn); raw != nil {
		o.raw.Store(&raw)
	}
}

// close tells that there is none.
func (o *output) close() { o.raw.Store(nil) }

// written tells that the goroutine has written, or lost, some of what it was left with.
func (o *output) written(n int) { o.waiting.Add(-int64(n)) }

// pass writes a message to its node's socket, or queues it. False: it is lost.
func (t *Transport) pass(p *peer, m *raftpb.Message) bool {
	o := &p.out
	raw := o.raw.Load()
	if raw == nil || o.waiting.Load() > 0 || dataOf(m) > firstBytes {
		return t.enqueue(p, m)
	}
	var err error
	if o.buffer, err = appendMessage(o.buffer[:0], m); err != nil {
		return false
	}
	n, err := writeSome(*raw, o.buffer)
	switch {
	case err != nil: // the watcher of the connection sees it as well, and ends it
		return false
	case n < len(o.buffer):
		o.waiting.Add(1)
		p.queue <- queued{rest: append([]byte(nil), o.buffer[n:]...), of: raw} // it has room: nothing waits
	}
	t.sent.Add(1)
	return true
}
