package server

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// asksWho stands for any Authenticator.
type asksWho struct{ access.Authenticator }

func mustParse(tb testing.TB, url string) listen.URL {
	tb.Helper()
	u, err := listen.ParseURL(url)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

// A listener that other machines reach is refused unless clients authenticate or it says
// that they needn't.
func TestListenersBeyondLoopbackAuthenticate(t *testing.T) {
	t.Parallel()
	everywhere := mustParse(t, "mqtt://0.0.0.0:1883")
	encrypted := mustParse(t, "mqtts://0.0.0.0:8883")
	for name, test := range map[string]struct {
		change func(*Config)
		ok     bool
	}{
		"loopback":                   {func(c *Config) { c.Listen = []string{"127.0.0.1:0", "[::1]:0", "ws://localhost:0"} }, true},
		"TCP":                        {func(c *Config) { c.Listen = []string{":1883"} }, false},
		"WebSocket":                  {func(c *Config) { c.WebSocket = []string{"0.0.0.0:80"} }, false},
		"TLS":                        {func(c *Config) { c.Listen = []string{"mqtts://0.0.0.0:8883"} }, false},
		"a listener of its own":      {func(c *Config) { c.Listeners = []listen.Config{{URL: everywhere}} }, false},
		"anonymous":                  {func(c *Config) { c.Listen, c.AllowAnonymous = []string{":1883"}, true }, true},
		"an anonymous listener":      {func(c *Config) { c.Listeners = []listen.Config{{URL: everywhere, Anonymous: true}} }, true},
		"authentication":             {func(c *Config) { c.Listen, c.Auth = []string{":1883"}, asksWho{} }, true},
		"certificates":               {func(c *Config) { c.Listen, c.TLS.ClientCA = []string{"mqtts://:8883"}, "ca.crt" }, true},
		"certificates, not on TCP":   {func(c *Config) { c.Listen, c.TLS.ClientCA = []string{":1883"}, "ca.crt" }, false},
		"certificates of a listener": {func(c *Config) { c.Listeners = []listen.Config{{URL: encrypted, TLS: certs.Files{ClientCA: "ca.crt"}}} }, true},
		"optional certificates": {func(c *Config) {
			c.Listeners = []listen.Config{{URL: encrypted, TLS: certs.Files{ClientCA: "ca.crt", ClientAuth: certs.Optional}}}
		}, false},
	} {
		c := Default()
		test.change(&c)
		err := c.Check()
		if (err == nil) != test.ok || err != nil && !strings.Contains(err.Error(), "holdfast init DIR sets it up), or allow that with --allow-anonymous") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []Config{{DataDir: "d"}, {DataDir: "d", Listen: []string{"nowhere"}}, {DataDir: "d", WebSocket: []string{"ws://h:1"}}} {
		if err := c.Check(); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

var proxyHeader = []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x7f\x00\x00\x01\x0a\x00\x00\x01\xc3\x50\x07\x5b") // of 127.0.0.1

// Where no PROXY header is expected, it is no CONNECT.
func TestAProxyHeaderIsAMalformedConnect(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := mqtttest.Dial(t, s.Addrs()[0].String())
	c.Write(append(proxyHeader, c.EncodeConnect(mqtttest.ClientID("sly"))...))
	c.ExpectClosed()
	if n := s.broker.Stats().Connects.Load(); n != 0 {
		t.Errorf("%d clients are connected", n)
	}
}

// A client behind a balancer is not on this machine, whatever the balancer says.
func TestAProxiedClientGetsNoReserve(t *testing.T) {
	t.Parallel()
	const most = 16 // of which a sixteenth is reserved in addition
	s := start(t, func(c *Config) {
		c.Limits.MaxConnections, c.Limits.LoopbackConnections = most, 1
		c.Listeners = []listen.Config{{URL: mustParse(t, "127.0.0.1:0"), Proxy: true}}
	})
	direct, balanced := s.Addrs()[0].String(), s.Addrs()[1].String()
	throughBalancer := func() *mqtttest.Client {
		c := mqtttest.Dial(t, balanced)
		c.Write(proxyHeader)
		return c
	}
	for range most {
		throughBalancer().Connect()
	}
	one := throughBalancer()
	one.SendConnect()
	one.ExpectRefused(mqtt.QuotaExceeded)
	mqtttest.Connect(t, direct).Ping()
}

func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	files, next, foreign := a.Mutual("server"), a.Server("next"), other.Server("server")
	s := start(t, func(c *Config) { c.Listen, c.TLS = []string{"mqtts://127.0.0.1:0"}, files })
	client := a.Client("press-7")
	var shown string
	client.VerifyConnection = func(cs tls.ConnectionState) error {
		shown = cs.PeerCertificates[0].Subject.CommonName
		return nil
	}
	connect := func() *mqtttest.Client {
		t.Helper()
		nc, err := tls.Dial("tcp", s.Addrs()[0].String(), client)
		if err != nil {
			t.Fatal(err)
		}
		c := mqtttest.NewClient(t, nc)
		c.Connect()
		c.Ping()
		return c
	}
	before := connect()
	if shown != "server" {
		t.Errorf("%q was shown", shown)
	}

	// When the certificate is exchanged, new connections get the new one, and old ones go on.
	certstest.Copy(t, next.Key, files.Key)
	certstest.Copy(t, next.Cert, files.Cert)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	connect()
	if shown != "next" {
		t.Errorf("%q was shown after the exchange", shown)
	}
	before.Ping()

	// When the new one is of no use, the old one stays.
	certstest.Copy(t, foreign.Key, files.Key)
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), files.Key+" are no pair") {
		t.Errorf("a foreign key: %v", err)
	}
	connect()
	before.Ping()

	// A server doesn't start on it.
	if _, err := Start(Config{Listen: []string{"mqtts://127.0.0.1:0"}, TLS: files, DataDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "are no pair") {
		t.Errorf("a server started on a foreign key: %v", err)
	}
}

// A client whose certificate is revoked, or whose authority is taken away, while it is
// connected is disconnected; all others go on.
func TestARevokedClientIsDisconnected(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	files := a.Mutual("server")
	files.ClientCA = filepath.Join(t.TempDir(), "clients.crt")
	trust := func(authorities ...*certstest.Authority) {
		t.Helper()
		var all []byte
		for _, one := range authorities {
			pem, err := os.ReadFile(one.File(certs.AuthorityCert))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, pem...)
		}
		if err := os.WriteFile(files.ClientCA, all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust(a, other)
	s := start(t, func(c *Config) { c.Listen, c.TLS = []string{"mqtts://127.0.0.1:0"}, files })
	connect := func(config *tls.Config) *mqtttest.Client {
		t.Helper()
		config.RootCAs = a.Trust().RootCAs
		nc, err := tls.Dial("tcp", s.Addrs()[0].String(), config)
		if err != nil {
			t.Fatal(err)
		}
		c := mqtttest.NewClient(t, nc)
		c.Connect()
		return c
	}
	stolen, kept, foreign := connect(a.Client("stolen")), connect(a.Client("kept")), connect(other.Client("foreign"))

	if _, err := a.Revoke(a.File("stolen.crt")); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	stolen.AwaitDisconnect(mqtt.NotAuthorized)
	kept.Ping()
	foreign.Ping()

	trust(a)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	foreign.AwaitDisconnect(mqtt.NotAuthorized)
	kept.Ping()
}

func TestURLs(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	s := start(t, func(c *Config) {
		c.Listen = []string{"127.0.0.1:0", "mqtts://127.0.0.1:0", "wss://127.0.0.1:0/mqtt"}
		c.WebSocket = []string{"127.0.0.1:0"}
		c.TLS = a.Server("server")
	})
	var schemes []string
	for _, u := range s.URLs() {
		schemes = append(schemes, u.Scheme)
		if _, port, _ := net.SplitHostPort(u.Host); port == "0" {
			t.Errorf("%s has no port", u)
		}
	}
	if got := strings.Join(schemes, " "); got != "mqtt mqtts wss ws" || len(s.Addrs()) != 2 || len(s.WebSocketAddrs()) != 2 {
		t.Errorf("%s; %v; %v", got, s.Addrs(), s.WebSocketAddrs())
	}
}
