package mux

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const patience = 30 * time.Second

// pair is a link between two programs: front opens streams, and node takes them.
type pair struct {
	t           *testing.T
	front, node *Link
	came        chan *Stream // at the node
	nodeEnded   chan error
	frontEnded  chan error
	unread      *Unread
	wire        net.Conn // the front's end
}

func connected(t *testing.T, change func(node *Options)) *pair {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, came: make(chan *Stream, 100), nodeEnded: make(chan error, 1), frontEnded: make(chan error, 1), unread: &Unread{Most: 1 << 20}, wire: near}
	o := Options{MaxStreams: 100, Unread: p.unread, Logger: slog.New(slog.DiscardHandler), Ended: func(err error) { p.nodeEnded <- err },
		Accept: func(s *Stream, about []byte) error {
			if string(about) == "unwanted" {
				return errors.New("this one is not wanted")
			}
			p.came <- s
			return nil
		}}
	if change != nil {
		change(&o)
	}
	p.node = New(far, o)
	p.front = New(near, Options{MaxStreams: 1000, Logger: o.Logger, Ended: func(err error) { p.frontEnded <- err }})
	t.Cleanup(func() { p.front.Close(); p.node.Close() })
	return p
}

// collector is a Receiver that keeps what comes, and grants it if it is told so.
type collector struct {
	mu     sync.Mutex
	change sync.Cond
	got    bytes.Buffer
	ended  error
	stream *Stream // that is granted what comes; nil: nothing is granted
}

func newCollector() *collector {
	c := &collector{}
	c.change.L = &c.mu
	return c
}

func (c *collector) Data(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got.Write(p)
	c.change.Broadcast()
	if c.stream != nil {
		c.stream.Grant(len(p))
	}
}

func (c *collector) Ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err
	c.change.Broadcast()
}

// await waits until so.
func (c *collector) await(so func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !so() {
		c.change.Wait()
	}
}

func (p *pair) open(r Receiver) (front, node *Stream) {
	p.t.Helper()
	front, err := p.front.Open([]byte("a client"), r)
	if err != nil {
		p.t.Fatal(err)
	}
	select {
	case node = <-p.came:
	case <-time.After(patience):
		p.t.Fatal("no stream came")
	}
	if err := front.AwaitTaken(); err != nil {
		p.t.Fatal(err)
	}
	return front, node
}

func TestStreamsCarryBytesBothWays(t *testing.T) {
	t.Parallel()
	p := connected(t, nil)
	// Given many streams, whose other ends send back what comes,
	sent := bytes.Repeat([]byte("0123456789abcdef"), 20<<10) // 20 windows
	var all sync.WaitGroup
	for range 20 {
		c := newCollector()
		front, node := p.open(c)
		c.mu.Lock()
		c.stream = front
		c.mu.Unlock()
		go func() {
			_, _ = io.Copy(node, node)
			_ = node.Close()
		}()
		// When each sends far more than a window,
		all.Go(func() {
			if n, err := front.Write(sent); n != len(sent) || err != nil {
				t.Errorf("wrote %d: %v", n, err)
			}
			// Then all of it comes back.
			c.await(func() bool { return c.got.Len() >= len(sent) })
			if !bytes.Equal(c.got.Bytes(), sent) {
				t.Error("other bytes have come back")
			}
			_ = front.Close()
		})
	}
	all.Wait()
	for end := time.Now().Add(patience); p.front.Streams()+p.node.Streams() > 0; {
		if time.Now().After(end) {
			t.Fatal("streams that have ended are still there")
		}
		time.Sleep(time.Millisecond)
	}
	if n := p.unread.Held(); n != 0 {
		t.Errorf("%d bytes are held for nothing", n)
	}
}

// A stream whose reader does not read takes a window, and holds up no other stream.
func TestAStreamThatIsNotReadTakesAWindow(t *testing.T) {
	t.Parallel()
	p := connected(t, nil)
	front, node := p.open(newCollector())
	if n, err := front.TryWrite(make([]byte, 2*Window)); n != Window || err != nil {
		t.Fatalf("wrote %d bytes: %v", n, err)
	}
	if n, err := front.TryWrite([]byte{1}); n != 0 || err != nil {
		t.Errorf("wrote %d bytes beyond the window: %v", n, err)
	}
	other, far := p.open(newCollector())
	if _, err := other.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	// And the other way round.
	if n, err := node.TryWrite(make([]byte, 2*Window)); n != Window || err != nil {
		t.Errorf("the node wrote %d bytes: %v", n, err)
	}
	// When half a window is read, as much can be written.
	if _, err := io.ReadFull(node, make([]byte, Window/2)); err != nil {
		t.Fatal(err)
	}
	if n, err := front.Write(make([]byte, Window/2)); n != Window/2 || err != nil {
		t.Errorf("wrote %d: %v", n, err)
	}
	if n, err := front.TryWrite([]byte{1}); n != 0 || err != nil {
		t.Errorf("wrote %d bytes beyond the window: %v", n, err)
	}
}

