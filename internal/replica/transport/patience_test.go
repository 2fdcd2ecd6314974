//go:build linux

package transport

import (
	"crypto/tls"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A connection gets its bound, below TLS as well. internal/crashtest/partition cuts links.
func TestBoundUnacknowledged(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	secured := tls.Client(conn, &tls.Config{ServerName: "node"})
	for _, test := range []struct {
		conn net.Conn
		most time.Duration
	}{{conn, 0}, {conn, 2 * time.Second}, {secured, 5 * time.Second}} {
		if err := boundUnacknowledged(test.conn, test.most); err != nil {
			t.Fatal(err)
		}
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); err != nil {
			t.Fatal(err)
		}
		if err != nil || got != int(test.most.Milliseconds()) {
			t.Errorf("%d ms, %v; want %v", got, err, test.most)
		}
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if err := boundUnacknowledged(a, time.Second); err != nil {
		t.Errorf("of what is no socket: %v", err)
	}
}
