package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// Files name what a listener with TLS uses. Cert and Key are needed.
type Files struct {
	Cert     string // PEM: the server's certificate, then those between it and the root
	Key      string // PEM, not encrypted
	ClientCA string // PEM: authorities whose certificates clients show; empty: clients show none
	CRL      string // PEM or DER: revocation lists of those authorities; empty: none
	// ClientAuth says whether a client must show a certificate: Required (the default) or
	// Optional.
	ClientAuth string
	MinVersion string // "1.2" (the default) or "1.3"
}

// What ClientAuth says.
const (
	Required = "required"
	Optional = "optional"
)

// IsZero says whether nothing is set.
func (f Files) IsZero() bool { return f == Files{} }

// Or is f with what it leaves out taken from defaults.
func (f Files) Or(defaults Files) Files {
	or := func(value *string, otherwise string) {
		if *value == "" {
			*value = otherwise
		}
	}
	if f.Cert == "" && f.Key == "" { // they belong together
		f.Cert, f.Key = defaults.Cert, defaults.Key
	}
	if f.ClientCA == "" { // so do these
		or(&f.CRL, defaults.CRL)
		or(&f.ClientAuth, defaults.ClientAuth)
	}
	or(&f.ClientCA, defaults.ClientCA)
	or(&f.MinVersion, defaults.MinVersion)
	return f
}

// Server is what a listener shows to its clients, and what it asks of them. Its methods
// are safe for concurrent use.
type Server struct {
	files  Files
	http   bool
	now    func() time.Time
	config atomic.Pointer[tls.Config] // of what was read last
	trust  atomic.Pointer[trust]      // read with it; nil: clients show no certificates
	base   *tls.Config                // has the keys of session tickets, which crypto/tls renews
}

// NewServer reads the files. http says that HTTP is spoken above, as WebSocket begins.
func NewServer(files Files, http bool) (*Server, error) {
	s := &Server{files: files, http: http, now: time.Now}
	s.base = &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.config.Load(), nil
		},
	}
	return s, s.Reload()
}

// Files are the files that are read: Reload is to be called when one of them has changed.
func (s *Server) Files() (names []string) {
	for _, name := range []string{s.files.Cert, s.files.Key, s.files.ClientCA, s.files.CRL} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Reload reads the files again. If something is wrong with them, what was read before
// stays in use. Connections that exist go on; Vouches says for which of them that is wrong.
func (s *Server) Reload() error {
	config, trusted, err := s.read()
	if err == nil {
		s.config.Store(config)
		s.trust.Store(trusted)
	}
	return err
}

// Vouches says whether the certificate that a client has shown, if any, is still good for
// what was read last: it is not revoked, and its authority is there. It computes nothing,
// and does not look at the clock.
func (s *Server) Vouches(cs *tls.ConnectionState) bool {
	trusted := s.trust.Load()
	return trusted == nil || len(cs.PeerCertificates) == 0 || trusted.anyOf(cs.VerifiedChains)
}

// VerifyClient says by which authorities a certificate is good that a client has shown to another
// program, as in a handshake: leaf first, with those between it and an authority.
func (s *Server) VerifyClient(shown []*x509.Certificate) ([][]*x509.Certificate, error) {
	pool, trusted := s.config.Load().ClientCAs, s.trust.Load()
	if pool == nil || trusted == nil || len(shown) == 0 {
		return nil, errors.New("no client's certificate is asked for")
	}
	chains, err := verifyAgain(shown, pool, s.now())
	if err != nil {
		return nil, err
	}
	if !trusted.anyOf(chains) {
		return nil, &NotTrusted{shown[0], errRevoked}
	}
	return chains, nil
}

// verifyAgain verifies certificates that a client has shown before.
func verifyAgain(shown []*x509.Certificate, pool *x509.CertPool, now time.Time) ([][]*x509.Certificate, error) {
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, &NotTrusted{shown[0], err}
	}
	return chains, nil
}

// Config is a configuration that uses what was read last, for each new connection.
func (s *Server) Config() *tls.Config { return s.base }

