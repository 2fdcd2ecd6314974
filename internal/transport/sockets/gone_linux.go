package sockets

import (
	"net"

	"golang.org/x/sys/unix"
)

// Gone says whether the peer has closed the connection, also behind bytes that it has sent
// before and that wait to be read. It does not wait, and reads nothing.
func Gone(nc net.Conn) (closed bool) {
	raw := Raw(below(nc))
	if raw == nil {
		return false
	}
	if AtEnd(raw) {
		return true
	}
	err := raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		closed = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return closed || err != nil
}
