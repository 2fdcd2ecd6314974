//go:build unix

package relay

import (
	"net"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// peek gives what a client has sent, up to peeked bytes, and leaves it to be read.
func peek(c net.Conn) []byte {
	raw := sockets.Raw(c)
	if raw == nil {
		return nil
	}
	b := make([]byte, peeked)
	n := 0
	_ = raw.Control(func(fd uintptr) {
		n, _, _ = syscall.Recvfrom(int(fd), b, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return b[:max(n, 0)]
}

// awaitBytes waits until there is something to read, the peer has closed the connection, or its
// deadline has come.
func awaitBytes(c net.Conn) {
	raw := sockets.Raw(c)
	if raw == nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return err != syscall.EAGAIN && err != syscall.EINTR
	})
}
