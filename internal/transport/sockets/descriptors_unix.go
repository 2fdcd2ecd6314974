//go:build unix

package sockets

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
	raw := Raw(nc)
	if raw == nil {
		return -1
	}
	n := -1
	if raw.Control(func(fd uintptr) { n = int(fd) }) != nil {
		return -1 // closed already
	}
	return n
}

// Raw returns the way to nc's file descriptor, or nil if there is none.
//
// Only the two types themselves qualify. A type that merely embeds one of them
// also has a SyscallConn method, but its Read and Write may do more than the
// socket's (count, decrypt, replay), and going around them would lose that.
func Raw(nc net.Conn) syscall.RawConn {
	var sc syscall.Conn
	switch nc := nc.(type) {
	case *net.TCPConn:
		sc = nc
	case *net.UnixConn:
		sc = nc
	default:
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil // closed already: a read or write meets the error and reports it
	}
	return raw
}
