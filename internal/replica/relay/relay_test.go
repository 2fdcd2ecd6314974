package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// long is a hold that no test outlasts.
const long = time.Hour

// node is a leader of a test: it takes clients, and the test speaks with them.
type node struct {
	t       *testing.T
	net     net.Listener
	clients chan received
	serves  bool
	before  func() // called before a client is taken
}

type received struct {
	*net.TCPConn
	proxy.Header
}

func newNode(t *testing.T, change ...func(*node)) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, net: l, clients: make(chan received, 20_000), serves: true, before: func() {}}
	for _, c := range change {
		c(n)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { n.take(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return n
}

func (n *node) take(c net.Conn) {
	err := Receive(c, func(h proxy.Header) func() {
		n.before()
		if !n.serves {
			return nil
		}
		return func() { n.clients <- received{c.(*net.TCPConn), h} }
	})
	if err != nil {
		c.Close()
	}
}

func (n *node) leads(term uint64) Leader { return Leader{Term: term, Address: n.net.Addr().String()} }

// client waits for the next client.
func (n *node) client() received {
	n.t.Helper()
	select {
	case c := <-n.clients:
		n.t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(patience))
		return c
	case <-time.After(patience):
		n.t.Fatal("no client has come")
		return received{}
	}
}

// follower is a relay with one socket.
type follower struct {
	*Relay
	*Socket
	t        *testing.T
	accepted chan *net.TCPConn // this node's end of each client
}

// noting notes what it accepts.
type noting struct {
	net.Listener
	accepted chan *net.TCPConn
}

func (n noting) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		n.accepted <- c.(*net.TCPConn)
	}
	return c, err
}

func newFollower(t *testing.T, url string, change ...func(*Options)) *follower {
	t.Helper()
	o := Options{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		Hold: long, Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&o)
	}
	u, err := listen.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, Relay: New(o), accepted: make(chan *net.TCPConn, 20_000)}
	f.Socket = f.Relay.Listen(noting{l, f.accepted}, listen.Config{URL: u})
	t.Cleanup(func() { _ = f.Relay.Close() })
	return f
}

func holdFor(d time.Duration) func(*Options) { return func(o *Options) { o.Hold = d } }

func (f *follower) dial() *net.TCPConn {
	f.t.Helper()
	c, err := net.Dial("tcp", f.Socket.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it was not so in time: %s", what)
		}
	}
}

func send(t *testing.T, c io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, c io.Reader, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v, want %q", got[:n], err, text)
	}
}

// expectEnd reads until the connection has ended, by FIN or by RST, and wants no bytes.
func expectEnd(t *testing.T, c io.Reader) {
	t.Helper()
	b, err := io.ReadAll(c)
	if len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %q, %v, want the end", b, err)
	}
}

func TestClientIsPassedOnToTheLeader(t *testing.T) {
	t.Parallel()
	f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
	f.Follow(n.leads(1))
	c := f.dial()
	send(t, c, "hello")
	at := n.client()
	expect(t, at, "hello")
	send(t, at, "welcome")
	expect(t, c, "welcome")
	if at.Client.String() != c.LocalAddr().String() || at.Listener != 0 {
		t.Errorf("the leader is told of %v", at.Header)
	}
	if s := f.Figures(); s.Passing != 1 || s.Held != 0 || s.Passed != 1 {
		t.Errorf("figures: %+v", s)
	}
	c.Close()
	expectEnd(t, at)
	at.Close()
	await(t, "the connection is over", func() bool { return f.Figures().Passing == 0 })
}

func TestClientsAreHeldUntilThereIsALeader(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "127.0.0.1:1883")
	c := f.dial()
	send(t, c, "hello")
	await(t, "it is held", func() bool { return f.Figures().Held == 1 })
	notYet := newNode(t, func(n *node) { n.serves = false })
	asked := make(chan struct{}, 1000)
	notYet.before = func() { asked <- struct{}{} }
	f.Follow(notYet.leads(1))
	<-asked
	<-asked // it is asked again
	n := newNode(t)
	f.Follow(n.leads(2))
	expect(t, n.client(), "hello")
	if s := f.Figures(); s.Held != 0 || s.Passing != 1 {
		t.Errorf("figures: %+v", s)
	}
}

