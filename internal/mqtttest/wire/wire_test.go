package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// pair is a connection and its other end, which writes what the test tells it.
func pair(t *testing.T, maxPacket int) (*Conn, net.Conn) {
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
	t.Cleanup(func() { near.Close(); far.Close() })
	return New(near, maxPacket), far
}

func TestPacketInParts(t *testing.T) {
	t.Parallel()
	c, server := pair(t, 100)
	go func() { _, _ = server.Write([]byte("\xd0\x00\x40\x02\x12")) }() // PINGRESP, and most of a PUBACK
	if p, err := c.Next(time.Time{}); err != nil || p.Header != 0xd0 || len(p.Body) != 0 {
		t.Fatalf("got %+v, %v", p, err)
	}
	if _, err := c.Next(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v, want the deadline", err)
	}
	go func() { _, _ = server.Write([]byte("\x34")); server.Close() }()
	if p, err := c.Next(time.Time{}); err != nil || !bytes.Equal(p.Bytes, []byte("\x40\x02\x12\x34")) || string(p.Body) != "\x12\x34" {
		t.Fatalf("got %+v, %v", p, err)
	}
	if _, err := c.Next(time.Time{}); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

func TestPacketOfTheLargestSizeAndOneAbove(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]error{10_000: nil, 10_001: ErrMalformed} {
		c, server := pair(t, 10_000)
		remaining := size - 3
		whole := append([]byte{0x30, byte(remaining%128) | 0x80, byte(remaining / 128)}, make([]byte, remaining)...)
		go func() { _, _ = server.Write(whole) }()
		p, err := c.Next(time.Time{})
		if !errors.Is(err, want) || want == nil && !bytes.Equal(p.Bytes, whole) {
			t.Errorf("%d bytes: got %d, %v; want %v", size, len(p.Bytes), err, want)
		}
	}
}
