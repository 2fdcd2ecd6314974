package certs_test

import (
	"crypto/tls"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
)

// A handshake that fails because of the client's certificate is told from others, with the
// certificate's subject if there is one.
func TestRefused(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	files := a.Mutual("server")
	s := newServer(t, files)
	foreign := other.Client("foreign")
	foreign.RootCAs = a.Trust().RootCAs
	if err := a.Issue(certs.Request{Name: "expired", Valid: time.Nanosecond}, a.File("expired")); err != nil {
		t.Fatal(err)
	}
	revoked, resumed := a.Client("revoked"), a.Client("resumed")
	resumed.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if _, err := shake(t, s, resumed); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"revoked", "resumed"} {
		if _, err := a.Revoke(a.File(name + ".crt")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	// The certificate of one client with the key of another one.
	impostor, own := a.Client("impostor"), a.Client("own")
	impostor.Certificates[0].PrivateKey = own.Certificates[0].PrivateKey

	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for name, test := range map[string]struct {
			client  *tls.Config
			subject string
			reason  string
			refused bool
		}{
			"none":                            {a.Trust(), "", "didn't provide a certificate", true},
			"another authority's":             {foreign, "CN=foreign", "unknown authority", true},
			"expired":                         {a.Show("expired"), "CN=expired", "expired", true},
			"a server's":                      {a.Show("server"), "CN=server", "incompatible key usage", true},
			"revoked":                         {revoked, "CN=revoked", "is revoked", true},
			"another one's key":               {impostor, "", "invalid signature by the client certificate", true},
			"a client that trusts others":     {other.Client("trusts-" + tls.VersionName(version)[4:]), "", "remote error", false},
			"no version in common":            {&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "", "versions", false},
			"a good one of another handshake": {own, "", "", false},
		} {
			client := test.client.Clone()
			if client.MaxVersion == 0 {
				client.MaxVersion = version
			}
			_, err := shake(t, s, client)
			subject, refused := certs.Refused(err)
			if refused != test.refused || subject != test.subject || err != nil && !strings.Contains(err.Error(), test.reason) {
				t.Errorf("%s, %s: refused for its certificate: %v, with the subject %q, by %v", name, tls.VersionName(version), refused, subject, err)
			}
		}
	}
	if _, err := shake(t, s, resumed); err == nil {
		t.Error("a revoked certificate whose session is resumed was let in")
	} else if subject, refused := certs.Refused(err); !refused || subject != "CN=resumed" {
		t.Errorf("resumed: refused for its certificate: %v, with the subject %q, by %v", refused, subject, err)
	}
	if _, refused := certs.Refused(io.EOF); refused {
		t.Error("the end of a connection is taken for a refusal")
	}
}
