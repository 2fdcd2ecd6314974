package settings

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
)

// three are the settings of node a of three on this machine, changed.
func three(change ...func(*Settings)) Settings {
	s := Settings{Node: "a", Peers: []string{"a=127.0.0.1:7001", "b=127.0.0.1:7002", "c=127.0.0.1:7003"}}
	for _, c := range change {
		c(&s)
	}
	return s
}

func peers(all ...string) func(*Settings) { return func(s *Settings) { s.Peers = all } }

func TestGoodSettings(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]Settings{
		"no cluster":      {},
		"three nodes":     three(),
		"IPv6":            three(peers("a=[::1]:1", "b=localhost:2", "c=127.9.9.9:65535")),
		"one node":        three(peers("a=127.0.0.1:1")),
		"a listener":      three(func(s *Settings) { s.Listen = "127.0.0.1:7001" }),
		"quorum":          three(func(s *Settings) { s.Reads = Quorum }),
		"with files":      three(peers("a=h1:1", "b=h2:2", "c=h3:3"), func(s *Settings) { s.Cert, s.Key, s.CA = "cert", "key", "ca" }),
		"a spacious list": three(peers("a=127.0.0.1:1", " b = 127.0.0.1:2", "c=127.0.0.1:3 ")),
	} {
		if err := settings.Check(true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int]string{
		1: "does not survive its loss", 2: "less available than one node", 3: "", 4: "4 nodes survives the loss of 1, as one of 3 does", 5: "",
	} {
		got := strings.Join(Advice(nodes), "; ")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%d nodes: %q, want %q", nodes, got, want)
		}
	}
}

// What is wrong is said, with the flag first.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settings Settings
		want     string
	}{
		"a listener alone":    {Settings{Listen: "127.0.0.1:1"}, "--cluster-listen is for a node of a cluster"},
		"a CA alone":          {Settings{CA: "ca.crt"}, "--cluster-ca is for a node of a cluster"},
		"no name":             {three(func(s *Settings) { s.Node = "" }), "which of the nodes this is: --node NAME"},
		"no peers":            {three(peers()), "--node a: say with --cluster-peers a=HOST:PORT,..."},
		"own name missing":    {three(func(s *Settings) { s.Node = "d" }), "--node d: no node in --cluster-peers has this name"},
		"a name twice":        {three(peers("a=127.0.0.1:1", "a=127.0.0.1:2")), "two nodes have the name a"},
		"an address twice":    {three(peers("a=127.0.0.1:1", "b=127.0.0.1:1")), "a and b have the same address, 127.0.0.1:1"},
		"no address":          {three(peers("a")), `"a": want NAME=HOST:PORT`},
		"a name that is none": {three(peers("a b=127.0.0.1:1")), "want NAME=HOST:PORT"},
		"a long name":         {three(peers(strings.Repeat("n", 64) + "=127.0.0.1:1")), "want NAME=HOST:PORT"},
		"no port":             {three(peers("a=127.0.0.1")), "want HOST:PORT"},
		"port 0":              {three(peers("a=127.0.0.1:0")), `the port "0"`},
		"a large port":        {three(peers("a=127.0.0.1:65536")), `the port "65536"`},
		"no host":             {three(peers("a=:7001")), "names no host"},
		"any host":            {three(peers("a=0.0.0.0:7001")), "names no host"},
		"too many":            {three(peers("a=127.0.0.1:1", "b=127.0.0.1:2", "c=127.0.0.1:3", "d=127.0.0.1:4", "e=127.0.0.1:5", "f=127.0.0.1:6", "g=127.0.0.1:7", "h=127.0.0.1:8", "i=127.0.0.1:9", "j=127.0.0.1:10")), "10 nodes: a cluster has at most 9"},
		"other reads":         {three(func(s *Settings) { s.Reads = "fast" }), "want lease or quorum"},
		"another listener":    {three(func(s *Settings) { s.Listen = "7001" }), "--cluster-listen"},
		"beyond loopback":     {three(peers("a=127.0.0.1:1", "b=192.0.2.1:2", "c=127.0.0.1:3")), "--cluster-peers b=192.0.2.1:2: beyond loopback"},
		"a host's name":       {three(peers("a=node-a:1")), "--cluster-peers a=node-a:1: beyond loopback"},
		"a wide listener":     {three(func(s *Settings) { s.Listen = "0.0.0.0:7001" }), "--cluster-listen 0.0.0.0:7001: beyond loopback"},
		"no key":              {three(func(s *Settings) { s.Cert, s.CA = "cert", "ca" }), "--cluster-key is missing"},
		"a key alone":         {three(func(s *Settings) { s.Key = "key" }), "--cluster-cert is missing"},
	} {
		if err := test.settings.Check(true); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	s := three()
	if err := s.Check(false); err == nil || !strings.HasPrefix(err.Error(), "--durability") {
		t.Errorf("another durability: %v", err)
	}
}

