package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

const (
	// maxOutput bounds the data that wait for the connection, in bytes.
	maxOutput = 256 << 10
	// maxBacklog bounds them together with other frames. Only a peer that reads nothing gets
	// a link there.
	maxBacklog = 4 << 20
	readBuffer = 64 << 10

	writeTimeout = 10 * time.Second
	pingPause    = time.Second
	silence      = 10 * time.Second
)

// ErrClosed is what the streams of a link end with that this side has closed.
var ErrClosed = errors.New("mux: the link is closed")

// What ends a link.
var (
	errPeerSilent = errors.New("mux: nothing was heard of the other side for too long")
	errPeerDeaf   = errors.New("mux: the other side does not read")
)

// Unread counts the buffers in which streams have bytes for their readers, of all links that share
// it: a buffer counts with its size, however few bytes are in it.
type Unread struct {
	Most int64 // bytes
	held atomic.Int64
}

// Held is how many bytes the buffers have.
func (u *Unread) Held() int64 { return u.held.Load() }

func (u *Unread) take(n int) bool {
	if u.held.Add(int64(n)) <= u.Most {
		return true
	}
	u.held.Add(-int64(n))
	return false
}

// Options of a Link.
type Options struct {
	// Accept is called with each stream that the other side opens, on the goroutine that reads
	// the link, and must not wait for a stream. An error refuses the stream, and the other side
	// gets its text. nil: this side opens the streams.
	Accept     func(s *Stream, about []byte) error
	MaxStreams int // that are open at a time; needed
	// Unread bounds what streams without a Receiver hold. A stream that finds no room ends. Needed
	// with Accept.
	Unread *Unread
	// Ended is called once when the link has ended, and all its streams with it.
	Ended func(err error)
	// Left is called on the goroutine that reads the link, and must not wait, when the other side
	// takes no more streams on it. nil: nothing happens.
	Left   func()
	Logger *slog.Logger // needed
}

// Link is a connection with its streams. Its methods are safe for concurrent use. End it with
// Close, or its goroutines and its connection stay.
type Link struct {
	conn net.Conn
	o    Options

	mu      lockrank.Mutex[lockrank.MuxLink]
	work    sync.Cond          // on mu: out is not empty, or err is not nil
	out     []byte             // mu: frames that wait for the connection
	idle    bool               // mu: the writer waits
	streams map[uint32]*Stream // mu
	stuck   []*Stream          // mu: they wait for room in out
	last    uint32             // mu: the number of the newest stream
	leaving bool               // mu: no more streams begin
	err     error              // mu: why the link has ended; nil: it has not

	ended   chan struct{} // closed by fail
	running sync.WaitGroup
}

// New makes a link of a connection that has been greeted, and owns it from then on.
func New(conn net.Conn, o Options) *Link {
	l := &Link{conn: conn, o: o, streams: map[uint32]*Stream{}, ended: make(chan struct{})}
	l.work.L = &l.mu
	l.running.Add(3)
	go l.serve("the reader of a link", l.read)
	go l.serve("the writer of a link", l.write)
	go l.serve("the pings of a link", l.ping)
	return l
}

func (l *Link) serve(what string, do func()) {
	defer failstop.End(l.o.Logger, what)
	do()
	l.running.Done()
}

// ErrLeaving: the side that takes the streams of the link takes no more of them. It has seen
// nothing of the stream; another link may take it.
var ErrLeaving = errors.New("mux: no more streams begin on this link")

// Leave says that this side takes no more streams. Those that there are go on.
func (l *Link) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leaving {
		l.leaving = true
		l.append(kindLeave, 0, nil)
	}
}

// Open begins a stream, on which nothing may be written before Stream.AwaitTaken has returned. about
// is for the other side's Accept; r, whose methods are called on the goroutine that reads the link,
// gets what the other side sends. It fails with ErrLeaving if the other side takes no more.
func (l *Link) Open(about []byte, r Receiver) (*Stream, error) {
	if len(about) > MaxOpen {
		return nil, fmt.Errorf("mux: a stream is described by %d bytes, at most %d are possible", len(about), MaxOpen)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return nil, l.err
	case l.leaving:
		return nil, ErrLeaving
	case len(l.streams) >= l.o.MaxStreams:
		return nil, fmt.Errorf("mux: the link has %d streams, as many as it may", l.o.MaxStreams)
	case l.last == 1<<32-1:
		return nil, errors.New("mux: the link has no numbers for streams any more")
	}
	l.last++
	s := newStream(l, l.last, r)
	l.streams[s.id] = s
	l.append(kindOpen, s.id, about)
	return s, nil
}

// Streams is how many there are.
func (l *Link) Streams() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// Close ends the link and its streams, and waits for its goroutines. Ended is called as at any
// other end.
func (l *Link) Close() {
	l.fail(ErrClosed)
	l.running.Wait()
}

// append has the writer send a frame. Needs the lock.
func (l *Link) append(k kind, stream uint32, payload []byte) {
	if l.err != nil {
		return
	}
	l.out = appendFrame(l.out, k, stream, payload)
	if l.idle {
		l.idle = false
		l.work.Signal()
	}
}

