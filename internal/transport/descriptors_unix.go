//go:build unix

package transport

import (
	"math"
	"net"
	"syscall"
)

// DescriptorLimit is how many file descriptors the process may have open. Go has raised
// the soft limit to the hard one, less one, before main (package syscall, rlimit.go).
func DescriptorLimit() (limit int, known bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return int(min(uint64(r.Cur), math.MaxInt32)), true
}

// descriptorOf is the number of a socket's descriptor; -1: not known.
func descriptorOf(nc net.Conn) int {
	raw := rawConn(nc)
	if raw == nil {
		return -1
	}
	n := -1
	if raw.Control(func(fd uintptr) { n = int(fd) }) != nil {
		return -1 // closed already
	}
	return n
}