// issue makes the settings of a node with a certificate.
func issue(t *testing.T, a *certstest.Authority, r certs.Request, change ...func(*Settings)) Settings {
	t.Helper()
	r.Valid = time.Hour
	if err := a.Issue(r, a.File(r.Name)); err != nil {
		t.Fatal(err)
	}
	return three(append([]func(*Settings){func(s *Settings) {
		s.Cert, s.Key, s.CA = a.File(r.Name+".crt"), a.File(r.Name+".key"), a.File(certs.AuthorityCert)
	}}, change...)...)
}

func nodeCert(name string, hosts ...string) certs.Request {
	return certs.Request{Name: name, Hosts: hosts, Node: true}
}

// What a node's own certificate lacks is said when the node starts, and not by each other one.
func TestOwnCertificate(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	for name, test := range map[string]struct {
		settings Settings
		want     string // empty: it is good
	}{
		"good":              {issue(t, a, nodeCert("good", "127.0.0.1")), ""},
		"another authority": {issue(t, a, nodeCert("other", "127.0.0.1"), func(s *Settings) { s.CA = other.File(certs.AuthorityCert) }), "which is not in --cluster-ca"},
		"another host":      {issue(t, a, nodeCert("host", "node-a", "192.0.2.1")), "it is for node-a, 192.0.2.1, and no node of the cluster, as far as this one knows, is at one of these"},
		"no host":           {issue(t, a, nodeCert("nohost")), "it is for no host"},
		"a server's":        {issue(t, a, certs.Request{Name: "server", Server: true, Hosts: []string{"127.0.0.1"}}), "not for servers and for clients"},
		"a client's":        {issue(t, a, certs.Request{Name: "client"}), "not for servers and for clients"},
		"another key":       {issue(t, a, nodeCert("key", "127.0.0.1"), func(s *Settings) { s.Key = a.File("good.key") }), "--cluster-key"},
		"no CA":             {issue(t, a, nodeCert("noca", "127.0.0.1"), func(s *Settings) { s.CA = a.File("nothing") }), "--cluster-ca"},
		"a CA that is none": {issue(t, a, nodeCert("keyca", "127.0.0.1"), func(s *Settings) { s.CA = a.File(certs.AuthorityKey) }), "no PEM certificate in it"},
	} {
		config, err := test.settings.TLS(nil)
		if test.want == "" && (err != nil || config == nil) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	s := three()
	if config, err := s.TLS(nil); config != nil || err != nil {
		t.Errorf("without certificates: %v, %v", config, err)
	}
}

// Nodes of one authority speak with each other; what is wrong with another one is said.
func TestNodesProveThemselves(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	tlsOf := func(s Settings) *tls.Config {
		t.Helper()
		config, err := s.TLS(nil)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	as := func(c *tls.Config, a *certstest.Authority, r certs.Request) *tls.Config {
		r.Valid = time.Hour
		if err := a.Issue(r, a.File(r.Name)); err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(a.File(r.Name+".crt"), a.File(r.Name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		c = c.Clone()
		c.Certificates = []tls.Certificate{pair}
		return c
	}
	node := func(name string) *tls.Config { return tlsOf(issue(t, a, nodeCert(name, "127.0.0.1"))) }
	blind := func(c *tls.Config) *tls.Config { // it shows a certificate to whomever it talks to
		c = c.Clone()
		c.InsecureSkipVerify, c.VerifyConnection = true, nil
		return c
	}
	for name, test := range map[string]struct {
		listens, dials *tls.Config
		listener, dial string // what each of them says; empty: nothing
	}{
		"nodes":                       {node("n1"), node("n2"), "", ""},
		"one of another authority":    {node("n3"), blind(tlsOf(issue(t, other, nodeCert("n4", "127.0.0.1")))), "which is not in --cluster-ca", "the other node refuses this node's certificate"},
		"to one of another authority": {as(node("n5"), other, nodeCert("n6", "127.0.0.1")), node("n7"), "", "which is not in --cluster-ca"},
		"at another host":             {as(node("n8"), a, nodeCert("n9", "node-b")), node("n10"), "", "is for node-b, and --cluster-peers calls the node 127.0.0.1"},
		"from another host":           {node("n11"), as(node("n12"), a, nodeCert("n13", "node-b")), "no node of the cluster, as far as this one knows, is at one of these", "refuses"},
		"an MQTT client":              {node("n14"), as(node("n15"), a, certs.Request{Name: "n16"}), "not for servers and for clients", "refuses"},
		"without TLS":                 {nil, node("n17"), "", "does not speak TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			atListener, atDialer := meet(t, test.listens, test.dials)
			for side, is := range map[string]struct {
				err  error
				want string
			}{"listens": {atListener, test.listener}, "dials": {atDialer, test.dial}} {
				if test.listener+test.dial == "" && is.err != nil || is.want != "" && (is.err == nil || !strings.Contains(is.err.Error(), is.want)) {
					t.Errorf("the one that %s: %v, want %q", side, is.err, is.want)
				}
			}
		})
	}
}

// A node reads its certificates again while it runs: connections that are made from then on have the new ones, at both
// ends. Those that cannot be used change nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	open := func(s Settings) (*Certificates, Settings) {
		t.Helper()
		c, err := s.Certificates(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, s
	}
	replace := func(c *Certificates, s, by Settings) {
		t.Helper()
		for to, from := range map[string]string{s.Cert: by.Cert, s.Key: by.Key, s.CA: by.CA} {
			text, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	latest := func(c *Certificates) *tls.Config {
		config, _ := c.Config().GetConfigForClient(nil)
		return config
	}
	first, files := open(issue(t, a, nodeCert("first", "127.0.0.1")))
	foreign := issue(t, other, nodeCert("second", "127.0.0.1"))
	second, _ := open(foreign)
	if atListener, _ := meet(t, first.Config(), latest(second)); atListener == nil {
		t.Error("nodes of two authorities speak with each other")
	}

	bad := issue(t, a, certs.Request{Name: "client"})
	replace(first, files, bad)
	if err := first.Reload(); err == nil || !strings.Contains(err.Error(), "not for servers and for clients") {
		t.Errorf("the certificate of a client: %v", err)
	}
	if atListener, _ := meet(t, first.Config(), latest(second)); atListener == nil {
		t.Error("what cannot be used has changed something")
	}

	before := first.Config()
	replace(first, files, foreign)
	if err := first.Reload(); err != nil {
		t.Fatal(err)
	}
	for end, configs := range map[string][2]*tls.Config{"listens": {before, latest(second)}, "dials": {second.Config(), latest(first)}} {
		if atListener, atDialer := meet(t, configs[0], configs[1]); atListener != nil || atDialer != nil {
			t.Errorf("the node whose certificates were read again %s: %v, %v", end, atListener, atDialer)
		}
	}
	s := three()
	if c, err := s.Certificates(nil); c != nil || err != nil || c.Config() != nil {
		t.Errorf("without certificates: %v, %v", c, err)
	}
}

// meet connects two nodes. The one that listens sends a byte, and the other one nothing: what
// a socket has not read when it is closed could overtake an alert.
func meet(t *testing.T, listens, dials *tls.Config) (atListener, atDialer error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if listens == nil {
			_, _ = c.Read(make([]byte, 64<<10))
			_, err = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		} else {
			_, err = tls.Server(c, listens).Write([]byte("x"))
		}
		ended <- Explain(err)
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), dials)
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	return <-ended, Explain(err)
}