func TestConnectionsToAFormerLeaderAreClosed(t *testing.T) {
	t.Parallel()
	f, first, second := newFollower(t, "127.0.0.1:1883"), newNode(t), newNode(t)
	f.Follow(first.leads(1))
	c := f.dial()
	send(t, c, "hello")
	at := first.client()
	expect(t, at, "hello")

	f.Follow(Leader{Term: 2}) // unknown: it may be the same
	send(t, c, "still there")
	expect(t, at, "still there")
	f.Follow(first.leads(1))
	send(t, c, "and now")
	expect(t, at, "and now")

	f.Follow(second.leads(2))
	expectEnd(t, c)
	expectEnd(t, at)
	c = f.dial()
	send(t, c, "again")
	expect(t, second.client(), "again")

	f.Follow(second.leads(3)) // it has lost its office in between
	expectEnd(t, c)
}

func TestConnectionsAreClosedWhenNoLeaderComes(t *testing.T) {
	t.Parallel()
	f, n := newFollower(t, "127.0.0.1:1883", holdFor(50*time.Millisecond)), newNode(t)
	var c *net.TCPConn
	var at received
	for at.TCPConn == nil { // on a slow machine the client may be refused before
		c = f.dial()
		f.Follow(n.leads(1))
		send(t, c, "hello")
		select {
		case at = <-n.clients:
		case <-time.After(5 * time.Second):
		}
	}
	defer at.Close()
	f.Follow(Leader{Term: 2})
	expectEnd(t, c)
}

// What a client of each version gets when no leader comes.
func TestRefusals(t *testing.T) {
	t.Parallel()
	var waiting sync.WaitGroup
	for name, test := range map[string]struct{ url, sends, want string }{
		"MQTT 5":            {"mqtt://127.0.0.1:1883", "\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc", "\x20\x03\x00\x88\x00"},
		"MQTT 3.1.1":        {"mqtt://127.0.0.1:1883", "\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc", "\x20\x02\x00\x03"},
		"MQTT 3.1":          {"mqtt://127.0.0.1:1883", "\x10\x11\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x03abc", "\x20\x02\x00\x03"},
		"a long CONNECT":    {"mqtt://127.0.0.1:1883", "\x10\xff\xff\x02\x00\x04MQTT\x05\x02\x00", "\x20\x03\x00\x88\x00"},
		"another packet":    {"mqtt://127.0.0.1:1883", "\xc0\x00", ""},
		"another level":     {"mqtt://127.0.0.1:1883", "\x10\x10\x00\x04MQTT\x06\x02\x00\x3c\x00\x00\x03abc", ""},
		"half a CONNECT":    {"mqtt://127.0.0.1:1883", "\x10\x10\x00\x04MQ", ""},
		"nothing":           {"mqtt://127.0.0.1:1883", "", ""},
		"over TLS":          {"mqtts://127.0.0.1:8883", "\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc", ""},
		"over WebSocket":    {"ws://127.0.0.1:9001", "GET / HTTP/1.1\r\n\r\n", ""},
		"an endless length": {"mqtt://127.0.0.1:1883", "\x10\xff\xff\xff\xff\xff\xff\xff", ""},
	} {
		f := newFollower(t, test.url, holdFor(3*time.Second)) // by when a busy machine has sent the bytes
		c := f.dial()
		if test.sends != "" {
			send(t, c, test.sends)
		}
		waiting.Go(func() { // all at the same time
			got, err := io.ReadAll(c)
			if string(got) != test.want || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: got % x, %v, want % x", name, got, err, test.want)
			}
			if f.Figures().Refused != 1 {
				t.Errorf("%s: figures: %+v", name, f.Figures())
			}
		})
	}
	waiting.Wait()
}

// die ends a client's connection, by FIN or RST, and waits until this node has seen that.
func (f *follower) die(c *net.TCPConn, linger int) {
	f.t.Helper()
	if linger == 0 {
		_ = c.SetLinger(0)
	}
	c.Close()
	here := <-f.accepted
	await(f.t, "the end of the client has arrived", func() bool { return sockets.Gone(here) })
}

// A client that has died while it was held is not delivered: its CONNECT would end the
// connection that it has made elsewhere since.
func TestClientThatDiesWhileItIsHeldIsNotDelivered(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("here it is not seen behind bytes that wait")
	}
	for name, linger := range map[string]int{"FIN": -1, "RST": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
			dead := f.dial()
			send(t, dead, "dead")
			await(t, "it is held", func() bool { return f.Figures().Held == 1 })
			f.die(dead, linger)
			f.Follow(n.leads(1))
			await(t, "it has vanished", func() bool { return f.Figures().Vanished == 1 })
			send(t, f.dial(), "alive")
			expect(t, n.client(), "alive")
		})
	}
}

