package listen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
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
// With LOCAL the balancer speaks for itself, to see whether the server is there. The
// specification is doc/proxy-protocol.txt of HAProxy.

var proxySignature = []byte("\r\n\r\n\x00\r\nQUIT\n")

const (
	proxyPrefix = 16      // bytes up to and with the length
	maxProxy    = 4 << 10 // bytes of the rest that are read: addresses, and TLVs, which are skipped

	proxyLocal = 0x20
	proxyProxy = 0x21

	proxyTCP4 = 0x11
	proxyTCP6 = 0x21
)

// readProxyHeader reads a header, and not one byte more. client is invalid after LOCAL.
func readProxyHeader(r io.Reader) (client netip.AddrPort, err error) {
	var buffer [proxyPrefix]byte
	if n, err := io.ReadFull(r, buffer[:]); err != nil {
		if !bytes.HasPrefix(proxySignature, buffer[:min(n, len(proxySignature))]) {
			err = errNoProxyHeader
		}
		return client, fmt.Errorf("PROXY protocol: %w", err)
	}
	if err := checkProxyPrefix(buffer[:]); err != nil {
		return client, fmt.Errorf("PROXY protocol: %w", err)
	}
	rest := make([]byte, binary.BigEndian.Uint16(buffer[14:]))
	if _, err := io.ReadFull(r, rest); err != nil {
		return client, fmt.Errorf("PROXY protocol: the header is cut off: %w", err)
	}
	if client, err = parseProxyRest(buffer[12], buffer[13], rest); err != nil {
		return client, fmt.Errorf("PROXY protocol: %w", err)
	}
	return client, nil
}

var errNoProxyHeader = errors.New("the connection does not begin with a header; does it come from the balancer, and does that send version 2?")

func checkProxyPrefix(p []byte) error {
	switch {
	case bytes.HasPrefix(p, []byte("PROXY ")):
		return errors.New("the header is of version 1; have the balancer send version 2")
	case !bytes.HasPrefix(p, proxySignature):
		return errNoProxyHeader
	case p[12]>>4 != 2:
		return fmt.Errorf("the header is of version %d, and only 2 is supported", p[12]>>4)
	case p[12] != proxyLocal && p[12] != proxyProxy:
		return fmt.Errorf("unknown command %d", p[12]&0xF)
	}
	if n := binary.BigEndian.Uint16(p[14:]); n > maxProxy {
		return fmt.Errorf("the header has %d bytes, more than the %d that are read", n, maxProxy)
	}
	return nil
}

// parseProxyRest gives the client's address.
func parseProxyRest(command, family byte, rest []byte) (client netip.AddrPort, err error) {
	if command == proxyLocal {
		return client, nil // whatever follows says nothing
	}
	size := 0
	switch family {
	case proxyTCP4:
		size = 4
	case proxyTCP6:
		size = 16
	default:
		return client, fmt.Errorf("address family and transport 0x%02x: only TCP over IPv4 (0x11) and over IPv6 (0x21) is supported", family)
	}
	if len(rest) < 2*size+4 {
		return client, fmt.Errorf("%d bytes are too few for the addresses", len(rest))
	}
	for tlv := rest[2*size+4:]; len(tlv) > 0; {
		if len(tlv) < 3 || len(tlv)-3 < int(binary.BigEndian.Uint16(tlv[1:])) {
			return client, errors.New("a TLV is cut off")
		}
		tlv = tlv[3+int(binary.BigEndian.Uint16(tlv[1:])):]
	}
	addr, _ := netip.AddrFromSlice(rest[:size])
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(rest[2*size:])), nil
}

// proxied is the address of a client behind a balancer. It is no *net.TCPAddr: wherever
// the balancer says that a client comes from, the client is not on this machine, and gets
// nothing of what is reserved for clients that are.
type proxied struct{ netip.AddrPort }

func (proxied) Network() string { return "tcp" }

var _ net.Addr = proxied{}