func TestStreamsEndWithAReason(t *testing.T) {
	t.Parallel()
	p := connected(t, nil)
	front, node := p.open(newCollector())
	_, _ = front.Write([]byte("last words"))
	front.CloseWith("the client was silent")
	got, err := io.ReadAll(node)
	if string(got) != "last words" || err == nil || err.Error() != "the client was silent" {
		t.Errorf("%q, %v", got, err)
	}
	if !node.PeerGone() {
		t.Error("the node does not see that the other side has gone")
	}
	if _, err := front.Write([]byte{1}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}

	c := newCollector()
	_, node = p.open(c)
	_ = node.Close()
	c.await(func() bool { return c.ended != nil })
	if c.ended != io.EOF {
		t.Errorf("ended by %v", c.ended)
	}

	unwanted, err := p.front.Open([]byte("unwanted"), newCollector())
	if err != nil {
		t.Fatal(err)
	}
	if err := unwanted.AwaitTaken(); err == nil || errors.Is(err, ErrLeaving) || !strings.HasSuffix(err.Error(), ": this one is not wanted") {
		t.Errorf("not taken because of %v", err)
	}
}

// A side that takes no more streams says so. A stream that is under way then can be opened on
// another link; those that there are go on.
func TestALinkOnWhichNoMoreStreamsBegin(t *testing.T) {
	t.Parallel()
	underway, proceed := make(chan struct{}), make(chan struct{})
	came := make(chan *Stream, 1)
	p := connected(t, func(o *Options) {
		o.Accept = func(s *Stream, about []byte) error {
			if string(about) == "a client" {
				came <- s
				return nil
			}
			close(underway)
			<-proceed
			return errors.New("its server has ended")
		}
	})
	p.came = came
	front, node := p.open(newCollector())
	late, err := p.front.Open([]byte("late"), newCollector())
	if err != nil {
		t.Fatal(err)
	}
	<-underway
	p.node.Leave()
	close(proceed)
	if err := late.AwaitTaken(); !errors.Is(err, ErrLeaving) {
		t.Errorf("the stream that was under way: %v", err)
	}
	if _, err := p.front.Open([]byte("one more"), newCollector()); !errors.Is(err, ErrLeaving) {
		t.Errorf("one more: %v", err)
	}
	if _, err := front.Write([]byte("go on")); err != nil {
		t.Fatal(err)
	}
	if b := make([]byte, 5); true {
		if _, err := io.ReadFull(node, b); err != nil || string(b) != "go on" {
			t.Errorf("%q, %v", b, err)
		}
	}
	// When the link ends before the other side has answered, another one may take the stream, too.
	over := make(chan struct{})
	q := connected(t, func(o *Options) {
		o.Accept = func(*Stream, []byte) error { <-over; return nil }
	})
	t.Cleanup(func() { close(over) }) // before the links are closed
	unanswered, err := q.front.Open(nil, newCollector())
	if err != nil {
		t.Fatal(err)
	}
	q.front.Close()
	if err := unanswered.AwaitTaken(); !errors.Is(err, ErrLeaving) {
		t.Errorf("the stream of a link that has ended: %v", err)
	}
}

func TestCloseEndsAWriteThatWaits(t *testing.T) {
	t.Parallel()
	p := connected(t, nil)
	front, _ := p.open(newCollector())
	failed := make(chan error)
	go func() {
		_, err := front.Write(make([]byte, 2*Window))
		failed <- err
	}()
	for n := -1; n != 0; { // until the window is used up
		p.front.mu.Lock()
		n = front.credit
		p.front.mu.Unlock()
	}
	_ = front.Close()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestReadDeadline(t *testing.T) {
	t.Parallel()
	p := connected(t, nil)
	_, node := p.open(newCollector())
	for _, in := range []time.Duration{-time.Hour, 10 * time.Millisecond} {
		_ = node.SetReadDeadline(time.Now().Add(in))
		if _, err := node.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v: %v", in, err)
		}
	}
}

func TestBoundOfStreams(t *testing.T) {
	t.Parallel()
	p := connected(t, func(o *Options) { o.MaxStreams = 3 })
	first, _ := p.open(newCollector())
	p.open(newCollector())
	p.open(newCollector())
	beyond, err := p.front.Open([]byte("one more"), newCollector())
	if err != nil {
		t.Fatal(err)
	}
	if err := beyond.AwaitTaken(); err == nil || !strings.Contains(err.Error(), "as many connections") {
		t.Errorf("%v", err)
	}
	_ = first.Close()
	p.open(newCollector())
}

