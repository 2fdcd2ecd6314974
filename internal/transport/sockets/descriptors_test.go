package sockets

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
)

// from is a connection that says of itself where it comes from.
type from struct {
	net.Conn
	addr net.Addr
}

func (c from) RemoteAddr() net.Addr { return c.addr }

func TestDescriptorBounds(t *testing.T) {
	t.Parallel()
	abroad := from{addr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 5), Port: 4000}}
	here := from{addr: &net.TCPAddr{IP: net.IPv6loopback, Port: 4000}}
	through := from{addr: &net.UnixAddr{Net: "unix"}}
	var said bytes.Buffer
	b := &DescriptorBounds{Clients: 100, Loopback: 116, Logger: slog.New(slog.NewTextHandler(&said, nil))}
	for _, c := range []struct {
		name       string
		nc         net.Conn
		descriptor int
		want       bool
	}{
		{"the last for clients", abroad, 99, true},
		{"one above", abroad, 100, false},
		{"on this machine", here, 100, true},
		{"through a Unix socket", through, 115, true},
		{"one above that", here, 116, false},
		{"not known", abroad, -1, true},
	} {
		if got := b.admits(c.nc, c.descriptor, true); got != c.want {
			t.Errorf("%s: admitted %v", c.name, got)
		}
	}
	for range 1000 {
		b.admits(abroad, 1000, true)
	}
	if got := b.TurnedAway(); got != 1002 {
		t.Errorf("%d were turned away, want 1002", got)
	}
	if lines := strings.Count(said.String(), "\n"); lines != 1 {
		t.Errorf("it said %d lines:\n%s", lines, said.String())
	}
}

// What is beyond the bounds is closed, and the rest is passed on as it is.
func TestListenerWithinDescriptorBounds(t *testing.T) {
	t.Parallel()
	if _, known := DescriptorLimit(); !known {
		t.Skip("there is no limit here")
	}
	for _, bound := range []int{0, 1 << 20} {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b := &DescriptorBounds{Clients: bound, Loopback: bound, Logger: slog.New(slog.DiscardHandler)}
		l := b.Listener(inner, true)
		accepted := make(chan net.Conn, 1)
		go func() {
			nc, _ := l.Accept()
			accepted <- nc
		}()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if bound == 0 {
			if _, err := client.Read(make([]byte, 1)); err == nil {
				t.Error("a connection beyond the bounds stays open")
			}
			inner.Close()
			if nc := <-accepted; nc != nil || b.TurnedAway() != 1 {
				t.Errorf("accepted %v, %d turned away", nc, b.TurnedAway())
			}
		} else {
			nc := <-accepted
			if _, plain := nc.(*net.TCPConn); !plain {
				t.Errorf("accepted a %T, whose descriptor the fast path doesn't use", nc)
			}
			nc.Close()
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Error(err)
			}
			inner.Close()
		}
		client.Close()
	}
}
