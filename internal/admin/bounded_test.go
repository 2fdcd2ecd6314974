package admin

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Requests are served on up to MaxConnections connections at a time, and one more is closed.
func TestConnectionsThatServeAreBounded(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var turned atomic.Int64
	end := make(chan struct{})
	began := make(chan struct{}, MaxConnections)
	server := &http.Server{
		ConnContext: withConn, ConnState: noteIdle,
		Handler: serving(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			began <- struct{}{}
			<-end
		})),
	}
	go server.Serve(&bounded{Listener: tcp, turned: &turned, waiting: sockets.NewHandshakes(MaxWaiting)})
	t.Cleanup(func() { _ = server.Close() })
	ask := func() net.Conn {
		nc, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		_ = nc.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		return nc
	}
	answer := func(nc net.Conn) (string, error) { return bufio.NewReader(nc).ReadString('\n') }

	var open []net.Conn
	for range MaxConnections {
		open = append(open, ask())
		<-began
	}
	if line, err := answer(ask()); err == nil {
		t.Errorf("one connection more was answered: %q", line)
	}
	if n := turned.Load(); n != 1 {
		t.Errorf("%d connections were turned away, want 1", n)
	}
	close(end)
	for i, nc := range open {
		if line, err := answer(nc); err != nil || line != "HTTP/1.1 200 OK\r\n" {
			t.Errorf("connection %d: %q, %v", i+1, line, err)
		}
	}
}