// Nor is one that dies while the leader is asked.
func TestClientThatDiesWhileTheLeaderIsAskedIsNotDelivered(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("here it is not seen behind bytes that wait")
	}
	asked, answer := make(chan struct{}), make(chan struct{})
	n := newNode(t, func(n *node) {
		n.before = func() {
			asked <- struct{}{}
			<-answer
		}
	})
	f := newFollower(t, "127.0.0.1:1883")
	f.Follow(n.leads(1))
	dead := f.dial()
	send(t, dead, "dead")
	<-asked
	f.die(dead, -1)
	answer <- struct{}{}
	expectEnd(t, n.client())
	if s := f.Figures(); s.Vanished != 1 || s.Passed != 0 {
		t.Errorf("figures: %+v", s)
	}
}

func TestAMillionBytesBothWays(t *testing.T) {
	t.Parallel()
	f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
	f.Follow(n.leads(1))
	c := f.dial()
	send(t, c, ".")
	at := n.client()
	expect(t, at, ".")
	up, down := make([]byte, 1_000_000), make([]byte, 1_000_000)
	_, _ = rand.Read(up)
	_, _ = rand.Read(down)
	var both sync.WaitGroup
	for _, way := range []struct {
		from, to *net.TCPConn
		bytes    []byte
	}{{c, at.TCPConn, up}, {at.TCPConn, c, down}} {
		both.Go(func() {
			if _, err := way.from.Write(way.bytes); err != nil {
				t.Error(err)
			}
			_ = way.from.CloseWrite()
		})
		both.Go(func() {
			got, err := io.ReadAll(way.to)
			if err != nil || !bytes.Equal(got, way.bytes) {
				t.Errorf("%d bytes have arrived, %v", len(got), err)
			}
		})
	}
	both.Wait()
	await(t, "the connection is over", func() bool { return f.Figures().Passing == 0 })
}

// The side that has ended its output still gets that of the other one.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"client", "leader"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
			f.Follow(n.leads(1))
			c := f.dial()
			send(t, c, ".")
			at := n.client()
			expect(t, at, ".")
			one, other := c, at.TCPConn
			if first == "leader" {
				one, other = other, one
			}
			send(t, one, "last words")
			_ = one.CloseWrite()
			all, err := io.ReadAll(other)
			if string(all) != "last words" || err != nil {
				t.Fatalf("read %q, %v", all, err)
			}
			send(t, other, "farewell")
			_ = other.CloseWrite()
			all, err = io.ReadAll(one)
			if string(all) != "farewell" || err != nil {
				t.Fatalf("read %q, %v", all, err)
			}
		})
	}
}

// A client that does not read makes the leader wait, and loses nothing.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
	f.Follow(n.leads(1))
	c := f.dial()
	send(t, c, ".")
	at := n.client()
	expect(t, at, ".")
	const most = 256 << 20 // what no kernel takes
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	sent := 0
	for sent < most {
		_ = at.SetWriteDeadline(time.Now().Add(2 * time.Second))
		k, err := at.Write(chunk)
		sent += k
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			break
		}
	}
	if sent >= most {
		t.Fatalf("%d bytes were taken for a client that does not read", sent)
	}
	_ = at.CloseWrite()
	_ = c.SetDeadline(time.Now().Add(patience))
	var got int
	b := make([]byte, 1<<20)
	for {
		k, err := c.Read(b)
		for i := range k {
			if b[i] != "0123456789abcdef"[(got+i)%16] {
				t.Fatalf("byte %d is another one", got+i)
			}
		}
		got += k
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got != sent {
		t.Errorf("%d bytes of %d have arrived", got, sent)
	}
}

// A leader that closes ends the connection although the client sends on.
func TestLeaderCloses(t *testing.T) {
	t.Parallel()
	f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
	f.Follow(n.leads(1))
	c := f.dial()
	send(t, c, ".")
	at := n.client()
	expect(t, at, ".")
	at.Close()
	expectEnd(t, c)
	await(t, "the connection is over", func() bool {
		_, _ = c.Write([]byte("more"))
		return f.Figures().Passing == 0
	})
}

