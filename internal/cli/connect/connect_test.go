package connect

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/keyfile/keyfiletest"
)

// When TLS is used, and where the server is then.
func TestAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		c    Flags
		want string
		tls  bool
	}{
		{Flags{}, "localhost:1883", false},
		{Flags{port: 99}, "localhost:99", false},
		{Flags{tls: true}, "localhost:8883", true},
		{Flags{caFile: "ca.pem"}, "localhost:8883", true},
		{Flags{certFile: "c.pem", keyFile: "k.pem", port: 99}, "localhost:99", true},
		{Flags{caFile: "ca.pem", noTLS: true}, "localhost:1883", false},
		{Flags{hostname: "::1"}, "[::1]:1883", false},
		{Flags{hostname: "[::1]"}, "[::1]:1883", false},
		{Flags{hostname: "wss://h/mqtt"}, "wss://h/mqtt", false},
		{Flags{hostname: "ws://h", port: 1}, "", false},
		{Flags{hostname: "h:99"}, "h:99", false},
		{Flags{hostname: "[::1]:99"}, "[::1]:99", false},
		{Flags{hostname: "h:99", port: 1}, "", false},
		{Flags{hostname: "a,b:99, ::1,ws://h/mqtt"}, "a:1883,b:99,[::1]:1883,ws://h/mqtt", false},
		{Flags{hostname: "a,b", port: 99}, "a:99,b:99", false},
		{Flags{hostname: "a,b", tls: true}, "a:8883,b:8883", true},
		{Flags{hostname: "a,b:99", port: 1}, "", false},
	} {
		if test.c.hostname == "" {
			test.c.hostname = "localhost"
		}
		got, err := test.c.Addresses()
		if got != test.want || (err == nil) != (test.want != "") || test.c.usesTLS() != test.tls {
			t.Errorf("%+v: %q, TLS %v, %v; want %q, TLS %v", test.c, got, test.c.usesTLS(), err, test.want, test.tls)
		}
	}
}

// A certificate of one's own making, trusted with --cafile and shown with
// --certfile and --keyfile.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	certFile, keyFile := selfSigned(t)
	c := Flags{caFile: certFile, certFile: certFile, keyFile: keyFile}
	config, err := c.TLSConfig()
	if err != nil || config.RootCAs == nil || len(config.Certificates) != 1 {
		t.Fatalf("%+v, %v", config, err)
	}
	if _, err := (&Flags{caFile: keyFile}).TLSConfig(); err == nil || !strings.Contains(err.Error(), "no PEM certificate") {
		t.Errorf("a key as --cafile: %v", err)
	}
}

// A TLS server that ends each connection tells apart the failures on the way.
func TestTLSFailuresSayWhatToDo(t *testing.T) {
	t.Parallel()
	certFile, keyFile := selfSigned(t)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = nc.Read(make([]byte, 100)); _ = nc.Close() }()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for args, want := range map[string]string{
		"--tls -n localhost":                             "its certificate is not trusted",
		"--cafile " + certFile + " -n 127.0.0.1":         "its certificate is for another host",
		"--cafile " + certFile + " -n localhost":         "the server closed the connection",
		"--notls --cafile " + certFile + " -n localhost": "the server closed the connection",
	} {
		var c Flags
		cmd := c.Command(&cobra.Command{Use: "get", SilenceErrors: true, SilenceUsage: true})
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			_, err := c.Dial(cmd)
			return err
		}
		cmd.SetArgs(append([]string{"-p", port}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", args, err, want)
		}
	}
}

// selfSigned makes a certificate for localhost.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certFile = certify(t, key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return certFile, writePEM(t, "key.pem", &pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

// certify makes a certificate for localhost of a key, signed with it.
func certify(t *testing.T, key *ecdsa.PrivateKey) (certFile string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "localhost"},
		DNSNames:              []string{"localhost"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, "cert.pem", &pem.Block{Type: "CERTIFICATE", Bytes: cert})
}

func writePEM(t *testing.T, name string, block *pem.Block) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A certificate with an encrypted key, by flags: what is missing or wrong is named.
func TestCertificateWithEncryptedKey(t *testing.T) {
	t.Parallel()
	plain, err := os.ReadFile("../../keyfile/testdata/plain.pem")
	if err != nil {
		t.Fatal(err)
	}
	certFile := certify(t, keyfiletest.Parse(t, plain))
	encrypted := "../../keyfile/testdata/pbes2-aes256-sha256.pem"
	c := Flags{certFile: certFile, keyFile: encrypted, keyPass: "secret"}
	config, err := c.TLSConfig()
	if err != nil || len(config.Certificates) != 1 || config.MinVersion != tls.VersionTLS12 {
		t.Fatalf("%+v, %v", config, err)
	}
	for want, c := range map[string]Flags{
		"--keyfile " + encrypted + " is encrypted: give its password with --keypassword (-P) or in HOLDFAST_KEYPASSWORD": {certFile: certFile, keyFile: encrypted},
		"--keyfile " + encrypted + ": --keypassword does not decrypt it":                                                 {certFile: certFile, keyFile: encrypted, keyPass: "x"},
		"HOLDFAST_KEYFILE " + encrypted + ": HOLDFAST_KEYPASSWORD does not decrypt it": {certFile: certFile, keyFile: encrypted, keyPass: "x",
			variables: map[string]string{"keyfile": "HOLDFAST_KEYFILE", "keypassword": "HOLDFAST_KEYPASSWORD"}},
		"--keyfile: open /does/not/exist": {certFile: certFile, keyFile: "/does/not/exist"},
		", --keyfile " + certFile + ": ":  {certFile: certFile, keyFile: certFile},
		"--certfile: open /does/not":      {certFile: "/does/not/exist", keyFile: encrypted},
	} {
		if _, err := c.TLSConfig(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// Without --clientid, the client ID begins with the name by which the server knows the
// client, so that the policy of holdfast init lets it connect.
func TestClientIDBeginsWithTheName(t *testing.T) {
	t.Parallel()
	certificate := func(name string) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{{Leaf: &x509.Certificate{Subject: pkix.Name{CommonName: name}}}}}
	}
	for _, c := range []struct {
		flags Flags
		tls   *tls.Config
		want  string
	}{
		{Flags{ClientID: "given", Username: "olga"}, nil, `^given$`},
		{Flags{Username: "olga"}, nil, `^olga:[a-z2-7]{16}$`},
		{Flags{}, certificate("press-7"), `^press-7:[a-z2-7]{16}$`},
		{Flags{Username: "olga"}, certificate("press-7"), `^olga:`},
		{Flags{}, nil, `^holdfast-[a-z2-7]{16}$`},
		{Flags{}, &tls.Config{}, `^holdfast-`},
		{Flags{Username: "a/b"}, nil, `^holdfast-`}, // it becomes a level of a topic
		{Flags{Username: strings.Repeat("n", 257)}, nil, `^holdfast-`},
		{Flags{}, certificate(""), `^holdfast-`},
	} {
		if got := c.flags.ClientIDFor(c.tls); !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("user name %.20q, %v: %.40q, want %s", c.flags.Username, c.tls != nil, got, c.want)
		}
	}
}
