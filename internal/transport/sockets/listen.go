package sockets

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Listen listens on HOST:PORT. The error of a port in use says what to do.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: stop the program that listens there (ss -ltnp names it), or choose another port", err)
	}
	return l, err
}
