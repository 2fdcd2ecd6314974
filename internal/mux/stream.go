package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Receiver gets what the other side sends on a stream. Its methods are called one after the
// other and must not wait.
type Receiver interface {
	// Data are a view. The receiver calls Stream.Grant when it has used them.
	Data(p []byte)
	// Ended is called once, unless this side has closed the stream before, or the other one has
	// not taken it, which Stream.AwaitTaken says. err is io.EOF for an end as agreed.
	Ended(err error)
}

// Stream is one stream of a link. Without a Receiver it is a net.Conn that its reader goroutine
// reads; writes are possible from any goroutine.
type Stream struct {
	link     *Link
	id       uint32
	receiver Receiver // nil: the stream is read

	// Guarded by link.mu.
	credit   int
	stuck    bool   // it is in link.stuck
	closed   bool   // this side or the other one has closed it
	taken    bool   // the other side has taken it; on that side, it has said so
	refusal  string // why the other side has closed it
	writable sync.Cond

	mu       lockrank.Mutex[lockrank.MuxStream]
	readable sync.Cond // on mu
	in       []byte    // mu: a buffer of the pools; nil: nothing is unread
	r        int       // mu: how much of in was read
	unread   int       // mu: bytes that came and were not granted again
	owed     int       // mu: of unread, those that were read
	ended    error     // mu: nothing comes any more
	deadline time.Time // mu
	timer    *time.Timer
}

var _ net.Conn = (*Stream)(nil)

func newStream(l *Link, id uint32, r Receiver) *Stream {
	s := &Stream{link: l, id: id, receiver: r, credit: Window}
	s.writable.L, s.readable.L = &l.mu, &s.mu
	return s
}

// deliver takes data that have come.
func (s *Stream) deliver(p []byte) error {
	s.mu.Lock()
	if s.unread += len(p); s.unread > Window {
		s.mu.Unlock()
		return errFrame
	}
	if s.receiver != nil {
		ended := s.ended != nil
		s.mu.Unlock()
		if !ended {
			s.receiver.Data(p)
		}
		return nil
	}
	if s.ended != nil {
		s.mu.Unlock()
		return nil
	}
	if !s.hold(p) {
		s.mu.Unlock()
		const reason = "the server has no memory for what its clients send"
		s.end(errors.New(reason), true)
		s.CloseWith(reason)
		return nil
	}
	s.readable.Broadcast()
	s.mu.Unlock()
	return nil
}

// hold keeps p for the reader; false: there is no room for a buffer. Needs the lock.
func (s *Stream) hold(p []byte) bool {
	if held := len(s.in) - s.r; cap(s.in)-len(s.in) < len(p) {
		b := s.in
		if cap(b) < held+len(p) {
			size := bufferSize(held + len(p))
			if !s.link.o.Unread.take(size - cap(b)) {
				return false
			}
			b = takeBuffer(size)
		}
		b = b[:held]
		copy(b, s.in[s.r:])
		if cap(b) != cap(s.in) {
			freeBuffer(s.in)
		}
		s.in, s.r = b, 0
	}
	s.in = append(s.in, p...)
	return true
}

// end notes that nothing comes any more. taken: the receiver is told.
func (s *Stream) end(err error, taken bool) {
	s.mu.Lock()
	first := s.ended == nil
	if first {
		s.ended = err
		s.readable.Broadcast()
	}
	s.mu.Unlock()
	if first && taken && s.receiver != nil {
		s.receiver.Ended(err)
	}
}

// errNotTaken: the other side does not want the stream, or this one has closed it.
var errNotTaken = errors.New("mux: the other side has not taken the stream")

// AwaitTaken waits until the other side has taken a stream that this side has opened, or has
// not. The error is ErrLeaving if another link may take it, and has the other side's reason otherwise.
func (s *Stream) AwaitTaken() error {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for !s.taken && !s.closed {
		s.writable.Wait()
	}
	switch {
	case s.taken:
		return nil
	case l.leaving || l.err != nil:
		return ErrLeaving
	}
	return fmt.Errorf("%w: %s", errNotTaken, s.refusal)
}

// Await waits until Read does not, and says whether it had to.
func (s *Stream) Await() (waited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in == nil && s.ended == nil && !s.expired() {
		waited = true
		s.readable.Wait()
	}
	return waited
}

