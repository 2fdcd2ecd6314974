//go:build unix

package transport

import (
	"io"
	"os"
	"syscall"
)

// readOnce reads what is there. again: nothing is there yet.
func readOnce(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		if n, err = readNow(fd, p); err != syscall.EINTR {
			return result("read", n, err, io.EOF)
		}
	}
}

// writeOnce writes what the socket takes now. again: it takes nothing.
func writeOnce(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		if n, err = writeNow(fd, p); err != syscall.EINTR {
			return result("write", n, err, io.ErrUnexpectedEOF) // no progress is no reason to spin
		}
	}
}

// gatherOnce is writeOnce for first and the chunks that follow it, as far as one
// system call takes them.
func gatherOnce(fd uintptr, first []byte, next *chunk) (n int, again bool, err error) {
	for {
		if n, err = gatherNow(fd, first, next); err != syscall.EINTR {
			return result("writev", n, err, io.ErrUnexpectedEOF)
		}
	}
}

// result says how a system call on a non-blocking descriptor ended; none is the error
// for no bytes.
func result(call string, n int, err, none error) (int, bool, error) {
	switch {
	case err == syscall.EAGAIN:
		return 0, true, nil
	case err != nil:
		return 0, false, os.NewSyscallError(call, err)
	case n == 0:
		return 0, false, none
	}
	return n, false, nil
}

// discardInput throws away what the peer has sent and no reader will read, and
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
