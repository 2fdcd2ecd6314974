package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// What the leader answers to a header.
const (
	taken   = '+'
	notMine = '-' // it does not lead, or does not serve clients yet
)

// ErrNotTaken: the node does not take clients that others pass on.
var ErrNotTaken = errors.New("the node does not serve clients at the moment")

// connect asks a leader to take a client, until ctx or the time of a client ends.
func (r *Relay) connect(ctx context.Context, to Leader, h proxy.Header, end time.Time) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	select {
	case r.dials <- struct{}{}:
		defer func() { <-r.dials }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leader, err := r.o.Dial(ctx, to.Address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = leader.Close() })
	var answer [1]byte
	if _, err = leader.Write(proxy.Append(nil, h, addrPort(leader.RemoteAddr()))); err == nil {
		_, err = io.ReadFull(leader, answer[:])
	}
	if !stop() {
		return nil, ctx.Err() // leader is closed
	}
	if err == nil && answer[0] != taken {
		err = ErrNotTaken
	}
	if err != nil {
		return nil, errors.Join(err, leader.Close())
	}
	return leader, nil
}

// Receive takes a client that another node passes on. It reads from conn who the client is,
// and calls find, which says at the same time whether this node serves clients: it returns
// what is to be done with the connection, or nil. The caller bounds Receive in time by a
// deadline on conn, which take must remove; it closes conn if there is an error.
func Receive(conn io.ReadWriter, find func(h proxy.Header) (take func())) error {
	h, err := proxy.Read(conn)
	if err != nil {
		return err
	}
	if !h.Client.IsValid() {
		return errors.New("the node that passes a client on does not say who it is")
	}
	take := find(h)
	if take == nil {
		_, err = conn.Write([]byte{notMine})
		return errors.Join(ErrNotTaken, err)
	}
	if _, err := conn.Write([]byte{taken}); err != nil {
		return fmt.Errorf("a client that another node passes on: %w", err)
	}
	take()
	return nil
}

// passed is a connection that is passed on.
type passed struct {
	client, leader net.Conn
	to             Leader
	once           sync.Once
	ended          chan struct{} // closed by close
}

func (p *passed) close() {
	p.once.Do(func() {
		close(p.ended)
		_ = p.client.Close()
		_ = p.leader.Close()
	})
}

// pass carries bytes until both sides have ended, or the leader changes.
func (r *Relay) pass(client, leader net.Conn, to Leader) {
	p := &passed{client: client, leader: leader, to: to, ended: make(chan struct{})}
	defer p.close()
	r.mu.Lock()
	if r.closed || r.leader != to {
		r.mu.Unlock()
		return
	}
	r.passed[p] = struct{}{}
	r.mu.Unlock()
	up := make(chan struct{})
	go func() {
		defer failstop.End(r.o.Logger, "what a client sends, to the leader")
		defer close(up)
		if err := carry(&r.buffers, p.leader, p.client, nil); err != nil {
			p.close()
			return
		}
		_ = closeWrite(p.leader)
	}()
	if err := carry(&r.buffers, p.client, p.leader, p.leaderHasGone); err == nil {
		_ = closeWrite(p.client)
		_ = p.client.SetReadDeadline(time.Now().Add(afterEnd))
	} else {
		p.close()
	}
	<-up
	r.mu.Lock()
	delete(r.passed, p)
	r.mu.Unlock()
}

const (
	// afterEnd is how long a client may go on sending when the leader has ended.
	afterEnd = 5 * time.Second
	// lookPause is how often a client that does not read has the relay look whether the
	// leader is still there.
	lookPause = 10 * time.Second
)

// leaderHasGone says whether the leader has closed the connection, although what it has sent
// before is not read yet.
func (p *passed) leaderHasGone() bool { return sockets.Gone(p.leader) }

// carry copies, with buffers of s, until from ends (nil) or one of them fails. If hopeless is
// not nil, it is asked each time that to has taken nothing for lookPause; true ends the copy.
func carry(s *supply, to, from net.Conn, hopeless func() bool) error {
	src, dst := s.source(from), newSink(to, hopeless)
	for more := false; ; {
		b, err := src.next(more)
		if b != nil {
			more = b.n == len(b.bytes)
			werr := dst.write(b.bytes[:b.n])
			s.free(b)
			if werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// sink is where one direction of a connection goes to. One goroutine uses it.
type sink struct {
	conn     net.Conn
	hopeless func() bool
	raw      syscall.RawConn  // nil: the connection has no descriptor
	writable func(fd uintptr) // writeNow, made once: making it at each write would allocate
	left     []byte           // what writeNow has to write, and what it has left
	err      error            // result of the last writeNow
}

func newSink(conn net.Conn, hopeless func() bool) *sink {
	dst := &sink{conn: conn, hopeless: hopeless, raw: sockets.Raw(conn)}
	dst.writable = dst.writeNow
	return dst
}

// write writes all of b. Nearly always the socket takes it at once; only if it does not is
// there a deadline to set, and something to wait for.
func (dst *sink) write(b []byte) error {
	if dst.raw != nil {
		dst.left, dst.err = b, nil
		err := dst.raw.Control(dst.writable)
		b, dst.left = dst.left, nil
		if err == nil {
			err = dst.err
		}
		if err != nil || len(b) == 0 {
			return err
		}
	}
	return writePatiently(dst.conn, b, dst.hopeless)
}

// writeNow writes what the socket takes without a wait.
func (dst *sink) writeNow(fd uintptr) {
	n, _, err := nowait.Write(fd, dst.left)
	dst.left, dst.err = dst.left[n:], err
}

func writePatiently(dst net.Conn, b []byte, hopeless func() bool) error {
	if hopeless == nil {
		_, err := dst.Write(b)
		return err
	}
	for {
		_ = dst.SetWriteDeadline(time.Now().Add(lookPause))
		n, err := dst.Write(b)
		b = b[n:]
		var late net.Error
		switch {
		case err == nil:
			return dst.SetWriteDeadline(time.Time{})
		case errors.As(err, &late) && late.Timeout() && (n > 0 || !hopeless()):
			continue
		}
		return err
	}
}

// closeWrite tells the other side that nothing more comes.
func closeWrite(c net.Conn) error {
	if half, can := c.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return c.Close()
}