func (l *Link) write() {
	var sending []byte
	for {
		l.mu.Lock()
		waited := false
		for len(l.out) == 0 && l.err == nil {
			l.idle, waited = true, true
			l.work.Wait()
		}
		if waited && l.err == nil {
			// Other goroutines that can run append their frames first, so that one system
			// call writes those of many streams.
			l.mu.Unlock()
			runtime.Gosched()
			l.mu.Lock()
		}
		if l.err != nil {
			l.mu.Unlock()
			return
		}
		if cap(sending) > 2*maxOutput {
			sending = nil
		}
		sending, l.out = l.out, sending[:0]
		l.idle = false
		stuck := l.stuck
		l.stuck = nil
		for _, s := range stuck {
			s.stuck = false
			s.writable.Broadcast()
		}
		l.mu.Unlock()
		_ = l.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := l.conn.Write(sending); err != nil {
			l.fail(err)
			return
		}
	}
}

// ping lets the other side know that this one is there.
func (l *Link) ping() {
	tick := time.NewTicker(pingPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ended:
			return
		}
		l.mu.Lock()
		if len(l.out) == 0 {
			l.append(kindPing, 0, nil)
		}
		backlog := len(l.out)
		l.mu.Unlock()
		if backlog > maxBacklog {
			l.fail(errPeerDeaf)
		}
	}
}

func (l *Link) read() {
	buffer := make([]byte, readBuffer)
	r, w := 0, 0
	for {
		_ = l.conn.SetReadDeadline(time.Now().Add(silence))
		n, err := l.conn.Read(buffer[w:])
		w += n
		for err == nil {
			f, size, bad := split(buffer[r:w])
			if bad == nil && size > 0 {
				bad = l.handle(f)
			}
			if bad != nil {
				err = bad
			}
			if size == 0 {
				break
			}
			r += size
		}
		if err != nil {
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				err = errPeerSilent
			} else if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			l.fail(err)
			return
		}
		w = copy(buffer, buffer[r:w]) // less than a frame, which is smaller than the buffer
		r = 0
	}
}

// handle does what a frame says.
func (l *Link) handle(f frame) error {
	switch f.kind {
	case kindPing:
		return nil
	case kindOpen:
		return l.accept(f)
	case kindLeave:
		return l.left()
	}
	l.mu.Lock()
	s, known := l.streams[f.stream], f.stream <= l.last
	taken := s != nil && s.taken
	if f.kind == kindTake && s != nil {
		s.taken = true
		s.writable.Broadcast()
	}
	if f.kind == kindCredit && s != nil {
		more := binary.BigEndian.Uint32(f.payload)
		if more > Window || s.credit+int(more) > Window {
			l.mu.Unlock()
			return fmt.Errorf("%w: credit beyond the window", errFrame)
		}
		s.credit += int(more)
		s.writable.Broadcast()
	}
	if f.kind == kindClose && s != nil {
		s.refusal = strings.ToValidUTF8(string(f.payload), "?")
		l.forget(s)
	}
	l.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("%w: stream %d was never opened", errFrame, f.stream)
	case s == nil: // it has ended
		return nil
	case f.kind == kindData:
		return s.deliver(f.payload)
	case f.kind == kindClose:
		end := io.EOF
		if len(f.payload) > 0 {
			end = errors.New(s.refusal)
		}
		s.end(end, taken)
	}
	return nil
}

// left notes that the other side takes no more streams.
func (l *Link) left() error {
	if l.o.Accept != nil {
		return fmt.Errorf("%w: this side opens no streams", errFrame)
	}
	l.mu.Lock()
	l.leaving = true
	l.mu.Unlock()
	if l.o.Left != nil {
		l.o.Left()
	}
	return nil
}

// accept takes in a stream, or refuses it.
func (l *Link) accept(f frame) error {
	l.mu.Lock()
	if l.o.Accept == nil || f.stream <= l.last {
		l.mu.Unlock()
		return fmt.Errorf("%w: stream %d cannot be opened", errFrame, f.stream)
	}
	if len(l.out) > maxBacklog { // each stream has an answer
		l.mu.Unlock()
		return errPeerDeaf
	}
	l.last = f.stream
	if l.leaving {
		l.append(kindClose, f.stream, []byte(ErrLeaving.Error()))
		l.mu.Unlock()
		return nil
	}
	if len(l.streams) >= l.o.MaxStreams {
		l.append(kindClose, f.stream, []byte("the server has as many connections of fronts as it may"))
		l.mu.Unlock()
		return nil
	}
	s := newStream(l, f.stream, nil)
	l.streams[s.id] = s
	l.mu.Unlock()
	if err := l.o.Accept(s, f.payload); err != nil {
		s.CloseWith(err.Error())
		return nil
	}
	l.mu.Lock()
	s.taken = true
	l.append(kindTake, f.stream, nil)
	l.mu.Unlock()
	return nil
}

// forget drops a stream that has ended. Needs the lock.
func (l *Link) forget(s *Stream) {
	s.closed = true
	delete(l.streams, s.id)
	s.writable.Broadcast()
}

// fail ends the link.
func (l *Link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	streams := make(map[*Stream]bool, len(l.streams)) // whether it was taken
	for _, s := range l.streams {
		streams[s] = s.taken
	}
	for s := range streams {
		l.forget(s)
	}
	l.out, l.stuck = nil, nil
	close(l.ended)
	l.work.Broadcast()
	l.mu.Unlock()
	_ = l.conn.Close()
	for s, taken := range streams {
		s.end(fmt.Errorf("the connection to the other program: %w", err), taken)
	}
	if l.o.Ended != nil {
		l.o.Ended(err)
	}
}
