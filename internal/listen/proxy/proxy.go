// Package proxy reads and writes headers of the PROXY protocol, version 2, by which a
// balancer, or another node of a cluster, says where a connection comes from.
//
// Package listen reads them behind a balancer. A node of a cluster writes one in front of
// what a client sends when it passes the client on to the leader. The package knows nothing
// of connections.
package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// The PROXY protocol, version 2
//
// A balancer writes a header before the first byte of a connection, which says where the
// connection comes from:
//
//	12 bytes  signature
//	 1        version (2) in the upper half, command in the lower: 0 LOCAL, 1 PROXY
//	 1        address family in the upper half (1 IPv4, 2 IPv6), transport in the lower (1 stream)
//	 2        length of the rest
//	          source address, destination address, source port, destination port
//	          TLVs: type (1), length (2), value
//
// A node of a cluster adds a TLV of a type that is free for such use: at which of its listeners
// the client has connected.
//
// With LOCAL the balancer speaks for itself, to see whether the server is there. The
// specification is doc/proxy-protocol.txt of HAProxy.

var signature = []byte("\r\n\r\n\x00\r\nQUIT\n")

const (
	prefix  = 16      // bytes up to and with the length
	maxRest = 4 << 10 // bytes of the rest that are read: addresses, and TLVs, which are skipped

	commandLocal = 0x20
	commandProxy = 0x21

	tcp4 = 0x11
	tcp6 = 0x21

	typeListener = 0xE0 // the first of the types for applications
)

// NoListener is the Listener of a Header that names none.
const NoListener = -1

// Header says where a connection comes from.
type Header struct {
	Client netip.AddrPort // invalid: the connection is the balancer's own
	// Listener is the place of the listener, among those of the node that passes the
	// connection on, at which the client has connected: 0 to MaxListener, or NoListener.
	Listener int
}

// MaxListener is the last place that a Header can name.
const MaxListener = 1<<16 - 1

// Read reads a header, and not one byte more: at most 4,112 bytes.
func Read(r io.Reader) (h Header, err error) {
	var buffer [prefix]byte
	if n, err := io.ReadFull(r, buffer[:]); err != nil {
		if !bytes.HasPrefix(signature, buffer[:min(n, len(signature))]) {
			err = errNoHeader
		}
		return h, fmt.Errorf("PROXY protocol: %w", err)
	}
	if err := checkPrefix(buffer[:]); err != nil {
		return h, fmt.Errorf("PROXY protocol: %w", err)
	}
	rest := make([]byte, binary.BigEndian.Uint16(buffer[14:]))
	if _, err := io.ReadFull(r, rest); err != nil {
		return h, fmt.Errorf("PROXY protocol: the header is cut off: %w", err)
	}
	if h, err = parseRest(buffer[12], buffer[13], rest); err != nil {
		return h, fmt.Errorf("PROXY protocol: %w", err)
	}
	return h, nil
}

// Append appends the header for a client of a server at this address. Both addresses must
// be valid.
func Append(dst []byte, h Header, server netip.AddrPort) []byte {
	client, local := h.Client.Addr().Unmap().WithZone(""), server.Addr().Unmap().WithZone("")
	family := byte(tcp4)
	if client.Is6() || local.Is6() {
		family = tcp6
	}
	dst = append(append(dst, signature...), commandProxy, family, 0, 0)
	rest := len(dst)
	for _, a := range []netip.Addr{client, local} {
		if family == tcp4 {
			dst = append(dst, a.AsSlice()...)
		} else {
			sixteen := a.As16()
			dst = append(dst, sixteen[:]...)
		}
	}
	dst = binary.BigEndian.AppendUint16(dst, h.Client.Port())
	dst = binary.BigEndian.AppendUint16(dst, server.Port())
	if h.Listener >= 0 {
		dst = append(dst, typeListener, 0, 2)
		dst = binary.BigEndian.AppendUint16(dst, uint16(h.Listener))
	}
	binary.BigEndian.PutUint16(dst[rest-2:], uint16(len(dst)-rest))
	return dst
}

var errNoHeader = errors.New("the connection does not begin with a header; does it come from the balancer, and does that send version 2?")

func checkPrefix(p []byte) error {
	switch {
	case bytes.HasPrefix(p, []byte("PROXY ")):
		return errors.New("the header is of version 1; have the balancer send version 2")
	case !bytes.HasPrefix(p, signature):
		return errNoHeader
	case p[12]>>4 != 2:
		return fmt.Errorf("the header is of version %d, and only 2 is supported", p[12]>>4)
	case p[12] != commandLocal && p[12] != commandProxy:
		return fmt.Errorf("unknown command %d", p[12]&0xF)
	}
	if n := binary.BigEndian.Uint16(p[14:]); n > maxRest {
		return fmt.Errorf("the header has %d bytes, more than the %d that are read", n, maxRest)
	}
	return nil
}

// parseRest gives what the addresses and the TLVs say.
func parseRest(command, family byte, rest []byte) (h Header, err error) {
	h.Listener = NoListener
	if command == commandLocal {
		return h, nil // whatever follows says nothing
	}
	size := 0
	switch family {
	case tcp4:
		size = 4
	case tcp6:
		size = 16
	default:
		return h, fmt.Errorf("address family and transport 0x%02x: only TCP over IPv4 (0x11) and over IPv6 (0x21) is supported", family)
	}
	if len(rest) < 2*size+4 {
		return h, fmt.Errorf("%d bytes are too few for the addresses", len(rest))
	}
	for tlv := rest[2*size+4:]; len(tlv) > 0; {
		if len(tlv) < 3 || len(tlv)-3 < int(binary.BigEndian.Uint16(tlv[1:])) {
			return h, errors.New("a TLV is cut off")
		}
		value := tlv[3 : 3+int(binary.BigEndian.Uint16(tlv[1:]))]
		if tlv[0] == typeListener && len(value) == 2 {
			h.Listener = int(binary.BigEndian.Uint16(value))
		}
		tlv = tlv[3+len(value):]
	}
	addr, _ := netip.AddrFromSlice(rest[:size])
	h.Client = netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(rest[2*size:]))
	return h, nil
}
