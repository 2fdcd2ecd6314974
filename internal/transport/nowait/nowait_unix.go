//go:build unix

package nowait

import (
	"io"
	"os"
	"syscall"
)

// Read reads what is there. again: nothing is there yet. At the end of the stream it fails
// with io.EOF.
func Read(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		if n, err = read(fd, p); err != syscall.EINTR {
			return Result("read", n, err, io.EOF)
		}
	}
}

// Write writes what the socket takes now. again: it takes nothing.
func Write(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		if n, err = write(fd, p); err != syscall.EINTR {
			return Result("write", n, err, io.ErrUnexpectedEOF) // no progress is no reason to spin
		}
	}
}

// Result says how a system call on a non-blocking descriptor ended; none is the error
// for no bytes.
func Result(call string, n int, err, none error) (int, bool, error) {
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
