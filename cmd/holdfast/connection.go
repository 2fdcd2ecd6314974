package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast/client"
)

// connection is how the client commands reach a server. The flags are named
// like those of statestore-cli, so that its users' scripts work; unlike there,
// TLS is used only if one of its flags asks for it.
type connection struct {
	hostname string
	port     uint16 // 0: the default of the protocol
	tls      bool
	noTLS    bool
	caFile   string
	certFile string
	keyFile  string
	clientID string
	username string
	password string
	timeout  time.Duration
	verbose  bool
}

func (c *connection) addFlags(f *pflag.FlagSet) {
	f.StringVarP(&c.hostname, "hostname", "n", "localhost", "server's host name, or mqtt://, mqtts://, ws:// or wss:// address")
	f.Uint16VarP(&c.port, "port", "p", 0, "server's port (default 1883, with TLS 8883)")
	f.BoolVar(&c.tls, "tls", false, "use TLS with the system's trusted certificates")
	f.BoolVar(&c.noTLS, "notls", false, "never use TLS")
	f.StringVarP(&c.caFile, "cafile", "T", "", "use TLS and trust the certificates in this PEM `file`")
	f.StringVarP(&c.certFile, "certfile", "C", "", "use TLS and show the client certificate in this PEM `file`")
	f.StringVarP(&c.keyFile, "keyfile", "K", "", "private key `file` of the client certificate")
	f.StringVarP(&c.clientID, "clientid", "i", "", "MQTT client ID (default: a random one)")
	f.StringVarP(&c.username, "username", "u", "", "user name; Holdfast checks none yet, other servers may")
	f.StringVar(&c.password, "password", "", "password; better given in HOLDFAST_PASSWORD")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to wait for the server")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "say more: versions, and connections on standard error")
}

// command makes a cobra command one that connects.
func (c *connection) command(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{usesConnection: ""}
	c.addFlags(cmd.Flags())
	return cmd
}

// dial connects, as the flags say. The caller closes the client.
func (c *connection) dial(cmd *cobra.Command, opts ...client.Option) (*client.Client, error) {
	if c.timeout <= 0 {
		return nil, fmt.Errorf("--timeout %v: it must be positive", c.timeout)
	}
	address, err := c.address()
	if err != nil {
		return nil, err
	}
	// What the caller gives comes last, and so counts.
	opts = append([]client.Option{client.WithTimeout(c.timeout), client.WithLogger(c.logger(cmd.ErrOrStderr()))}, opts...)
	if c.clientID != "" {
		opts = append(opts, client.WithClientID(c.clientID))
	}
	password, given := c.secret(cmd)
	if name, _, both := strings.Cut(c.username, ":"); both && !given {
		return nil, fmt.Errorf("--username holds %q and a colon: give a password in HOLDFAST_PASSWORD, or an empty one there if the colon is part of the name", name)
	}
	if c.username != "" || given {
		opts = append(opts, client.WithCredentials(c.username, password))
	}
	t, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	if t != nil {
		opts = append(opts, client.WithTLS(t))
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	cl, err := client.Dial(ctx, address, opts...)
	if err != nil {
		return nil, unreachable(address, c.timeout, err)
	}
	return cl, nil
}

// secret is the password, from the flag or the environment; nil if there is none.
func (c *connection) secret(cmd *cobra.Command) (password []byte, given bool) {
	if c.password != "" || cmd.Flags().Changed("password") {
		return []byte(c.password), true
	}
	if p, ok := os.LookupEnv("HOLDFAST_PASSWORD"); ok {
		return []byte(p), true
	}
	return nil, false
}

func (c *connection) usesTLS() bool {
	return !c.noTLS && (c.tls || c.caFile != "" || c.certFile != "" || c.keyFile != "")
}

func (c *connection) address() (string, error) {
	if strings.Contains(c.hostname, "://") {
		if c.port != 0 {
			return "", errors.New("--port and an address with a scheme in --hostname exclude each other")
		}
		return c.hostname, nil
	}
	port := c.port
	switch {
	case port != 0:
	case c.usesTLS():
		port = 8883
	default:
		port = 1883
	}
	return net.JoinHostPort(strings.Trim(c.hostname, "[]"), strconv.Itoa(int(port))), nil
}

// tlsConfig is nil if TLS isn't asked for.
func (c *connection) tlsConfig() (*tls.Config, error) {
	if !c.usesTLS() {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caFile != "" {
		bundle, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, fmt.Errorf("--cafile: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("--cafile %s: no PEM certificate in it", c.caFile)
		}
	}
	if (c.certFile == "") != (c.keyFile == "") {
		return nil, errors.New("--certfile and --keyfile go together")
	}
	if c.certFile != "" {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--certfile %s, --keyfile %s: %w", c.certFile, c.keyFile, explainKey(c.keyFile, err))
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// explainKey says what to do about a key that is protected by a password.
func explainKey(keyFile string, err error) error {
	content, readErr := os.ReadFile(keyFile)
	if readErr != nil {
		return err
	}
	block, _ := pem.Decode(content)
	if block != nil && (block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "") {
		return errors.New("the private key is encrypted; decrypt it with: openssl pkey -in KEYFILE -out PLAINKEYFILE")
	}
	return err
}

// logger writes what happens to the connection to w, if -v asks for it.
func (c *connection) logger(w io.Writer) *slog.Logger {
	if !c.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// unreachable puts a failure to connect into one line that says what to do.
func unreachable(address string, timeout time.Duration, err error) error {
	var refused *client.ConnectError
	var dns *net.DNSError
	var op *net.OpError
	var hostname x509.HostnameError
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %w", address, refused)
	case errors.Is(err, client.ErrInvalidOption), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot reach %s: connection refused; is a server running? start one with: holdfast serve", address)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("cannot reach %s: no such host", address)
	case errors.As(err, &authority):
		return fmt.Errorf("cannot reach %s: its certificate is not trusted; name the file with its authority's certificate: --cafile", address)
	case errors.As(err, &hostname):
		return fmt.Errorf("cannot reach %s: its certificate is for another host: %w", address, hostname)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("cannot reach %s: no answer within %v", address, timeout)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("cannot reach %s: the server closed the connection; does it speak MQTT 5 there, and does it want TLS (--tls, --cafile)?", address)
	case errors.As(err, &op):
		return fmt.Errorf("cannot reach %s: %w", address, op.Err)
	}
	if cause := errors.Unwrap(err); cause != nil {
		err = cause // the address is said already
	}
	return fmt.Errorf("cannot reach %s: %w", address, err)
}

// bounded is the context of one request.
func (c *connection) bounded(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), c.timeout)
}