func (s *Server) read() (*tls.Config, *trust, error) {
	config := &tls.Config{
		MinVersion:                  tls.VersionTLS12,
		DynamicRecordSizingDisabled: true, // one flush is one record
		Time:                        s.now,
	}
	switch s.files.MinVersion {
	case "", "1.2":
	case "1.3":
		config.MinVersion = tls.VersionTLS13
	default:
		return nil, nil, fmt.Errorf("the least TLS version %q: want 1.2 or 1.3", s.files.MinVersion)
	}
	if s.http {
		config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
	}
	pair, err := s.pair()
	if err != nil {
		return nil, nil, err
	}
	config.Certificates = []tls.Certificate{pair}
	trusted, err := s.askClients(config)
	return config, trusted, err
}

// pair reads the server's own certificate.
func (s *Server) pair() (tls.Certificate, error) {
	cert, err := readPEM(s.files.Cert, "CERTIFICATE", "the server's certificate")
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := os.ReadFile(s.files.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the private key: %w", err)
	}
	if isEncrypted(key) {
		return tls.Certificate{}, fmt.Errorf("%s: the private key is encrypted, and a server starts without a person: decrypt it with openssl pkey -in %s -out NEWFILE", s.files.Key, s.files.Key)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		if keyOnly, _ := pem.Decode(key); keyOnly == nil {
			return tls.Certificate{}, fmt.Errorf("%s: no PEM private key in it", s.files.Key)
		}
		return tls.Certificate{}, fmt.Errorf("%s and %s are no pair: %w; name the key that the certificate was made for", s.files.Cert, s.files.Key, err)
	}
	return pair, s.checkDates(s.files.Cert, pair.Leaf)
}

// isEncrypted says whether a PEM file has a private key that needs a password.
func isEncrypted(file []byte) bool {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		//lint:ignore SA1019 Keys of this form exist, and are refused here.
		if block.Type == "ENCRYPTED PRIVATE KEY" || x509.IsEncryptedPEMBlock(block) {
			return true
		}
	}
	return false
}

func (s *Server) checkDates(file string, cert *x509.Certificate) error {
	switch now := s.now(); {
	case now.After(cert.NotAfter):
		return fmt.Errorf("%s: the certificate of %q has expired on %s: get a new one", file, cert.Subject, cert.NotAfter.Format(time.DateTime))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("%s: the certificate of %q is valid from %s on, and it is %s now: look at this machine's clock", file, cert.Subject, cert.NotBefore.Format(time.DateTime), now.UTC().Format(time.DateTime))
	}
	return nil
}

// askClients has clients show certificates of the authorities, and refuses revoked ones.
func (s *Server) askClients(config *tls.Config) (*trust, error) {
	switch f := s.files; {
	case f.ClientAuth != "" && f.ClientAuth != Required && f.ClientAuth != Optional:
		return nil, fmt.Errorf("whether clients show certificates: %q: want %s or %s", f.ClientAuth, Required, Optional)
	case f.ClientCA == "" && f.CRL != "":
		return nil, fmt.Errorf("%s: revocation lists are for clients' certificates, and none are asked for: name the authorities that sign them", f.CRL)
	case f.ClientCA == "" && f.ClientAuth != "":
		return nil, fmt.Errorf("clients' certificates are %s, but no authorities are named that sign them", f.ClientAuth)
	case f.ClientCA == "":
		return nil, nil
	}
	file, err := readPEM(s.files.ClientCA, "CERTIFICATE", "the authorities of clients")
	if err != nil {
		return nil, err
	}
	authorities, err := parseCertificates(s.files.ClientCA, file)
	if err != nil {
		return nil, err
	}
	pool, trusted := x509.NewCertPool(), &trust{authorities: map[string]bool{}}
	for _, a := range authorities {
		if err := s.checkDates(s.files.ClientCA, a); err != nil {
			return nil, err
		}
		if a.Version == 3 && !a.IsCA {
			return nil, fmt.Errorf("%s: the certificate of %q is not that of an authority", s.files.ClientCA, a.Subject)
		}
		pool.AddCert(a)
		trusted.authorities[authorityOf(a)] = true
	}
	if s.files.CRL != "" {
		if trusted.revoked, err = readRevocations(s.files.CRL, authorities, s.now()); err != nil {
			return nil, err
		}
	}
	config.ClientCAs = pool
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if s.files.ClientAuth == Optional {
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		return s.verify(&cs, pool, trusted)
	}
	return trusted, nil
}

