package relay

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// gone says whether the peer has closed the connection, also behind bytes that it has sent
// before and that wait to be read.
func gone(c net.Conn) (closed bool) {
	raw := sockets.Raw(socketOf(c))
	if raw == nil {
		return false
	}
	if goneByPeek(raw) {
		return true
	}
	err := raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		closed = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return closed || err != nil
}
