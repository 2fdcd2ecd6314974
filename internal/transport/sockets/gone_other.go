//go:build !unix

package sockets

import (
	"net"
	"syscall"
)

// Gone is not known on this system.
func Gone(net.Conn) bool { return false }

// AtEnd is not known on this system.
func AtEnd(syscall.RawConn) bool { return false }
