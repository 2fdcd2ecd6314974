//go:build unix

package transport

import (
	"io"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
)

// gatherOnce is nowait.Write for first and the chunks that follow it, as far as one
// system call takes them.
func gatherOnce(fd uintptr, first []byte, next *chunk) (n int, again bool, err error) {
	for {
		if n, err = gatherNow(fd, first, next); err != syscall.EINTR {
			return nowait.Result("writev", n, err, io.ErrUnexpectedEOF)
		}
	}
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
			if _, again, err := nowait.Read(fd, buf); again || err != nil {
				return
			}
			found = true
		}
	})
	return found
}