// verify looks at a client's certificate once more: whether it is revoked, and if the
// client resumes a session, whether the authorities of today vouch for it.
func (s *Server) verify(cs *tls.ConnectionState, pool *x509.CertPool, trusted *trust) error {
	if len(cs.PeerCertificates) == 0 {
		return nil
	}
	chains := cs.VerifiedChains
	if cs.DidResume {
		var err error
		if chains, err = verifyAgain(cs.PeerCertificates, pool, s.now()); err != nil {
			return err
		}
	}
	if trusted.anyOf(chains) {
		return nil
	}
	return &NotTrusted{cs.PeerCertificates[0], errRevoked}
}

// maxFile bounds the files that are read, in bytes.
const maxFile = 16 << 20

// readPEM reads a file that has a block of some type in it.
func readPEM(name, kind, what string) ([]byte, error) {
	file, err := readFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == kind {
			return file, nil
		}
	}
	return nil, fmt.Errorf("%s: no PEM block %q in it, and %s should be one", name, kind, what)
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s: it has %d bytes, more than the %d MiB that are read", name, info.Size(), maxFile>>20)
	}
	return os.ReadFile(name)
}

func parseCertificates(name string, file []byte) (certs []*x509.Certificate, err error) {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", name, len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// trust is which authorities sign clients' certificates, and which of those are revoked.
type trust struct {
	authorities map[string]bool // by authorityOf
	revoked     revocations
}

// anyOf says whether one of the chains begins at an authority and has nothing revoked.
func (t *trust) anyOf(chains [][]*x509.Certificate) bool {
	return slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return t.authorities[authorityOf(chain[len(chain)-1])] && !t.revoked.anyOf(chain)
	})
}

// revocations are the serial numbers of revoked certificates, by the authority that has
// signed both them and the list.
type revocations map[string]map[string]bool

// anyOf says whether a certificate of the chain is revoked.
func (r revocations) anyOf(chain []*x509.Certificate) bool {
	for i, c := range chain[:max(len(chain)-1, 0)] {
		if r[authorityOf(chain[i+1])][c.SerialNumber.String()] {
			return true
		}
	}
	return false
}

// authorityOf tells authorities apart: by their key, which outlives a certificate.
func authorityOf(c *x509.Certificate) string { return string(c.RawSubjectPublicKeyInfo) }

// readRevocations reads revocation lists, which some of the authorities must have signed.
func readRevocations(name string, authorities []*x509.Certificate, now time.Time) (revocations, error) {
	file, err := readFile(name)
	if err != nil {
		return nil, fmt.Errorf("the revocation lists: %w", err)
	}
	lists, err := parseLists(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	all := revocations{}
	for i, list := range lists {
		signer, err := signerOf(list, authorities)
		if err != nil {
			return nil, fmt.Errorf("%s: list %d: %w", name, i+1, err)
		}
		if !list.NextUpdate.IsZero() && now.After(list.NextUpdate) {
			return nil, fmt.Errorf("%s: list %d of %q was to be replaced by %s: get the new one", name, i+1, list.Issuer, list.NextUpdate.Format(time.DateTime))
		}
		serials := all[authorityOf(signer)]
		if serials == nil {
			serials = map[string]bool{}
			all[authorityOf(signer)] = serials
		}
		for _, entry := range list.RevokedCertificateEntries {
			serials[entry.SerialNumber.String()] = true
		}
	}
	return all, nil
}

func signerOf(list *x509.RevocationList, authorities []*x509.Certificate) (*x509.Certificate, error) {
	for _, a := range authorities {
		if bytes.Equal(a.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(a) == nil {
			return a, nil
		}
	}
	return nil, fmt.Errorf("it is signed by %q, which is none of the authorities of clients", list.Issuer)
}

func parseLists(file []byte) (lists []*x509.RevocationList, err error) {
	if !bytes.Contains(file, []byte("-----BEGIN")) {
		list, err := x509.ParseRevocationList(file)
		return []*x509.RevocationList{list}, err
	}
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			continue
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		lists = append(lists, list)
	}
	if lists == nil {
		return nil, errors.New(`no PEM block "X509 CRL" in it`)
	}
	return lists, nil
}
