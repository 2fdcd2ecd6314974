//go:build !unix

package transport

import (
	"errors"
	"syscall"
)

var errNoRawPath = errors.New("transport: no raw path on this system")

// There is no raw path here: gatherOnce is never called.

func gatherOnce(uintptr, []byte, *chunk) (n int, again bool, err error) {
	return 0, false, errNoRawPath
}

func discardInput(syscall.RawConn) (found bool) { return false }
