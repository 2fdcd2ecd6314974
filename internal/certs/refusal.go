package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
)

// NotTrusted is the error of a handshake whose client has shown a certificate that the
// authorities and revocation lists of the moment refuse, although its signature is right.
type NotTrusted struct {
	Certificate *x509.Certificate // of the client
	Err         error             // what is wrong with it
}

func (e *NotTrusted) Error() string {
	return fmt.Sprintf("the certificate of %q: %v", e.Certificate.Subject, e.Err)
}

func (e *NotTrusted) Unwrap() error { return e.Err }

var errRevoked = errors.New("it is revoked")

// Refused says whether the error of a server's handshake means that the client was refused
// for its certificate: none, one that is revoked, expired, of another authority, or not the
// client's own. The subject is empty if the client has shown no certificate that can be
// read; it is a text of the client's, of any length, that nothing has verified.
func Refused(err error) (subject string, refused bool) {
	var verification *tls.CertificateVerificationError
	var trust *NotTrusted
	switch {
	case errors.As(err, &verification):
		if certs := verification.UnverifiedCertificates; len(certs) > 0 {
			subject = certs[0].Subject.String()
		}
		return subject, true
	case errors.As(err, &trust):
		return trust.Certificate.Subject.String(), true
	case err == nil:
		return "", false
	}
	// crypto/tls has no other errors for these, of processCertsFromClient and of
	// CertificateVerify. An alert of the client's begins with "remote error".
	text := err.Error()
	return "", !strings.Contains(text, "remote error") &&
		(strings.Contains(text, "tls: client didn't provide a certificate") || strings.Contains(text, "client certificate"))
}
