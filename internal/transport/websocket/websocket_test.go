package websocket

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/coder/websocket"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// patience bounds every wait of the tests; nothing is timed by it.
const patience = time.Minute

func listen(t testing.TB, o Options) *Listener {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	l, err := Listen("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mqttDial(header http.Header) *websocket.DialOptions {
	return &websocket.DialOptions{Subprotocols: []string{"mqtt"}, HTTPHeader: header}
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	loopback := listen(t, Options{})
	strict := listen(t, Options{AllowOrigins: []string{"app.example.com"}})
	schemed := listen(t, Options{AllowOrigins: []string{"https://*.example.com"}})
	open := listen(t, Options{AllowOrigins: []string{"*"}})
	origin := func(o string) http.Header { return http.Header{"Origin": {o}} }
	for _, c := range []struct {
		name   string
		l      *Listener
		path   string
		o      *websocket.DialOptions
		status int
	}{
		{"the root", loopback, "/", mqttDial(nil), 101},
		{"any path", loopback, "/some/where", mqttDial(nil), 101},
		{"one of several subprotocols", loopback, "/mqtt", &websocket.DialOptions{Subprotocols: []string{"mqttv3.1", "mqtt"}}, 101},
		{"no subprotocol", loopback, "/mqtt", nil, 400}, // [MQTT-6.0.0-3]
		{"another subprotocol", loopback, "/mqtt", &websocket.DialOptions{Subprotocols: []string{"chat"}}, 400},
		{"a page on loopback", loopback, "/", mqttDial(origin("http://localhost:3000")), 403},
		{"a page whose name leads to loopback", loopback, "/", mqttDial(origin("http://" + loopback.Addr().String())), 403},
		{"a page without a name", loopback, "/", mqttDial(origin("null")), 403},
		{"no page", strict, "/", mqttDial(nil), 101},
		{"an allowed page", strict, "/", mqttDial(origin("https://app.example.com")), 101},
		{"an allowed page with its scheme", schemed, "/", mqttDial(origin("https://app.example.com")), 101},
		{"the same page without TLS", schemed, "/", mqttDial(origin("http://app.example.com")), 403},
		{"a foreign page", strict, "/", mqttDial(origin("https://evil.example.com")), 403},
		{"any page when all are allowed", open, "/", mqttDial(origin("https://evil.example.com")), 101},
	} {
		ws, resp, err := websocket.Dial(context.Background(), "ws://"+c.l.Addr().String()+c.path, c.o)
		if resp == nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v, %v; want %d", c.name, resp, err, c.status)
		}
		if err != nil {
			continue
		}
		if ws.Subprotocol() != "mqtt" {
			t.Errorf("%s: subprotocol %q", c.name, ws.Subprotocol())
		}
		nc, err := c.l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		sockets.Close(nc)
		ws.CloseNow()
	}
}

