package client

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// Socket is a bare TCP socket without a goroutine or a buffer: what ten thousand
// connections are made of. Its calls block, for at most Patience.
type Socket struct {
	Fd   int
	rest []byte // of a packet whose end has not come yet
}

// DialSocket connects a socket to an IPv4 address.
func DialSocket(addr string) (*Socket, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket (see ulimit -n): %w", err)
	}
	timeout := unix.NsecToTimeval(Patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	if err == nil {
		err = connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Socket{Fd: fd}, nil
}

// connect connects, and if a signal (Go's own, to preempt) interrupts that, waits
// until it is done: a second call would be wrong.
func connect(fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	if err != unix.EINTR {
		return err
	}
	for wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}; ; {
		if n, err := unix.Poll(wait, int(Patience.Milliseconds())); err != unix.EINTR {
			if n == 0 && err == nil {
				err = unix.ETIMEDOUT
			}
			if err != nil {
				return err
			}
			break
		}
	}
	failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && failed != 0 {
		err = unix.Errno(failed)
	}
	return err
}

// Close closes the socket.
func (s *Socket) Close() { unix.Close(s.Fd) }

// Write writes all of b.
func (s *Socket) Write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(s.Fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Read reads once and calls packet for each whole packet. EAGAIN means that
// nothing is there.
func (s *Socket) Read(scratch []byte, packet func(header byte, body []byte)) error {
	kept := copy(scratch, s.rest)
	n, err := unix.Read(s.Fd, scratch[kept:])
	switch {
	case err == unix.EINTR:
		return nil
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	unread := scratch[:kept+n]
	for {
		header, body, n := wire.Split(unread)
		if n == 0 {
			break
		}
		packet(header, body)
		unread = unread[n:]
	}
	s.rest = append(s.rest[:0], unread...)
	return nil
}

// Await reads until n packets have come.
func (s *Socket) Await(scratch []byte, n int) error {
	for n > 0 {
		if err := s.Read(scratch, func(byte, []byte) { n-- }); err != nil {
			return err
		}
	}
	return nil
}

// CloseSockets closes all of them.
func CloseSockets(all []*Socket) {
	for _, s := range all {
		s.Close()
	}
}
