// Package certstest makes authorities and certificates for tests.
package certstest

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
)

// Authority is an authority in a directory of a test's.
type Authority struct {
	*certs.Authority
	Dir string

	tb testing.TB
}

// New makes an authority.
func New(tb testing.TB) *Authority {
	tb.Helper()
	dir := tb.TempDir()
	a, err := certs.NewAuthority(dir, "test authority", 24*time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	return &Authority{a, dir, tb}
}

// File is the path of a file in its directory.
func (a *Authority) File(name string) string { return filepath.Join(a.Dir, name) }

// Server makes the files NAME.crt and NAME.key for a server on this machine, and says
// what a listener uses of them.
func (a *Authority) Server(name string) certs.Files {
	a.tb.Helper()
	a.issue(certs.Request{Name: name, Server: true, Valid: time.Hour, Hosts: []string{"localhost", "127.0.0.1", "::1"}})
	return certs.Files{Cert: a.File(name + ".crt"), Key: a.File(name + ".key")}
}

// Mutual is Server whose clients show certificates of this authority, too.
func (a *Authority) Mutual(name string) certs.Files {
	a.tb.Helper()
	files := a.Server(name)
	files.ClientCA, files.CRL = a.File(certs.AuthorityCert), a.File(certs.AuthorityCRL)
	return files
}

// Trust is what a client that trusts this authority needs.
func (a *Authority) Trust() *tls.Config {
	a.tb.Helper()
	pem, err := os.ReadFile(a.File(certs.AuthorityCert))
	if err != nil {
		a.tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool, ServerName: "localhost"}
}

// Client makes the files NAME.crt and NAME.key for a client, and its configuration.
func (a *Authority) Client(name string) *tls.Config {
	a.tb.Helper()
	a.issue(certs.Request{Name: name, Valid: time.Hour})
	return a.Show(name)
}

// Show is Trust of a client that shows the certificate in NAME.crt.
func (a *Authority) Show(name string) *tls.Config {
	a.tb.Helper()
	pair, err := tls.LoadX509KeyPair(a.File(name+".crt"), a.File(name+".key"))
	if err != nil {
		a.tb.Fatal(err)
	}
	config := a.Trust()
	config.Certificates = []tls.Certificate{pair}
	return config
}

// Node is the configuration of a node of a cluster: it shows one certificate to those that connect to it,
// and another one to those that it connects to.
func (a *Authority) Node() *tls.Config {
	a.tb.Helper()
	files := a.Server("node")
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		a.tb.Fatal(err)
	}
	client := a.Client("node-as-client")
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      client.RootCAs, ClientCAs: client.RootCAs,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client.Certificates[0], nil },
	}
}

func (a *Authority) issue(r certs.Request) {
	a.tb.Helper()
	if err := a.Issue(r, a.File(r.Name)); err != nil {
		a.tb.Fatal(err)
	}
}

// Copy replaces the content of the file to by that of the file from.
func Copy(tb testing.TB, from, to string) {
	tb.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		tb.Fatal(err)
	}
}