// While this node leads, its server has the connections as they are.
func TestLead(t *testing.T) {
	t.Parallel()
	f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
	early := f.dial()
	send(t, early, "early")
	await(t, "it is held", func() bool { return f.Figures().Held == 1 })
	l := f.Lead()
	for _, text := range []string{"early", "new"} {
		if text == "new" {
			send(t, f.dial(), text)
		}
		at, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if sockets.Raw(at) == nil {
			t.Errorf("a %T was accepted, which has no fast path", at)
		}
		expect(t, at, text)
		at.Close()
	}
	ended := make(chan error)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	_ = l.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	f.Follow(n.leads(2))
	send(t, f.dial(), "later")
	expect(t, n.client(), "later")
	again := f.Lead()
	send(t, f.dial(), "once more")
	at, err := again.Accept()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, at, "once more")
	at.Close()
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 10
	f, n := newFollower(t, "127.0.0.1:1883", func(o *Options) { o.MaxConnections, o.farewell = most, time.Millisecond }), newNode(t)
	for i := range most {
		send(t, f.dial(), "x")
		await(t, "it is held", func() bool { return f.Figures().Held == int64(i+1) })
	}
	expectEnd(t, f.dial())
	f.Follow(n.leads(1))
	for range most {
		expect(t, n.client(), "x")
	}
	expectEnd(t, f.dial())
	if s := f.Figures(); s.Beyond != 2 || s.Passing != most || s.Held != 0 {
		t.Errorf("figures: %+v", s)
	}
	f.SetMaxConnections(most + 1)
	send(t, f.dial(), "x")
	expect(t, n.client(), "x")
	expectEnd(t, f.dial())
	if s := f.Figures(); s.Beyond != 3 || s.Passing != most+1 || s.MaxConnections != most+1 {
		t.Errorf("with room for one more, the figures are %+v", s)
	}
}

// At the bound of connections a newcomer is held, one above it is told the reason that the leader
// would give. Clients that say nothing have no more than the places for farewells.
func TestNewcomersBeyondTheBound(t *testing.T) {
	t.Parallel()
	one := func(patience time.Duration) func(*Options) {
		return func(o *Options) { o.MaxConnections, o.farewell = 1, patience }
	}
	for name, test := range map[string]struct {
		url, sends, want string
		patience         time.Duration
	}{
		"MQTT 5":         {"mqtt://127.0.0.1:1883", "\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc", "\x20\x03\x00\x97\x00", long},
		"MQTT 3.1.1":     {"mqtt://127.0.0.1:1883", "\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc", "\x20\x02\x00\x03", long},
		"another packet": {"mqtt://127.0.0.1:1883", "\xc0\x00", "", long},
		"nothing":        {"mqtt://127.0.0.1:1883", "", "", time.Millisecond},
		"over TLS":       {"mqtts://127.0.0.1:8883", "\x16\x03\x01", "", long},
	} {
		f := newFollower(t, test.url, one(test.patience))
		at := f.dial()
		await(t, "it is held", func() bool { return f.Figures().Held == 1 })
		above := f.dial()
		if test.sends != "" {
			_, _ = io.WriteString(above, test.sends) // where it is closed already
		}
		got, err := io.ReadAll(above)
		if string(got) != test.want || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got % x, %v, want % x", name, got, err, test.want)
		}
		if s := f.Figures(); s.Held != 1 || s.Beyond != 1 || s.MaxConnections != 1 {
			t.Errorf("%s: figures: %+v", name, s)
		}
		at.Close()
	}
	f := newFollower(t, "mqtt://127.0.0.1:1883", one(long))
	f.dial()
	await(t, "one is held", func() bool { return f.Figures().Held == 1 })
	for i := range maxFarewells {
		f.dial()
		await(t, "it is turned away", func() bool { return len(f.farewells) == i+1 })
	}
	expectEnd(t, f.dial())
	if s := f.Figures(); s.Held != 1 || s.Beyond != maxFarewells+1 {
		t.Errorf("figures: %+v", s)
	}
}

// Clients that do not read keep large buffers up to a bound in bytes. Connections beyond it, and
// those of TLS while they are idle, have small ones, and lose nothing.
func TestBuffersAreBounded(t *testing.T) {
	t.Parallel()
	const most, deaf, sent = 2 * bufferBytes, 5, 24 << 20
	f, n := newFollower(t, "127.0.0.1:1883", func(o *Options) { o.MaxBuffered = most }), newNode(t)
	f.Follow(n.leads(1))
	text := bytes.Repeat([]byte("0123456789abcdef"), sent/16)
	clients := make([]*net.TCPConn, deaf)
	ends := make([]received, deaf)
	var sending sync.WaitGroup
	for i := range clients {
		clients[i] = f.dial()
		send(t, clients[i], "x")
		ends[i] = n.client()
		expect(t, ends[i], "x")
		sending.Go(func() {
			if _, err := ends[i].Write(text); err != nil {
				t.Error(err)
			}
			_ = ends[i].CloseWrite()
		})
	}
	await(t, "clients that do not read have come to the bound", func() bool { return f.Figures().Buffered == most })
	for _, c := range clients {
		if used := f.Figures().Buffered; used > most {
			t.Errorf("%d bytes of buffers, the bound is %d", used, most)
		}
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, text) {
			t.Errorf("read %d bytes, %v; want the %d that were sent", len(got), err, len(text))
		}
		c.Close()
	}
	sending.Wait()
	for _, c := range ends {
		c.Close()
	}
	await(t, "the buffers are free", func() bool { s := f.Figures(); return s.Passing == 0 && s.Buffered == 0 })
}

