//go:build !unix

package transport

import (
	"errors"
	"net"
	"syscall"
)

var errNoRawPath = errors.New("transport: no raw path on this system")

// rawConn says that there is no raw path here: every connection takes the plain
// one, and the functions below are never called.
func rawConn(net.Conn) syscall.RawConn { return nil }

func readOnce(uintptr, []byte) (n int, again bool, err error) { return 0, false, errNoRawPath }

func writeOnce(uintptr, []byte) (n int, again bool, err error) { return 0, false, errNoRawPath }

func gatherOnce(uintptr, []byte, *chunk) (n int, again bool, err error) {
	return 0, false, errNoRawPath
}

func discardInput(syscall.RawConn) (found bool) { return false }
