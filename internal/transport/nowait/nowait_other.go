//go:build !unix

package nowait

import "errors"

// No connection has a descriptor here (sockets.Raw): the functions below are never called.

// Read fails.
func Read(uintptr, []byte) (n int, again bool, err error) { return 0, false, errors.ErrUnsupported }

// Write fails.
func Write(uintptr, []byte) (n int, again bool, err error) { return 0, false, errors.ErrUnsupported }
