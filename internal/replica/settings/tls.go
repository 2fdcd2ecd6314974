package settings

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Certificates are those by which a node proves itself to the others, and they to it. They are read
// again while the node runs. Its methods are safe for concurrent use.
type Certificates struct {
	settings Settings
	added    *Hosts
	current  atomic.Pointer[tls.Config]
}

// Certificates reads them, as TLS does; nil: there are none.
func (s *Settings) Certificates(added *Hosts) (*Certificates, error) {
	if s.Cert == "" {
		return nil, nil
	}
	c := &Certificates{settings: *s, added: added}
	return c, c.Reload()
}

// Files are those that are read.
func (c *Certificates) Files() []string {
	return []string{c.settings.Cert, c.settings.Key, c.settings.CA}
}

// Reload reads them again. If something is wrong with them, what was read before stays in use.
// Connections that exist go on.
func (c *Certificates) Reload() error {
	config, err := c.settings.TLS(c.added)
	if err == nil {
		c.current.Store(config)
	}
	return err
}

// Config is a configuration for both ends of a connection whose GetConfigForClient gives what was
// read last, whichever client it is given, also nil; nil: nodes do not prove themselves.
func (c *Certificates) Config() *tls.Config {
	if c == nil {
		return nil
	}
	config := c.current.Load().Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil }
	return config
}

// TLS makes the configuration by which this node proves itself to the others, and they to it;
// nil without certificates. It fails if the node's certificate would be refused: nodes show
// it as servers and as clients.
//
// A peer's certificate must be signed by the nodes' authority, be for servers and for clients,
// and be valid for the host of one of the peers, or of a node in added, which is nil if there
// are none. So the certificates of MQTT clients do not make a node, even if the same authority
// has signed them.
func (s *Settings) TLS(added *Hosts) (*tls.Config, error) {
	if s.Cert == "" {
		return nil, nil
	}
	pair, authorities, err := s.readFiles()
	if err != nil {
		return nil, err
	}
	peers, err := s.ParsePeers()
	if err != nil {
		return nil, err
	}
	var hosts []string
	own := ""
	for _, p := range peers {
		host, _, _ := net.SplitHostPort(p.Address)
		hosts = append(hosts, host)
		if p.Name == s.Node {
			own = host
		}
	}
	if err := checkOwn(&pair, authorities, own); err != nil {
		return nil, fmt.Errorf("--cluster-cert %s: %w", s.Cert, err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      authorities,
		ClientCAs:    authorities,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		// Each connection verifies the certificates anew.
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("the other node shows no certificate")
			}
			if IsFront(cs.PeerCertificates[0]) { // it proves nothing to a program that connects, see there
				return nil // package port says what it may do
			}
			return isNode(cs.PeerCertificates[0], append(slices.Clone(hosts), added.get()...))
		},
	}, nil
}

// FrontURI is in the certificate of a front.
const FrontURI = "holdfast://front"

// IsFront says whether a certificate, which the nodes' authority has signed, is that of a front.
// It is for clients only: no program that connects to a node takes it for a node's.
func IsFront(c *x509.Certificate) bool {
	return len(c.ExtKeyUsage) == 1 && c.ExtKeyUsage[0] == x509.ExtKeyUsageClientAuth &&
		slices.ContainsFunc(c.URIs, func(u *url.URL) bool { return u.String() == FrontURI })
}

// FrontTLS makes the configuration by which a front proves itself to the nodes, and they to it; nil
// without certificates. Node and Listen are not used.
func (s *Settings) FrontTLS() (*tls.Config, error) {
	peers, err := s.ParsePeers()
	if err == nil {
		err = s.checkFiles(peers, "front")
	}
	if err != nil || s.Cert == "" {
		return nil, err
	}
	pair, authorities, err := s.readFiles()
	if err != nil {
		return nil, err
	}
	if !IsFront(pair.Leaf) {
		return nil, fmt.Errorf("--cluster-cert %s: the certificate of %q is not that of a front: \"holdfast cert front\" makes one", s.Cert, pair.Leaf.Subject)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      authorities,
		VerifyConnection: func(cs tls.ConnectionState) error { // the host is verified already
			return forNodes(cs.PeerCertificates[0])
		},
	}, nil
}

