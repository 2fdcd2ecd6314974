//go:build unix

package transport

import (
	"errors"
	"syscall"
)

// writeSome writes as much to a socket as that takes without waiting.
func writeSome(raw syscall.RawConn, b []byte) (n int, err error) {
	var result error
	err = raw.Write(func(fd uintptr) bool {
		for {
			if n, result = syscall.Write(int(fd), b); !errors.Is(result, syscall.EINTR) {
				return true
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case errors.Is(result, syscall.EAGAIN):
		return 0, nil
	case result != nil:
		return 0, result
	}
	return n, nil
}
