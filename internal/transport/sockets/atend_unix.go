//go:build unix

package sockets

import "syscall"

// AtEnd says whether the peer has closed the connection, or it has failed, and nothing that
// was sent before waits to be read. It does not wait, and reads nothing.
func AtEnd(raw syscall.RawConn) (end bool) {
	err := raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		end = n == 0 && err == nil || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return end || err != nil
}