func TestPlainRequestIsToldWhatThisIs(t *testing.T) {
	t.Parallel()
	l := listen(t, Options{})
	resp, err := http.Get("http://" + l.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestTextFrameCloses(t *testing.T) {
	t.Parallel()
	l := listen(t, Options{})
	ctx := context.Background()
	ws, _, err := websocket.Dial(ctx, "ws://"+l.Addr().String(), mqttDial(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close(nc)
	ws.Write(ctx, websocket.MessageText, []byte("hello"))
	if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, ErrTextFrame) { // [MQTT-6.0.0-1]
		t.Errorf("Read = %v", err)
	}
	if _, _, err := ws.Reader(ctx); websocket.CloseStatus(err) != websocket.StatusUnsupportedData {
		t.Errorf("the peer got %v", err)
	}
}

// A client that says nothing is cut off, and does not keep others out for ever.
func TestHandshakeIsBounded(t *testing.T) {
	t.Parallel()
	l := listen(t, Options{HandshakeTimeout: 20 * time.Millisecond, Handshakes: sockets.NewHandshakes(1)})
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	silent.SetDeadline(time.Now().Add(patience))
	silent.Write([]byte("GET / HTTP/1.1\r\n"))
	if _, err := io.ReadAll(bufio.NewReader(silent)); err != nil && !isReset(err) {
		t.Fatalf("the silent client was not cut off: %v", err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		ws, _, err := websocket.Dial(context.Background(), "ws://"+l.Addr().String(), mqttDial(nil))
		if err == nil {
			ws.CloseNow()
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the place does not become free again: %v", err)
		}
	}
}

// Handshakes that don't end keep no other client out: the oldest goes.
func TestUnfinishedHandshakesKeepNoClientOut(t *testing.T) {
	t.Parallel()
	const most = 20
	l := listen(t, Options{HandshakeTimeout: patience, Handshakes: sockets.NewHandshakes(most)})
	var silent []net.Conn
	for range 3 * most {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte("GET / HTTP/1.1\r\n"))
		silent = append(silent, c)
	}
	ws, _, err := websocket.Dial(context.Background(), "ws://"+l.Addr().String(), mqttDial(nil))
	if err != nil {
		t.Fatalf("%d unfinished handshakes keep another client out: %v", len(silent), err)
	}
	ws.CloseNow()
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest handshake was not ended: %v", err)
	}
}

func isReset(err error) bool { return strings.Contains(err.Error(), "reset") }

func TestListenerClose(t *testing.T) {
	t.Parallel()
	l := listen(t, Options{})
	accepted := make(chan error, 1)
	go func() { _, err := l.Accept(); accepted <- err }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-accepted:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept = %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Accept still waits")
	}
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("still listening")
	}
}

func TestFramesWithoutDataAreSlowedBeyondABurst(t *testing.T) {
	t.Parallel()
	var p idleFrames
	now := time.Now()
	for i := range idleBurst {
		if p.tooFast(now) {
			t.Fatalf("ping %d of a burst of %d is too fast", i+1, idleBurst)
		}
	}
	if p.tooFast(now); !p.tooFast(now) {
		t.Fatal("pings beyond the burst are not slowed")
	}
	for i := range 1000 {
		now = now.Add(2 * idleInterval)
		if p.tooFast(now) && i > 2 {
			t.Fatalf("a ping each %v is slowed", 2*idleInterval)
		}
	}
}

// A connection that ends without a goodbye, as most do that break, leaves nothing behind.
func TestClosedConnectionIsFreed(t *testing.T) {
	t.Parallel()
	l := listen(t, Options{})
	for name, end := range map[string]func(accepted net.Conn, client *websocket.Conn){
		"closed by the server": func(accepted net.Conn, _ *websocket.Conn) { sockets.Close(accepted) },
		"closed by the client": func(accepted net.Conn, client *websocket.Conn) {
			client.CloseNow()
			if _, err := accepted.Read(make([]byte, 1)); err == nil {
				t.Error("a read from a connection that its client has closed succeeds")
			}
			sockets.Close(accepted)
		},
	} {
		client, _, err := websocket.Dial(context.Background(), "ws://"+l.Addr().String(), mqttDial(nil))
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		kept := weak.Make(accepted.(*conn).ws)
		end(accepted, client)
		accepted = nil
		for deadline := time.Now().Add(patience); kept.Value() != nil; runtime.GC() {
			if time.Now().After(deadline) {
				t.Errorf("%s: the connection is still in memory", name)
				break
			}
		}
		client.CloseNow()
	}
}

// A byte of data excuses the bytes that a frame of its own takes, and not thousands of empty frames
// before it.
func TestDataExcusesFewOtherBytes(t *testing.T) {
	t.Parallel()
	c := new(handshakeConn)
	for range 1000 { // fragments of a byte, each with its head and mask
		c.silent.Add(7)
		c.noteData(1)
	}
	if n := c.silent.Load(); n != 0 {
		t.Errorf("fragments of a byte count as %d bytes without data", n)
	}
	c.silent.Add(idleBytes + bytesPerData + 1)
	if c.noteData(1); c.silent.Load() <= idleBytes {
		t.Error("a byte of data excuses all bytes before it")
	}
}
