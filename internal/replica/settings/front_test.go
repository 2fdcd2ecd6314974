package settings

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
)

func frontCert(name string) certs.Request {
	return certs.Request{Name: name, Hosts: []string{FrontURI}}
}

// Fronts and nodes of one authority speak with each other; a front is no node, and the other way
// round.
func TestFrontsProveThemselves(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	node := func(name string, a *certstest.Authority) *tls.Config {
		s := issue(t, a, nodeCert(name, "127.0.0.1"))
		config, err := s.TLS(nil)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	front := func(name string, a *certstest.Authority) *tls.Config {
		s := issue(t, a, frontCert(name))
		config, err := s.FrontTLS()
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	atNode, atFront := meet(t, node("n1", a), front("f1", a))
	if atNode != nil || atFront != nil {
		t.Errorf("a front of the authority: %v, %v", atNode, atFront)
	}
	if atNode, _ = meet(t, node("n2", a), front("f2", other)); atNode == nil {
		t.Error("a node takes a front of another authority")
	}
	// A program with the certificate of a front, or of a client, is no node to a front or to a node.
	for name, r := range map[string]certs.Request{"a front": frontCert("f3"), "a client": {Name: "c1"}} {
		s := issue(t, a, r)
		pair, _, err := s.readFiles()
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{Certificates: []tls.Certificate{pair}}
		if _, dials := meet(t, config, front("f-"+r.Name, a)); dials == nil {
			t.Errorf("a front takes %s for a node", name)
		}
		if _, dials := meet(t, config, node("n-"+r.Name, a)); dials == nil {
			t.Errorf("a node takes %s for a node", name)
		}
	}
}

func TestCertificateOfAFront(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for name, test := range map[string]struct {
		settings Settings
		want     string
	}{
		"a node's":  {issue(t, a, nodeCert("node", "127.0.0.1")), "is not that of a front"},
		"a server":  {issue(t, a, certs.Request{Name: "server", Server: true, Hosts: []string{FrontURI}}), "is not that of a front"},
		"a client":  {issue(t, a, certs.Request{Name: "client"}), "is not that of a front"},
		"no key":    {issue(t, a, frontCert("nokey"), func(s *Settings) { s.Key = "" }), "--cluster-key is missing: a front"},
		"none":      {three(peers("a=192.0.2.1:7001")), `"holdfast cert front" makes them`},
		"bad peers": {three(peers("a")), "want NAME=HOST:PORT"},
	} {
		s := test.settings
		if name == "none" || name == "bad peers" {
			s.Cert, s.Key, s.CA = "", "", ""
		}
		s.Node, s.Listen = "", ""
		if _, err := s.FrontTLS(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
