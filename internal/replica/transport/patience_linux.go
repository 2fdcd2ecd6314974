package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged has the system end a connection when the other side has acknowledged nothing of
// what was sent for so long. Without a bound it tries again at ever longer intervals, so that after
// a cut of the network the connection would carry nothing for as long again as the cut has lasted,
// and then messages that are old.
func boundUnacknowledged(conn net.Conn, most time.Duration) error {
	if over, is := conn.(interface{ NetConn() net.Conn }); is { // TLS
		conn = over.NetConn()
	}
	socket, is := conn.(syscall.Conn)
	if !is {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(most.Milliseconds()))
	}); err != nil {
		return err
	}
	return set
}
