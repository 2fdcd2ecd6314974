package listen_test

import (
	"crypto/x509"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
)

// A client of a front has come in at the listener: its rules hold, and it verifies the certificate
// that the client has shown to the front.
func TestFront(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	chain := func(a *certstest.Authority, name string) []*x509.Certificate {
		t.Helper()
		show := a.Client
		if name == "s1" {
			show = a.Show
		}
		leaf, err := x509.ParseCertificate(show(name).Certificates[0].Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return []*x509.Certificate{leaf}
	}
	plain := openWith(t, "mqtt://127.0.0.1:0", listen.Open, func(c *listen.Config, _ *listen.Options) { c.MaxConnections = 1 })
	secured := openWith(t, "mqtts://127.0.0.1:0", listen.Open, withTLS(a.Server("s1")))
	mutual := openWith(t, "mqtts://127.0.0.1:0", listen.Open, withTLS(a.Mutual("s2")))
	optional := a.Mutual("s3")
	optional.ClientAuth = certs.Optional
	either := openWith(t, "mqtts://127.0.0.1:0", listen.Open, withTLS(optional))
	good := chain(a, "press")
	for name, test := range map[string]struct {
		at       *listener
		scheme   string
		chain    []*x509.Certificate
		encrypts bool
		verified bool
		want     string // of the error
	}{
		"MQTT":                            {plain, listen.MQTT, nil, false, false, ""},
		"another scheme":                  {plain, listen.MQTTS, nil, false, false, "the same listeners in the same order"},
		"TLS":                             {secured, listen.MQTTS, nil, true, false, ""},
		"a certificate for nothing":       {secured, listen.MQTTS, good, false, false, "no client's certificate is asked for"},
		"mutual TLS":                      {mutual, listen.MQTTS, good, true, true, ""},
		"no certificate":                  {mutual, listen.MQTTS, nil, false, false, "shown no certificate"},
		"one of another authority":        {mutual, listen.MQTTS, chain(other, "press"), false, false, "unknown authority"},
		"a server's":                      {mutual, listen.MQTTS, chain(a, "s1"), false, false, "incompatible key usage"},
		"no certificate, none is needed":  {either, listen.MQTTS, nil, true, false, ""},
		"a certificate that isn't needed": {either, listen.MQTTS, good, true, true, ""},
	} {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		c, err := test.at.Front(far, test.scheme, netip.MustParseAddrPort("192.0.2.7:50000"), test.chain)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", name, err, test.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		o := access.OriginOf(c)
		if !o.Fronted || o.String() != "192.0.2.7:50000" || o.Listener == nil || (o.TLS != nil) != test.encrypts || !o.Vouches() {
			t.Errorf("%s: %+v", name, o)
		}
		if o.TLS != nil && (len(o.TLS.VerifiedChains) > 0) != test.verified {
			t.Errorf("%s: the chains %v", name, o.TLS.VerifiedChains)
		}
	}
	// The bound of the listener holds for clients of fronts, too.
	near, far := net.Pipe()
	defer near.Close()
	client := netip.MustParseAddrPort("192.0.2.7:50000")
	if _, err := plain.Front(far, listen.MQTT, client, nil); err == nil || plain.Refused() != 1 {
		t.Errorf("beyond the bound: %v", err)
	}
}
