package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
)

// shake does a handshake of a client with a server, and gives the server's error, or the
// client's if there is none.
func shake(t *testing.T, s *certs.Server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := tls.Dial("tcp", l.Addr().String(), client)
		if err == nil {
			var n int
			if n, err = c.Read(make([]byte, 1)); n == 1 { // and the session ticket before it
				err = nil
			}
			c.Close()
		}
		ended <- err
	}()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server := tls.Server(nc, s.Config())
	err = server.Handshake()
	if err == nil {
		_, _ = server.Write([]byte{1})
	}
	server.Close()
	if clientErr := <-ended; err == nil {
		err = clientErr
	}
	return server.ConnectionState(), err
}

func newServer(t *testing.T, files certs.Files) *certs.Server {
	t.Helper()
	s, err := certs.NewServer(files, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	s := newServer(t, a.Mutual("server"))
	state, err := shake(t, s, a.Client("press-7"))
	if err != nil || state.PeerCertificates[0].Subject.CommonName != "press-7" {
		t.Errorf("a client with a certificate: %v", err)
	}
	if _, err := shake(t, s, a.Trust()); err == nil {
		t.Error("a client without a certificate was let in")
	}
	stranger := other.Client("press-7")
	stranger.RootCAs = a.Trust().RootCAs
	if _, err := shake(t, s, stranger); err == nil {
		t.Error("a client of another authority was let in")
	}
	asServer := a.Show("server")
	if _, err := shake(t, s, asServer); err == nil {
		t.Error("a server's certificate was taken for a client's")
	}

	files := a.Mutual("lenient")
	files.ClientAuth = certs.Optional
	s = newServer(t, files)
	if _, err := shake(t, s, a.Trust()); err != nil {
		t.Errorf("certificates are optional: %v", err)
	}
	if _, err := shake(t, s, stranger); err == nil {
		t.Error("one of another authority was let in where they are optional")
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for _, test := range []struct {
		least  string
		client uint16
		ok     bool
	}{{"", tls.VersionTLS11, false}, {"", tls.VersionTLS12, true}, {"1.2", tls.VersionTLS13, true}, {"1.3", tls.VersionTLS12, false}, {"1.3", tls.VersionTLS13, true}} {
		files := a.Server(strings.ReplaceAll("s"+test.least+tls.VersionName(test.client), " ", ""))
		files.MinVersion = test.least
		client := a.Trust()
		client.MinVersion, client.MaxVersion = tls.VersionTLS10, test.client
		if _, err := shake(t, newServer(t, files), client); (err == nil) != test.ok {
			t.Errorf("least %q, a client of %s: %v", test.least, tls.VersionName(test.client), err)
		}
	}
}

// A certificate that is revoked is refused, also one whose client resumes a session, once
// the list has been read again.
func TestRevocation(t *testing.T) {
	t.Parallel()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			t.Parallel()
			a := certstest.New(t)
			s := newServer(t, a.Mutual("server"))
			revoked, other := a.Client("stolen"), a.Client("other")
			for _, c := range []*tls.Config{revoked, other} {
				c.MaxVersion = version
				c.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			}
			for _, resumes := range []bool{false, true} {
				if state, err := shake(t, s, revoked); err != nil || state.DidResume != resumes {
					t.Fatalf("before: %v, resumed: %v", err, state.DidResume)
				}
			}
			if _, err := a.Revoke(a.File("stolen.crt")); err != nil {
				t.Fatal(err)
			}
			if err := s.Reload(); err != nil {
				t.Fatal(err)
			}
			if _, err := shake(t, s, revoked); err == nil || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("a revoked certificate whose client resumes: %v", err)
			}
			if _, err := shake(t, s, a.Show("stolen")); err == nil {
				t.Error("a revoked certificate was let in")
			}
			if _, err := shake(t, s, other); err != nil {
				t.Errorf("another certificate: %v", err)
			}
		})
	}
}

// A client that resumes a session needs an authority of today.
func TestAnAuthorityThatIsTakenAway(t *testing.T) {
	t.Parallel()
	a, next := certstest.New(t), certstest.New(t)
	files := a.Mutual("server")
	files.CRL = ""
	files.ClientCA = filepath.Join(t.TempDir(), "clients.crt")
	certstest.Copy(t, a.File(certs.AuthorityCert), files.ClientCA)
	s := newServer(t, files)
	client := a.Client("press-7")
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if _, err := shake(t, s, client); err != nil {
		t.Fatal(err)
	}
	certstest.Copy(t, next.File(certs.AuthorityCert), files.ClientCA)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := shake(t, s, client); err == nil {
		t.Error("a client of an authority that was taken away was let in")
	}
}