// expired says whether the deadline has passed. Needs the lock.
func (s *Stream) expired() bool { return !s.deadline.IsZero() && !time.Now().Before(s.deadline) }

// Read implements net.Conn.
func (s *Stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	for s.in == nil && s.ended == nil && !s.expired() {
		s.readable.Wait()
	}
	var n int
	var err error
	switch {
	case s.expired():
		err = os.ErrDeadlineExceeded
	case s.in == nil:
		err = s.ended
	default:
		n = copy(p, s.in[s.r:])
		if s.r += n; s.r == len(s.in) {
			s.release()
		}
		s.owed += n
	}
	s.mu.Unlock()
	if n > 0 {
		s.Grant(0)
	}
	return n, err
}

// release frees the buffer. Needs the lock.
func (s *Stream) release() {
	s.link.o.Unread.held.Add(-int64(cap(s.in)))
	freeBuffer(s.in)
	s.in, s.r = nil, 0
}

// Grant says that n more bytes of what has come are used. The other side is told when it has
// half a window to send.
func (s *Stream) Grant(n int) {
	s.mu.Lock()
	s.owed += n
	more := 0
	if s.owed >= Window/2 {
		more = s.owed
		s.owed, s.unread = 0, s.unread-more
	}
	s.mu.Unlock()
	if more == 0 {
		return
	}
	var payload [4]byte
	binary.BigEndian.PutUint32(payload[:], uint32(more))
	s.link.mu.Lock()
	if !s.closed {
		s.link.append(kindCredit, s.id, payload[:])
	}
	s.link.mu.Unlock()
}

// TryWrite writes what the other side has given credit for and the link has room for, without
// waiting; 0 without an error: nothing.
func (s *Stream) TryWrite(p []byte) (int, error) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.tryWrite(p)
}

func (s *Stream) tryWrite(p []byte) (int, error) {
	l := s.link
	switch {
	case l.err != nil:
		return 0, l.err
	case s.closed:
		return 0, net.ErrClosed
	}
	room := maxOutput - len(l.out)
	if room <= 0 && !s.stuck {
		s.stuck = true
		l.stuck = append(l.stuck, s)
	}
	n := max(0, min(len(p), s.credit, room))
	if n > 0 {
		s.credit -= n
		l.append(kindData, s.id, p[:n])
	}
	return n, nil
}

// Write implements net.Conn. It waits for credit and for room.
func (s *Stream) Write(p []byte) (written int, err error) {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(p) > 0 {
		n, err := s.tryWrite(p)
		written += n
		if err != nil {
			return written, err
		}
		if p = p[n:]; n == 0 {
			s.writable.Wait()
		}
	}
	return written, nil
}

// Close ends the stream behind what was written.
func (s *Stream) Close() error {
	s.CloseWith("")
	return nil
}

// CloseWith is Close with a reason, which the other side's reader gets as an error.
func (s *Stream) CloseWith(reason string) {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	l := s.link
	l.mu.Lock()
	if !s.closed {
		l.forget(s)
		l.append(kindClose, s.id, []byte(reason))
	}
	l.mu.Unlock()
	s.mu.Lock()
	if s.ended == nil {
		s.ended = net.ErrClosed
	}
	if s.in != nil {
		s.release()
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.readable.Broadcast()
	s.mu.Unlock()
}

// CloseNow is Close: nothing that was written before waits for the other side.
func (s *Stream) CloseNow() error { return s.Close() }

// PeerGone says whether the other side has ended the stream and everything that it had sent
// before was read.
func (s *Stream) PeerGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended != nil && s.in == nil
}

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if left := time.Until(t); !t.IsZero() && left > 0 {
		s.timer = time.AfterFunc(left, func() {
			s.mu.Lock()
			s.readable.Broadcast()
			s.mu.Unlock()
		})
	}
	s.readable.Broadcast()
	return nil
}

// SetWriteDeadline does nothing: Close ends a write that waits.
func (s *Stream) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline is SetReadDeadline.
func (s *Stream) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// LocalAddr is that of the link.
func (s *Stream) LocalAddr() net.Addr { return s.link.conn.LocalAddr() }

// RemoteAddr is that of the link.
func (s *Stream) RemoteAddr() net.Addr { return s.link.conn.RemoteAddr() }
