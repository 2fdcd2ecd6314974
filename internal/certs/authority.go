package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/keyfile"
)

// The files of an authority in its directory.
const (
	AuthorityCert = "ca.crt"
	AuthorityKey  = "ca.key"
	AuthorityCRL  = "ca.crl"
)

// Authority signs certificates. Its private key is a file in its directory, which only
// its owner may read.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority makes an authority in a directory, with an empty revocation list. It
// overwrites nothing.
func NewAuthority(dir, name string, valid time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if err := begin(template, valid); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, key: key}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if err := writeKey(filepath.Join(dir, AuthorityKey), key, ""); err != nil {
		return nil, err
	}
	if err := writeNew(filepath.Join(dir, AuthorityCert), encode("CERTIFICATE", der), 0o644); err != nil {
		return nil, err
	}
	list, err := a.list(nil, 1)
	if err != nil {
		return nil, err
	}
	return a, writeNew(filepath.Join(dir, AuthorityCRL), list, 0o644)
}

// OpenAuthority reads the authority of a directory. password is that of its key, if it is
// encrypted.
func OpenAuthority(dir, password string) (*Authority, error) {
	name := filepath.Join(dir, AuthorityCert)
	file, err := readPEM(name, "CERTIFICATE", "the authority's certificate")
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(name, file)
	if err != nil {
		return nil, err
	}
	keyName := filepath.Join(dir, AuthorityKey)
	file, err = readPEMKey(keyName, password)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyName, err)
	}
	if public, ok := certs[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("%s and %s are no pair", name, keyName)
	}
	return &Authority{dir: dir, cert: certs[0], key: key}, nil
}

func readPEMKey(name, password string) ([]byte, error) {
	file, err := readFile(name)
	if err != nil {
		return nil, fmt.Errorf("the authority's private key: %w", err)
	}
	if file, err = keyfile.Decrypt(file, password); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}

func parseKey(file []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if s, ok := key.(crypto.Signer); ok {
				return s, nil
			}
		}
		if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
			return key, nil
		}
		if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
			return key, nil
		}
	}
	return nil, errors.New("no private key in it that can sign")
}

// Request says what a certificate is for.
type Request struct {
	Name     string        // its subject's common name: a client's identity
	Hosts    []string      // names, IP addresses and URIs by which a server is reached; none: it is a client's
	Server   bool          // it is a server's
	Node     bool          // it is that of a node of a cluster, which shows it as a server and as a client
	Valid    time.Duration // from now on
	Password string        // encrypts the private key; empty: it is not encrypted
}

// Issue makes a key and a certificate for it, in the files out.key and out.crt. It
// overwrites nothing.
func (a *Authority) Issue(r Request, out string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: r.Name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	switch {
	case r.Node:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	case r.Server:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	if err := begin(template, r.Valid); err != nil {
		return err
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		return fmt.Errorf("the certificate would be valid beyond its authority, whose own ends on %s: ask for fewer days", a.cert.NotAfter.Format(time.DateOnly))
	}
	for _, host := range r.Hosts {
		if err := addHost(template, host); err != nil {
			return err
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	if err := writeKey(out+".key", key, r.Password); err != nil {
		return err
	}
	return writeNew(out+".crt", encode("CERTIFICATE", der), 0o644)
}

// begin gives a certificate its serial number and its dates. It begins a little in the
// past, for clocks that are behind.
func begin(template *x509.Certificate, valid time.Duration) (err error) {
	if valid <= 0 {
		return errors.New("a certificate must be valid for at least a day")
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-5*time.Minute), now.Add(valid)
	return err
}

func addHost(template *x509.Certificate, host string) error {
	switch ip := net.ParseIP(strings.Trim(host, "[]")); {
	case ip != nil:
		template.IPAddresses = append(template.IPAddresses, ip)
	case strings.Contains(host, "://"):
		u, err := url.Parse(host)
		if err != nil {
			return fmt.Errorf("%q: %w", host, err)
		}
		template.URIs = append(template.URIs, u)
	case host == "" || strings.ContainsAny(host, " /:@\t\n"):
		return fmt.Errorf("%q: want a host name, an IP address or a URI", host)
	default:
		template.DNSNames = append(template.DNSNames, host)
	}
	return nil
}

// list makes a revocation list. It may be used as long as its authority: each change makes
// a new one.
func (a *Authority) list(entries []x509.RevocationListEntry, number int64) ([]byte, error) {
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(number), ThisUpdate: time.Now().Add(-5 * time.Minute), NextUpdate: a.cert.NotAfter, RevokedCertificateEntries: entries,
	}, a.cert, a.key)
	return encode("X509 CRL", der), err
}

// Revoke puts the certificate in a file on the authority's revocation list, which servers
// read again when it has changed.
func (a *Authority) Revoke(file string) (*x509.Certificate, error) {
	text, err := readPEM(file, "CERTIFICATE", "what is to be revoked")
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(file, text)
	if err != nil {
		return nil, err
	}
	cert := certs[0]
	if err := cert.CheckSignatureFrom(a.cert); err != nil {
		return nil, fmt.Errorf("%s: the authority in %s has not signed it", file, a.dir)
	}
	name := filepath.Join(a.dir, AuthorityCRL)
	var entries []x509.RevocationListEntry
	number := int64(1)
	switch old, err := readFile(name); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		lists, err := parseLists(old)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := lists[0].CheckSignatureFrom(a.cert); err != nil {
			return nil, fmt.Errorf("%s: the authority in %s has not signed it", name, a.dir)
		}
		entries = lists[0].RevokedCertificateEntries
		number = lists[0].Number.Int64() + 1
	}
	for _, e := range entries {
		if e.SerialNumber.Cmp(cert.SerialNumber) == 0 {
			return cert, nil
		}
	}
	entries = append(entries, x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: time.Now()})
	list, err := a.list(entries, number)
	if err != nil {
		return nil, err
	}
	// A server must never read half of it.
	temporary := name + ".new"
	if err := os.WriteFile(temporary, list, 0o644); err != nil {
		return nil, err
	}
	return cert, os.Rename(temporary, name)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeKey writes a private key that only the owner may read.
func writeKey(name string, key crypto.PrivateKey, password string) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	file := encode("PRIVATE KEY", der)
	if password != "" {
		if file, err = keyfile.Encrypt(der, password); err != nil {
			return err
		}
	}
	return writeNew(name, file, 0o600)
}

// writeNew writes a file that must not exist yet.
func writeNew(name string, content []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists already, and is not overwritten", name)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}