// What is wrong with the files is said with the file's name, and a reload keeps what was
// read before.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	good := a.Mutual("server")
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := a.Issue(certs.Request{Name: "expired", Server: true, Valid: time.Nanosecond}, filepath.Join(dir, "expired")); err != nil {
		t.Fatal(err)
	}
	if err := a.Issue(certs.Request{Name: "encrypted", Server: true, Valid: time.Hour, Password: "secret"}, filepath.Join(dir, "encrypted")); err != nil {
		t.Fatal(err)
	}
	another := other.Server("another")
	for name, test := range map[string]struct {
		change func(*certs.Files)
		want   string // after the file's name
	}{
		"no such certificate":  {func(f *certs.Files) { f.Cert = filepath.Join(dir, "missing") }, "missing: no such file"},
		"no such key":          {func(f *certs.Files) { f.Key = filepath.Join(dir, "missing") }, "missing: no such file"},
		"no certificate in it": {func(f *certs.Files) { f.Cert = f.Key }, `server.key: no PEM block "CERTIFICATE" in it`},
		"no key in it":         {func(f *certs.Files) { f.Key = file("key", "nothing") }, "key: no PEM private key in it"},
		"another one's key":    {func(f *certs.Files) { f.Key = another.Key }, "another.key are no pair: "},
		"an expired certificate": {func(f *certs.Files) {
			f.Cert, f.Key = filepath.Join(dir, "expired.crt"), filepath.Join(dir, "expired.key")
		}, `expired.crt: the certificate of "CN=expired" has expired on`},
		"an encrypted key": {func(f *certs.Files) {
			f.Cert, f.Key = filepath.Join(dir, "encrypted.crt"), filepath.Join(dir, "encrypted.key")
		}, "encrypted.key: the private key is encrypted"},
		"a broken certificate": {func(f *certs.Files) {
			f.ClientCA = file("broken", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		}, "broken: certificate 1: "},
		"no authority":            {func(f *certs.Files) { f.ClientCA = f.Cert }, "server.crt: the certificate of \"CN=server\" is not that of an authority"},
		"another one's list":      {func(f *certs.Files) { f.CRL = other.File(certs.AuthorityCRL) }, "ca.crl: list 1: it is signed by"},
		"no list in it":           {func(f *certs.Files) { f.CRL = f.Cert }, `server.crt: no PEM block "X509 CRL" in it`},
		"a list that is garbage":  {func(f *certs.Files) { f.CRL = file("crl", "garbage") }, "crl: "},
		"a list for no authority": {func(f *certs.Files) { f.ClientCA = "" }, "ca.crl: revocation lists are for clients' certificates"},
		"asking for nothing":      {func(f *certs.Files) { f.ClientCA, f.CRL, f.ClientAuth = "", "", certs.Required }, "but no authorities are named"},
		"neither":                 {func(f *certs.Files) { f.ClientAuth = "maybe" }, `"maybe": want required or optional`},
		"an old version":          {func(f *certs.Files) { f.MinVersion = "1.1" }, `"1.1": want 1.2 or 1.3`},
		"a file of 17 MiB":        {func(f *certs.Files) { f.CRL = file("large", strings.Repeat("x", 17<<20)) }, "large: it has"},
	} {
		files := good
		test.change(&files)
		if _, err := certs.NewServer(files, false); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, test.want)
		}
	}

	// Given a server that runs, a bad file changes nothing.
	s := newServer(t, good)
	certstest.Copy(t, another.Key, good.Key)
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), "no pair") {
		t.Errorf("a key that does not match was read again: %v", err)
	}
	if _, err := shake(t, s, a.Client("press-7")); err != nil {
		t.Errorf("what was read before is not in use: %v", err)
	}
}

// A certificate that is exchanged is shown to the next client.
func TestReload(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	files, next := a.Server("server"), a.Server("next")
	s := newServer(t, files)
	certstest.Copy(t, next.Key, files.Key)
	certstest.Copy(t, next.Cert, files.Cert)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	var shown string
	client := a.Trust()
	client.VerifyConnection = func(cs tls.ConnectionState) error {
		shown = cs.PeerCertificates[0].Subject.CommonName
		return nil
	}
	if _, err := shake(t, s, client); err != nil || shown != "next" {
		t.Errorf("%q was shown, %v", shown, err)
	}
	if got := s.Files(); len(got) != 2 || got[0] != files.Cert || got[1] != files.Key {
		t.Errorf("the files are %q", got)
	}
}

func TestAuthority(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	a.Server("server")
	if runtime.GOOS != "windows" {
		for _, name := range []string{certs.AuthorityKey, "server.key"} {
			if info, err := os.Stat(a.File(name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
			}
		}
	}
	if _, err := certs.NewAuthority(a.Dir, "again", time.Hour); err == nil || !strings.Contains(err.Error(), "ca.key exists already, and is not overwritten") {
		t.Errorf("over another authority: %v", err)
	}
	if err := a.Issue(certs.Request{Name: "server", Valid: time.Hour}, a.File("server")); err == nil {
		t.Error("a certificate was overwritten")
	}
	if err := a.Issue(certs.Request{Name: "x", Valid: 48 * time.Hour}, a.File("x")); err == nil || !strings.Contains(err.Error(), "beyond its authority") {
		t.Errorf("a certificate that outlives its authority: %v", err)
	}
	for _, host := range []string{"", "a b", "user@host", "host:1"} {
		if err := a.Issue(certs.Request{Name: "y", Valid: time.Hour, Hosts: []string{host}}, a.File("y")); err == nil {
			t.Errorf("a certificate for the host %q", host)
		}
	}
	if err := a.Issue(certs.Request{Name: "z", Valid: time.Hour, Hosts: []string{"h.example.com", "192.0.2.1", "::1", "spiffe://x/y"}}, a.File("z")); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(a.File("z.crt"), a.File("z.key"))
	if err != nil {
		t.Fatal(err)
	}
	if c := pair.Leaf; len(c.DNSNames) != 1 || len(c.IPAddresses) != 2 || len(c.URIs) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("names: %q %v %v, usage %v", c.DNSNames, c.IPAddresses, c.URIs, c.ExtKeyUsage)
	}

	other := certstest.New(t)
	other.Client("foreign")
	if _, err := a.Revoke(other.File("foreign.crt")); err == nil || !strings.Contains(err.Error(), "has not signed it") {
		t.Errorf("revoked another one's: %v", err)
	}
	certstest.Copy(t, other.File(certs.AuthorityKey), a.File(certs.AuthorityKey))
	if _, err := certs.OpenAuthority(a.Dir, ""); err == nil || !strings.Contains(err.Error(), "no pair") {
		t.Errorf("an authority with another one's key: %v", err)
	}
}