// readFiles reads the certificate with its key, and the authorities.
func (s *Settings) readFiles() (pair tls.Certificate, authorities *x509.CertPool, err error) {
	if pair, err = tls.LoadX509KeyPair(s.Cert, s.Key); err != nil {
		return pair, nil, fmt.Errorf("--cluster-cert %s, --cluster-key %s: %w", s.Cert, s.Key, err)
	}
	pem, err := os.ReadFile(s.CA)
	if err != nil {
		return pair, nil, fmt.Errorf("--cluster-ca: %w", err)
	}
	authorities = x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return pair, nil, fmt.Errorf("--cluster-ca %s: no PEM certificate in it", s.CA)
	}
	return pair, authorities, nil
}

// Hosts are those of nodes that the settings do not name, because they were added to the cluster.
// Its methods are safe for concurrent use. nil has none.
type Hosts struct{ all atomic.Pointer[[]string] }

// Set replaces them by those of addresses.
func (h *Hosts) Set(addresses []string) {
	var all []string
	for _, a := range addresses {
		if host, _, err := net.SplitHostPort(a); err == nil {
			all = append(all, host)
		}
	}
	h.all.Store(&all)
}

func (h *Hosts) get() []string {
	if h == nil {
		return nil
	}
	if all := h.all.Load(); all != nil {
		return *all
	}
	return nil
}

// ErrNoNode: a certificate of the nodes' authority is not one of a node.
var ErrNoNode = errors.New("it is not a node's")

// isNode says why a certificate, which the authority has signed, is none of a node at one of
// these hosts; nil: it is one.
func isNode(c *x509.Certificate, hosts []string) error {
	if err := forNodes(c); err != nil {
		return err
	}
	for _, host := range hosts {
		if c.VerifyHostname(host) == nil {
			return nil
		}
	}
	return fmt.Errorf("the certificate of %q: %w, because it is for %s, and no node of the cluster, as far as this one knows, is at one of these: make it with --host and the node's host", c.Subject, ErrNoNode, namesOf(c))
}

// forNodes says why a certificate is not for nodes, wherever they are; nil: it is.
func forNodes(c *x509.Certificate) error {
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if !slices.Contains(c.ExtKeyUsage, usage) && !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) {
			return fmt.Errorf("the certificate of %q: %w, because it is not for servers and for clients: \"holdfast cert node\" makes one", c.Subject, ErrNoNode)
		}
	}
	return nil
}

// namesOf are the names that a certificate is for.
func namesOf(c *x509.Certificate) string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no host"
	}
	return strings.Join(names, ", ")
}

// checkOwn says why others would refuse this node's certificate.
func checkOwn(pair *tls.Certificate, authorities *x509.CertPool, host string) error {
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return explain(err, pair.Leaf)
	}
	return isNode(pair.Leaf, []string{host})
}

// Explain says what to do about an error of a connection between nodes, if it is one of their
// certificates; it returns any other as it is.
func Explain(err error) error {
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) && len(verification.UnverifiedCertificates) > 0 {
		return explain(verification.Err, verification.UnverifiedCertificates[0])
	}
	var failed *net.OpError
	if errors.As(err, &failed) && failed.Op == "remote error" { // an alert of TLS
		return fmt.Errorf("the other node refuses this node's certificate, and its log says why (%w): all nodes need certificates of one authority, in --cluster-cert, and that authority in --cluster-ca", err)
	}
	var record tls.RecordHeaderError
	if errors.As(err, &record) {
		return fmt.Errorf("the other node does not speak TLS (%w): give all nodes --cluster-cert, --cluster-key and --cluster-ca, or none of them", err)
	}
	return err
}

func explain(err error, c *x509.Certificate) error {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return fmt.Errorf("the certificate of %q is signed by %q, which is not in --cluster-ca: give all nodes certificates of one authority, and that authority: %w", c.Subject, c.Issuer, err)
	case errors.As(err, &host):
		return fmt.Errorf("the certificate of %q is for %s, and --cluster-peers calls the node %s: make it with --host %s: %w", c.Subject, namesOf(c), host.Host, host.Host, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate of %q is valid from %s to %s: make a new one, or look at this machine's clock: %w", c.Subject, c.NotBefore.Format(time.DateTime), c.NotAfter.Format(time.DateTime), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("the certificate of %q is not for servers and for clients: \"holdfast cert node\" makes one: %w", c.Subject, err)
	}
	return err
}
