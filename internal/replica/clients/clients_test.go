package clients

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/relay"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// open opens the listeners of a node that serves MQTT in one place.
func open(t *testing.T, change ...func(*Options)) *Clients {
	t.Helper()
	url, err := listen.ParseURL("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Listeners: []listen.Config{{URL: url, Anonymous: true}}, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&o)
	}
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// serve takes the clients of the only place, as a server does.
func serve(t *testing.T, c *Clients) *listen.Listener {
	t.Helper()
	l, err := c.Listen(0, c.o.Listeners[0], listen.Options{
		Handshakes: sockets.NewHandshakes(10), Turns: transport.NewTurns(1), Timeout: patience, Logger: c.o.Logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dial is a client of a node.
func dial(t *testing.T, c *Clients) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// connect is the CONNECT of a client: the relay holds and passes on what begins with one.
var connect = []byte("\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01c")

// accepted is the next client that a server gets, once its first byte has come.
func accepted(t *testing.T, l *listen.Listener) net.Conn {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if b, err := bufio.NewReader(conn).ReadByte(); err != nil || b != connect[0] {
		t.Fatalf("the server reads %x, %v", b, err)
	}
	return conn
}

// two are the listeners of a node that leads and of one that follows it.
func two(t *testing.T) (leads, follows *Clients) {
	t.Helper()
	return twoOver(t, nil)
}

// twoOver is two, with TLS between the nodes.
func twoOver(t *testing.T, config *tls.Config) (leads, follows *Clients) {
	t.Helper()
	secured := func(o *Options) { o.Dialer = port.NewDialer(config, o.Logger) }
	leads, follows = open(t, secured), open(t, secured)
	p, err := port.Listen(port.Options{Address: "127.0.0.1:0", TLS: config, Logger: leads.o.Logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	p.Handle(Magic, leads.Receive)
	p.Serve()
	leads.relay.Follow(relay.Leader{Term: 1})
	follows.relay.Follow(relay.Leader{Term: 1, Address: p.Addr().String()})
	return leads, follows
}

// The server of the node that leads gets the clients of both nodes, each with its own address;
// when it has ended, the next server of the same place gets them.
func TestTheLeadersServerGetsTheClientsOfAllNodes(t *testing.T) {
	t.Parallel()
	leads, follows := two(t)
	for range 2 {
		l := serve(t, leads)
		for _, c := range []*Clients{leads, follows} {
			client := dial(t, c)
			if _, err := client.Write(connect); err != nil {
				t.Fatal(err)
			}
			at := accepted(t, l)
			if got := at.RemoteAddr().String(); got != client.LocalAddr().String() {
				t.Errorf("a client has the address %s, want %s", got, client.LocalAddr())
			}
			if _, err := at.Write([]byte("answer")); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 6)
			if _, err := io.ReadFull(client, got); err != nil || string(got) != "answer" {
				t.Errorf("the client reads %q, %v", got, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The server reads and writes a client that comes over TLS between nodes without waiting, as it does
// one of its own: what both send arrives, also when neither reads for a while, and so does the end.
func TestClientsOverTLSBetweenNodes(t *testing.T) {
	t.Parallel()
	leads, follows := twoOver(t, certstest.New(t).Node())
	l := serve(t, leads)
	client := dial(t, follows)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	copy(sent, connect)
	go func() {
		if _, err := client.Write(sent); err != nil {
			_ = l.Close() // the follower has closed the connection, so Accept would wait for ever
		}
	}()
	at, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := transport.NewConn(at, nil, transport.Options{})
	defer c.Close()
	if !c.Encrypted() {
		t.Error("the connection has no raw path")
	}
	var got []byte
	for len(got) < len(sent) {
		if err := c.Fill(0); err != nil {
			t.Fatalf("after %d bytes: %v", len(got), err)
		}
		got = append(got, c.Buffered()...)
		c.Discard(len(c.Buffered()))
	}
	c.Lock()
	c.Append(got)
	c.Unlock()
	c.Flush()
	back := make([]byte, len(sent))
	if _, err := io.ReadFull(client, back); err != nil || !bytes.Equal(back, sent) {
		t.Errorf("what comes back is not what was sent: %v", err)
	}
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := c.Fill(0); !errors.Is(err, io.EOF) {
		t.Errorf("at the client's end: %v", err)
	}
	c.Shut(patience)
	if rest, err := io.ReadAll(client); err != nil || len(rest) > 0 {
		t.Errorf("at the server's end: %d bytes, %v", len(rest), err)
	}
}

// A node that does not serve in a place tells the node that passes a client on, and closes the
// connection.
func TestAClientThatIsNotTaken(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]int{"no server": 0, "no such place": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t)
			ours, theirs := net.Pipe()
			defer ours.Close()
			go c.Receive(theirs)
			_ = ours.SetDeadline(time.Now().Add(patience))
			client := netip.MustParseAddrPort("192.0.2.7:50000")
			if _, err := ours.Write(proxy.Append(nil, proxy.Header{Client: client, Listener: place}, netip.MustParseAddrPort("192.0.2.8:7001"))); err != nil {
				t.Fatal(err)
			}
			// One byte says no, and then the connection ends.
			if got, err := io.ReadAll(ours); err != nil || len(got) != 1 || got[0] != '-' {
				t.Errorf("the node that passes it on reads %x, %v", got, err)
			}
		})
	}
}
