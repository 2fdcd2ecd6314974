package sockets

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// Listen listens on HOST:PORT. The error of a port in use says what to do. localhost is this
// machine's loopback address, whether or not the machine has a name server or a file of hosts that
// knows it.
func Listen(address string) (l net.Listener, err error) {
	if host, port, cut := net.SplitHostPort(address); cut == nil && strings.EqualFold(host, "localhost") {
		address = "127.0.0.1:" + port
	}
	l, err = net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: stop the program that listens there (ss -ltnp names it), or choose another port", err)
	}
	return l, err
}
