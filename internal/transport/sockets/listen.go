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
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			l, err = net.Listen("tcp", net.JoinHostPort("::1", port)) // a machine without IPv4
		}
	} else {
		l, err = net.Listen("tcp", address)
	}
	var unknown *net.DNSError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("%w: stop the program that listens there (ss -ltnp names it), or choose another port", err)
	case errors.As(err, &unknown):
		err = fmt.Errorf("%w: this machine does not know the name %s: listen on an address such as 127.0.0.1 or 0.0.0.0", err, unknown.Name)
	}
	return l, err
}
