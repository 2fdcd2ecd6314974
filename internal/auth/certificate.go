package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

const (
	maxName       = 1024 // bytes of a name in a certificate
	maxAttributes = 64   // of a certificate
)

var commonNameOID = asn1.ObjectIdentifier{2, 5, 4, 3}

// verified gives the client's certificate, nil if it has shown none or the handshake has
// not verified it.
func verified(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return nil
	}
	return state.VerifiedChains[0][0]
}

// nameIn gives the client's name in a certificate, and who owns what belongs to it.
func nameIn(cert *x509.Certificate, kind TLSName) (name, owner string, err error) {
	var label string
	switch kind {
	case SANDNS:
		if label = "DNS"; len(cert.DNSNames) > 0 {
			name = cert.DNSNames[0]
		}
	case SANURI:
		if label = "URI"; len(cert.URIs) > 0 {
			name = cert.URIs[0].String()
		}
	case SANEmail:
		if label = "email"; len(cert.EmailAddresses) > 0 {
			name = cert.EmailAddresses[0]
		}
	case Subject:
		label, name = "subject", cert.Subject.String()
	default:
		label, name = "CN", cert.Subject.CommonName
		found := 0
		for _, a := range cert.Subject.Names {
			if a.Type.Equal(commonNameOID) {
				found++
			}
		}
		if found > 1 {
			return "", "", errors.New("the certificate's subject has more than one CN")
		}
	}
	if name == "" {
		return "", "", fmt.Errorf("the certificate has no %s, which is its client's name here", label)
	}
	if !utf8.ValidString(name) || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
		return "", "", fmt.Errorf("the certificate's %s is longer than %d bytes or has control characters", label, maxName)
	}
	return name, "cert:" + label + "=" + name, nil
}

// certificateIdentity makes an identity of a verified certificate.
func certificateIdentity(cert *x509.Certificate, kind TLSName, clientID string) (*access.Identity, error) {
	name, owner, err := nameIn(cert, kind)
	if err != nil {
		return nil, err
	}
	return &access.Identity{
		ClientID: clientID, Username: name, Owner: owner, Method: access.Certificate,
		Attributes: attributesOf(cert), Expires: cert.NotAfter,
	}, nil
}

// attributesOf makes attributes of a certificate's subject, of the names that it has
// besides, and of its issuer's CN. Of a field that occurs several times the first one is
// OU, the second OU.2 and so on.
func attributesOf(cert *x509.Certificate) map[string]string {
	a := make(map[string]string)
	add := func(field string, values ...string) {
		for i, v := range values {
			name := field
			if i > 0 {
				name = fmt.Sprintf("%s.%d", field, i+1)
			}
			if len(a) < maxAttributes && v != "" && len(v) <= maxName && utf8.ValidString(v) {
				a[name] = v
			}
		}
	}
	s := &cert.Subject
	add("CN", s.CommonName)
	add("O", s.Organization...)
	add("OU", s.OrganizationalUnit...)
	add("C", s.Country...)
	add("ST", s.Province...)
	add("L", s.Locality...)
	add("street", s.StreetAddress...)
	add("postalCode", s.PostalCode...)
	add("serialNumber", s.SerialNumber)
	add("DC", values(s, asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 25})...)
	add("UID", values(s, asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1})...)
	add("issuerCN", cert.Issuer.CommonName)
	add("DNS", cert.DNSNames...)
	add("email", cert.EmailAddresses...)
	var uris []string
	for _, u := range cert.URIs {
		uris = append(uris, u.String())
	}
	add("URI", uris...)
	return a
}

// values are those of one field of a name.
func values(n *pkix.Name, oid asn1.ObjectIdentifier) (all []string) {
	for _, a := range n.Names {
		if s, ok := a.Value.(string); ok && a.Type.Equal(oid) {
			all = append(all, s)
		}
	}
	return all
}