// The buffers of all links' streams together are no more than they may be; the stream that would go
// beyond ends, and the others go on.
func TestBoundOfUnreadBytes(t *testing.T) {
	t.Parallel()
	p := connected(t, nil)
	p.unread.Most = Window
	first, firstNode := p.open(newCollector())
	if _, err := first.Write(make([]byte, Window)); err != nil { // at the bound
		t.Fatal(err)
	}
	if _, err := io.ReadFull(firstNode, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	beyond := newCollector()
	second, secondNode := p.open(beyond)
	_, _ = second.Write(make([]byte, 2))
	beyond.await(func() bool { return beyond.ended != nil })
	if !strings.Contains(beyond.ended.Error(), "no memory") {
		t.Errorf("%v", beyond.ended)
	}
	if _, err := secondNode.Read(make([]byte, 1)); err == nil {
		t.Error("the node reads from a stream that has ended")
	}
	if n, err := io.ReadFull(firstNode, make([]byte, Window-1)); err != nil {
		t.Errorf("the other stream: %d, %v", n, err)
	}
	if n := p.unread.Held(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

func TestALinkThatEnds(t *testing.T) {
	t.Parallel()
	p := connected(t, nil)
	c := newCollector()
	front, node := p.open(c)
	p.node.Close()
	if _, err := node.Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("the node's stream: %v", err)
	}
	c.await(func() bool { return c.ended != nil })
	if _, err := front.Write([]byte{1}); err == nil {
		t.Error("a write to a link that has ended")
	}
	if _, err := p.front.Open(nil, c); err == nil {
		t.Error("a stream of a link that has ended")
	}
	<-p.frontEnded
	<-p.nodeEnded
}

// A peer that breaks the rules loses its link.
func TestFramesThatBreakTheRules(t *testing.T) {
	t.Parallel()
	tooMuch := appendFrame(appendFrame(nil, kindOpen, 1, nil), kindData, 1, make([]byte, Window))
	for name, frames := range map[string][]byte{
		"an unknown type":          {99, 0, 0, 0, 1, 0, 0},
		"more than the window":     appendFrame(tooMuch, kindData, 1, []byte{1}),
		"data of no stream":        appendFrame(nil, kindData, 7, []byte{1}),
		"a stream for a 2nd time":  appendFrame(appendFrame(nil, kindOpen, 1, nil), kindOpen, 1, nil),
		"credit beyond the window": appendFrame(appendFrame(nil, kindOpen, 1, nil), kindCredit, 1, []byte{0, 0, 0, 1}),
		"credit without a number":  appendFrame(appendFrame(nil, kindOpen, 1, nil), kindCredit, 1, nil),
		"a ping of a stream":       appendFrame(nil, kindPing, 1, nil),
		"an empty frame of data":   appendFrame(appendFrame(nil, kindOpen, 1, nil), kindData, 1, nil),
		"a long reason":            appendFrame(appendFrame(nil, kindOpen, 1, nil), kindClose, 1, make([]byte, maxReason+1)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := connected(t, nil)
			if _, err := p.wire.Write(frames); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-p.nodeEnded:
				if !errors.Is(err, errFrame) {
					t.Errorf("%v", err)
				}
			case <-time.After(patience):
				t.Error("the link goes on")
			}
		})
	}
}

// A peer that opens streams and does not read what becomes of them loses its link before the answers take
// more memory than they may.
func TestBoundOfAnswers(t *testing.T) {
	t.Parallel()
	const reason = 200 // bytes
	front, node := net.Pipe()
	answers := 0
	ended := make(chan error, 1)
	l := New(node, Options{
		Accept: func(*Stream, []byte) error {
			answers++
			return errors.New(strings.Repeat("r", reason))
		},
		MaxStreams: 10, Unread: &Unread{Most: Window}, Logger: slog.New(slog.DiscardHandler),
		Ended: func(err error) { ended <- err },
	})
	t.Cleanup(func() {
		_ = front.Close()
		l.Close()
	})
	for id := uint32(1); ; {
		var frames []byte
		for range 1000 {
			frames = appendFrame(frames, kindOpen, id, nil)
			id++
		}
		if _, err := front.Write(frames); err != nil {
			break
		}
	}
	if err := <-ended; !errors.Is(err, errPeerDeaf) {
		t.Error(err)
	}
	// The writer holds what it took before it began to wait for the peer.
	if most := 2 + 2*maxBacklog/(headerSize+reason); answers > most {
		t.Errorf("%d answers, want %d at most", answers, most)
	}
}

// What is sent and read on a stream allocates nothing.
func TestAllocations(t *testing.T) {
	p := connected(t, nil)
	front, node := p.open(newCollector())
	request, got := []byte("a request"), make([]byte, 100)
	round := func() {
		if _, err := front.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := node.Read(got); err != nil {
			t.Fatal(err)
		}
	}
	round()
	if n := testing.AllocsPerRun(500, round); n >= 1 {
		t.Errorf("%v allocations for each request", n)
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(appendFrame(nil, kindOpen, 1, []byte("about")))
	f.Add(appendFrame(nil, kindCredit, 3, []byte{0, 0, 1, 0}))
	f.Add([]byte{2, 0, 0, 0, 1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, p []byte) {
		frame, n, err := split(p)
		if err != nil || n == 0 {
			return
		}
		if again := appendFrame(nil, frame.kind, frame.stream, frame.payload); !bytes.Equal(again, p[:n]) {
			t.Errorf("%x is read from %x", again, p[:n])
		}
	})
}
