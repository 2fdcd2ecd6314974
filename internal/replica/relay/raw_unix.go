//go:build unix

package relay

import (
	"io"
	"net"
	"os"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// readSome waits until there is something to read, and only then takes a buffer for it. The
// buffer is nil if nothing was read; otherwise the caller frees it. more says that the read
// before has filled its buffer.
func (s *supply) readSome(src net.Conn, more bool) (b *buffer, err error) {
	raw := sockets.Raw(src)
	if raw == nil {
		return s.readPlainly(src, more)
	}
	var result error
	err = raw.Read(func(fd uintptr) bool {
		b = s.take()
		for {
			b.n, result = syscall.Read(int(fd), b.bytes)
			if result != syscall.EINTR {
				break
			}
		}
		if result == nil && b.n > 0 {
			return true
		}
		s.free(b)
		b = nil
		return result != syscall.EAGAIN
	})
	switch {
	case err != nil:
	case result != nil:
		err = os.NewSyscallError("read", result)
	case b == nil:
		err = io.EOF
	}
	return b, err
}

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
