package fronts

import (
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Magic is how a link begins on the cluster's port.
const Magic = "holdfast front 1"

// About says what a stream carries: the payload of its OPEN frame.
type About struct {
	Place  int    // of the listener
	Scheme string // of the listener: that of the node must have the same
	Client netip.AddrPort
	Chain  []*x509.Certificate // that the client has shown in its handshake, its own first
}

const (
	maxScheme = 8
	maxChain  = 8 // certificates
)

var errAbout = errors.New("the front does not say who its client is")

// Append appends the bytes of a.
func (a *About) Append(dst []byte) ([]byte, error) {
	if a.Place < 0 || a.Place > 1<<16-1 || len(a.Scheme) > maxScheme || len(a.Chain) > maxChain {
		return nil, fmt.Errorf("a client with %d certificates: at most %d are passed on", len(a.Chain), maxChain)
	}
	client, err := a.Client.MarshalBinary()
	if err != nil {
		return nil, err
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(a.Place))
	dst = append(append(dst, byte(len(a.Scheme))), a.Scheme...)
	dst = append(append(dst, byte(len(client))), client...)
	for _, c := range a.Chain {
		if len(c.Raw) > 1<<16-1 {
			return nil, fmt.Errorf("a certificate of %d bytes is too large to be passed on", len(c.Raw))
		}
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(c.Raw)))
		dst = append(dst, c.Raw...)
	}
	return dst, nil
}

// ParseAbout is the opposite of Append. It refuses what is no address of a client, and zones of
// addresses.
func ParseAbout(p []byte) (a About, err error) {
	if len(p) < 3 {
		return a, errAbout
	}
	a.Place = int(binary.BigEndian.Uint16(p))
	scheme, p, ok := cut(p[2:])
	if !ok || len(scheme) > maxScheme {
		return a, errAbout
	}
	client, p, ok := cut(p)
	if !ok || len(client) > 18 || a.Client.UnmarshalBinary(client) != nil || !a.Client.IsValid() {
		return a, errAbout
	}
	a.Scheme = string(scheme)
	for len(p) > 0 {
		if len(p) < 2 || len(a.Chain) == maxChain {
			return a, errAbout
		}
		n := int(binary.BigEndian.Uint16(p))
		if p = p[2:]; len(p) < n {
			return a, errAbout
		}
		c, err := x509.ParseCertificate(p[:n])
		if err != nil {
			return a, fmt.Errorf("a client's certificate that a front passes on: %w", err)
		}
		a.Chain, p = append(a.Chain, c), p[n:]
	}
	return a, nil
}

// cut takes what a length of one byte stands before.
func cut(p []byte) (part, rest []byte, ok bool) {
	if len(p) < 1 || len(p) < 1+int(p[0]) {
		return nil, nil, false
	}
	return p[1 : 1+int(p[0])], p[1+int(p[0]):], true
}