func TestReadingPlainlyWaitsWithASmallBuffer(t *testing.T) {
	t.Parallel()
	s := supply{most: bufferBytes}
	here, there := net.Pipe()
	defer here.Close()
	waiting := make(chan *buffer)
	go func() {
		b, _ := s.readPlainly(here, false)
		waiting <- b
	}()
	send(t, there, "x")
	if b := <-waiting; b.n != 1 || len(b.bytes) != smallBytes || s.used.Load() != 0 {
		t.Errorf("read %d bytes into a buffer of %d", b.n, len(b.bytes))
	}
	go func() { _, _ = there.Write(make([]byte, 2*smallBytes)) }()
	b, err := s.readPlainly(here, true)
	if err != nil || b.n != 2*smallBytes || s.used.Load() != bufferBytes {
		t.Errorf("read %d bytes, %v, with %d bytes of buffers", b.n, err, s.used.Load())
	}
	s.free(b)
	there.Close()
	if b, err := s.readPlainly(here, true); b != nil || err == nil || s.used.Load() != 0 {
		t.Errorf("at the end: %v, %v, with %d bytes of buffers", b, err, s.used.Load())
	}
}

// Without descriptors the leader is not reached, and the client is told to come again.
func TestNoDescriptorForTheLeader(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "127.0.0.1:1883", holdFor(3*time.Second), func(o *Options) {
		o.Dial = func(context.Context, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		}
	})
	f.Follow(Leader{1, "127.0.0.1:1"})
	c := f.dial()
	send(t, c, "\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc")
	expect(t, c, "\x20\x03\x00\x88\x00")
	expectEnd(t, c)
}

// As many connections as the process may open take no descriptors but their sockets. It does
// not run in parallel with other tests, since it counts descriptors.
func TestConnectionsTakeNoOtherDescriptors(t *testing.T) {
	limit, known := sockets.DescriptorLimit()
	if runtime.GOOS != "linux" || !known {
		t.Skip("descriptors cannot be counted here")
	}
	const each = 4 // the client's end, two of the relay, the leader's end
	many := min(DefaultMaxConnections, limit/(each+1))
	f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
	f.Follow(n.leads(1))
	before := openDescriptors(t)
	clients := make([]*net.TCPConn, many)
	ends := make([]received, many)
	for i := range clients {
		clients[i] = f.dial()
		send(t, clients[i], "ping")
		ends[i] = n.client()
		expect(t, ends[i], "ping")
		send(t, ends[i], "pong")
		expect(t, clients[i], "pong")
	}
	if now := openDescriptors(t) - before; now > each*many+10 {
		t.Errorf("%d connections take %d descriptors", many, now)
	}
	f.CloseAll()
	await(t, "all connections are over", func() bool { return f.Figures().Passing == 0 })
	for _, c := range clients {
		c.Close()
	}
	for _, c := range ends {
		c.Close()
	}
	await(t, "all descriptors are closed", func() bool { return openDescriptors(t)-before < 10 })
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestReceiveRefusesWhoDoesNotSayWhoItIs(t *testing.T) {
	t.Parallel()
	for name, sends := range map[string]string{"LOCAL": "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00", "no header": "\x10\x10\x00\x04MQTT\x05\x02\x00\x3c", "nothing": ""} {
		conn := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader([]byte(sends)), io.Discard}
		err := Receive(conn, func(proxy.Header) func() {
			t.Errorf("%s: a client was taken", name)
			return nil
		})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	h := proxy.Header{Client: netip.MustParseAddrPort("192.0.2.7:1"), Listener: 2}
	var answer bytes.Buffer
	conn := struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(proxy.Append(nil, h, netip.MustParseAddrPort("192.0.2.1:7001"))), &answer}
	if err := Receive(conn, func(proxy.Header) func() { return nil }); !errors.Is(err, ErrNotTaken) || answer.String() != "-" {
		t.Errorf("answered %q, %v", answer.String(), err)
	}
}
