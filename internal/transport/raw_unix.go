//go:build unix

package transport

import (
	"io"
	"net"
	"os"
	"syscall"
)

// rawConn returns the way to nc's file descriptor, or nil for the plain path.
//
// Only the two types themselves qualify. A type that merely embeds one of them
// also has a SyscallConn method, but its Read and Write may do more than the
// socket's (count, decrypt, replay), and going around them would lose that.
func rawConn(nc net.Conn) syscall.RawConn {
	var sc syscall.Conn
	switch nc := nc.(type) {
	case *net.TCPConn:
		sc = nc
	case *net.UnixConn:
		sc = nc
	default:
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil // closed already: the plain path meets the error and reports it
	}
	return raw
}

// readOnce reads what is there. again: nothing is there yet.
func readOnce(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = readNow(fd, p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, true, nil
		case err != nil:
			return 0, false, os.NewSyscallError("read", err)
		case n == 0:
			return 0, false, io.EOF
		}
		return n, false, nil
	}
}

// writeOnce writes what the socket takes now. again: it takes nothing.
func writeOnce(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = writeNow(fd, p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, true, nil
		case err != nil:
			return 0, false, os.NewSyscallError("write", err)
		case n == 0:
			return 0, false, io.ErrUnexpectedEOF // no progress is no reason to spin
		}
		return n, false, nil
	}
}

// gatherOnce is writeOnce for first and the chunks that follow it, as far as one
// system call takes them.
func gatherOnce(fd uintptr, first []byte, next *chunk) (n int, again bool, err error) {
	for {
		n, err = gatherNow(fd, first, next)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, true, nil
		case err != nil:
			return 0, false, os.NewSyscallError("writev", err)
		case n == 0:
			return 0, false, io.ErrUnexpectedEOF
		}
		return n, false, nil
	}
}

// discardInput throws away what the peer has sent and nobody will read, and
// reports whether there was anything. Bounded: a peer that sends without end is
// not read without end.
func discardInput(raw syscall.RawConn) (found bool) {
	const rounds = 16
	buf := getBuffer(16 << 10)
	defer putBuffer(buf)
	// Control, unlike Read, waits for no lock and no deadline: the reader may
	// still be on its way out.
	_ = raw.Control(func(fd uintptr) {
		for range rounds {
			if _, again, err := readOnce(fd, buf); again || err != nil {
				return
			}
			found = true
		}
	})
	return found
}
