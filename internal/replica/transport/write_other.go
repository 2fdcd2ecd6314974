//go:build !unix

package transport

import (
	"errors"
	"syscall"
)

// writeSome is never called here: sockets.Raw knows no way to file descriptors.
func writeSome(syscall.RawConn, []byte) (int, error) { return 0, errors.ErrUnsupported }
