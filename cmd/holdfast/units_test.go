package main

import (
	"bytes"
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
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestParsePX(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Duration{
		"1":                   time.Millisecond,
		"1500":                1500 * time.Millisecond,
		"1.5s":                1500 * time.Millisecond,
		"2h":                  2 * time.Hour,
		"500us":               500 * time.Microsecond, // the client rounds up
		"0":                   0,
		"-1":                  0,
		"0s":                  0,
		"-1s":                 0,
		"":                    0,
		"soon":                0,
		"1e3":                 0,
		"9223372036854775807": 0,
	} {
		got, err := parsePX(s)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
}

func TestWord(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"plain":       "plain",
		"päß/日本:1":    "päß/日本:1",
		"":            `""`,
		"two words":   `"two words"`,
		"line\n":      `"line\n"`,
		`say "hi"`:    `"say \"hi\""`,
		"\xff":        `"\xff"`,
		"\x1b[31mred": `"\x1b[31mred"`, // a value must not drive the terminal
	} {
		if got := word(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

// When TLS is used, and where the server is then.
func TestAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		c    connection
		want string
		tls  bool
	}{
		{connection{}, "localhost:1883", false},
		{connection{port: 99}, "localhost:99", false},
		{connection{tls: true}, "localhost:8883", true},
		{connection{caFile: "ca.pem"}, "localhost:8883", true},
		{connection{certFile: "c.pem", keyFile: "k.pem", port: 99}, "localhost:99", true},
		{connection{caFile: "ca.pem", noTLS: true}, "localhost:1883", false},
		{connection{hostname: "::1"}, "[::1]:1883", false},
		{connection{hostname: "[::1]"}, "[::1]:1883", false},
		{connection{hostname: "wss://h/mqtt"}, "wss://h/mqtt", false},
		{connection{hostname: "ws://h", port: 1}, "", false},
	} {
		if test.c.hostname == "" {
			test.c.hostname = "localhost"
		}
		got, err := test.c.address()
		if got != test.want || (err == nil) != (test.want != "") || test.c.usesTLS() != test.tls {
			t.Errorf("%+v: %q, TLS %v, %v; want %q, TLS %v", test.c, got, test.c.usesTLS(), err, test.want, test.tls)
		}
	}
}

func TestFlagsAreThoseOfStatestoreCLI(t *testing.T) {
	t.Parallel()
	root := newRootCommand()
	for flag, commands := range map[string]string{
		"hostname n": "get set del vdel watch scan", "port p": "get set del vdel watch scan", "notls ": "get set del vdel watch scan",
		"cafile T": "get set del vdel watch scan", "certfile C": "get set del vdel watch scan", "keyfile K": "get set del vdel watch scan",
		"key k": "get set del vdel watch", "value ": "set vdel", "valuefile f": "get set vdel",
	} {
		long, short, _ := strings.Cut(flag, " ")
		for _, name := range strings.Fields(commands) {
			cmd, _, err := root.Find([]string{name})
			if err != nil {
				t.Fatal(err)
			}
			if f := cmd.Flags().Lookup(long); f == nil || f.Shorthand != short {
				t.Errorf("%s: --%s, -%s: %+v", name, long, short, f)
			}
		}
	}
}

// A certificate of one's own making, trusted with --cafile and shown with
// --certfile and --keyfile.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	certFile, keyFile := selfSigned(t)
	c := connection{caFile: certFile, certFile: certFile, keyFile: keyFile}
	config, err := c.tlsConfig()
	if err != nil || config.RootCAs == nil || len(config.Certificates) != 1 {
		t.Fatalf("%+v, %v", config, err)
	}
	if _, err := (&connection{caFile: keyFile}).tlsConfig(); err == nil || !strings.Contains(err.Error(), "no PEM certificate") {
		t.Errorf("a key as --cafile: %v", err)
	}
	encrypted := filepath.Join(t.TempDir(), "key.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})
	if err := os.WriteFile(encrypted, block, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&connection{certFile: certFile, keyFile: encrypted}).tlsConfig(); err == nil || !strings.Contains(err.Error(), "openssl pkey") {
		t.Errorf("an encrypted key: %v", err)
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
		var out, errOut bytes.Buffer
		line := append([]string{"get", "k", "-p", port}, strings.Fields(args)...)
		if code := run(t.Context(), line, nil, &out, &errOut); code != exitError || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: status %d, %q; want %q", args, code, errOut.String(), want)
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
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert},
		keyFile:  {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// A terminal gets a line end after the value and an OK after a write; what
// tells it apart is that it is a character device, and not its name.
func TestOnlyATerminalIsSpokenTo(t *testing.T) {
	t.Parallel()
	if isTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is taken for a terminal")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if isTerminal(f) {
		t.Error("a file is taken for a terminal")
	}
}

// Every command says what it is for, and how.
func TestHelp(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newRootCommand())
}
