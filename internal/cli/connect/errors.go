package connect

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Unreachable explains a failure to connect in one line that says what to do. The address may be
// several, with commas between them.
func Unreachable(address string, timeout time.Duration, err error) error {
	var several *dial.Failures
	if errors.As(err, &several) {
		return allUnreachable(address, timeout, several)
	}
	var refused *client.ConnectError
	var dns *net.DNSError
	var op *net.OpError
	var hostname x509.HostnameError
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %w", address, refused)
	case errors.Is(err, client.ErrInvalidOption), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot reach %s: connection refused; is a server running? start one with: holdfast serve", address)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("cannot reach %s: no such host", address)
	case errors.As(err, &authority):
		return fmt.Errorf("cannot reach %s: its certificate is not trusted; name the file with its authority's certificate: --cafile", address)
	case errors.As(err, &hostname):
		return fmt.Errorf("cannot reach %s: its certificate is for another host: %w", address, hostname)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("cannot reach %s: no answer within %v", address, timeout)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("cannot reach %s: the server closed the connection; does it speak MQTT 5 there, and does it want TLS (--tls, --cafile)?", address)
	case errors.As(err, &op):
		return fmt.Errorf("cannot reach %s: %w", address, op.Err)
	}
	if cause := errors.Unwrap(err); cause != nil {
		err = cause // the message names the address already
	}
	return fmt.Errorf("cannot reach %s: %w", address, err)
}

// allUnreachable explains once what is wrong with all addresses, or else for each what is.
func allUnreachable(addresses string, timeout time.Duration, f *dial.Failures) error {
	alike := true
	same := Unreachable(addresses, timeout, f.Errs[0])
	each := Unreachable(f.Addresses[0], timeout, f.Errs[0])
	for i, err := range f.Errs[1:] {
		alike = alike && Unreachable(addresses, timeout, err).Error() == same.Error()
		each = fmt.Errorf("%w; %w", each, Unreachable(f.Addresses[i+1], timeout, err))
	}
	if alike {
		return same
	}
	return each
}

// Explain removes the operation's name from an error of package client: the command's
// name precedes it already.
func Explain(err error) error {
	var e *client.Error
	var operation *txn.OperationError
	if errors.As(err, &operation) {
		return operation
	}
	if errors.As(err, &e) {
		name := protocol.Quote(e.Key)
		switch {
		case errors.Is(e.Err, client.ErrSyntax) && e.Op == "scan":
			return fmt.Errorf("pattern %s: %w: every [ needs its ], with characters or ranges in ascending order between them; [[] is the character itself, and only --binary takes a pattern that is not UTF-8; at most %d bytes", name, e.Err, protocol.MaxPattern)
		case errors.Is(e.Err, client.ErrEmptyKey):
			return fmt.Errorf("%s: %w: a key has at least one byte", name, e.Err)
		case errors.Is(e.Err, client.ErrSyntax) && len(e.Key) > protocol.DefaultMaxKey:
			return fmt.Errorf("%s: %w: a key has at most %d bytes, unless the server's --max-key-size says otherwise", name, e.Err, protocol.DefaultMaxKey)
		}
		return fmt.Errorf("%s: %w", name, e.Err)
	}
	return err
}
