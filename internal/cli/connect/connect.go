// Package connect is how the commands reach a server: flags and variables of the
// environment for host, port, TLS and credentials, the connection made of them, and
// errors that say what to do. It knows nothing of what a command does then.
package connect

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/keyfile"
)

// Flags is how the client commands reach a server. The flags are named
// like those of statestore-cli, so that its users' scripts work; unlike there,
// TLS is used only if one of its flags asks for it.
type Flags struct {
	hostname string
	port     uint16 // 0: the default of the protocol
	tls      bool
	noTLS    bool
	caFile   string
	certFile string
	keyFile  string
	keyPass  string
	ClientID string
	Username string
	password string
	Timeout  time.Duration
	Verbose  bool

	hasPassword bool              // set by Prepare
	variables   map[string]string // set by Prepare: the names of the environment's variables that stand in for flags
}

// Variables are the variables of the environment that take the place of
// flags. A client ID is not among them: of two commands that run at once, the server
// would disconnect the first.
var Variables = map[string]string{
	"hostname":    "HOLDFAST_HOST",
	"port":        "HOLDFAST_PORT",
	"tls":         "HOLDFAST_TLS",
	"cafile":      "HOLDFAST_CAFILE",
	"certfile":    "HOLDFAST_CERTFILE",
	"keyfile":     "HOLDFAST_KEYFILE",
	"keypassword": "HOLDFAST_KEYPASSWORD",
	"username":    "HOLDFAST_USERNAME",
	"password":    "HOLDFAST_PASSWORD",
	"timeout":     "HOLDFAST_TIMEOUT",
}

// AllVariables are the variables that the commands use which run no server.
func AllVariables() []string {
	return append(slices.Collect(maps.Values(Variables)), "HOLDFAST_CAPASSWORD", "HOLDFAST_LOCK_NAME", "HOLDFAST_LOCK_TOKEN")
}

// AddFlags adds the flags to a command's.
func (c *Flags) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&c.hostname, "hostname", "n", "localhost", "server's host name, host:port, or mqtt://, mqtts://, ws:// or wss:// address; of a cluster those of several nodes, with commas between them")
	f.Uint16VarP(&c.port, "port", "p", 0, "server's port (default 1883, with TLS 8883)")
	f.BoolVar(&c.tls, "tls", false, "use TLS with the system's trusted certificates")
	f.BoolVar(&c.noTLS, "notls", false, "never use TLS")
	f.StringVarP(&c.caFile, "cafile", "T", "", "use TLS and trust the certificates in this PEM `file`")
	f.StringVarP(&c.certFile, "certfile", "C", "", "use TLS and show the client certificate in this PEM `file`")
	f.StringVarP(&c.keyFile, "keyfile", "K", "", "private key `file` of the client certificate")
	f.StringVarP(&c.keyPass, "keypassword", "P", "", "password of an encrypted --keyfile")
	f.StringVarP(&c.ClientID, "clientid", "i", "", "MQTT client ID (default: a random one, behind the user name or the name in --certfile and a colon)")
	f.StringVarP(&c.Username, "username", "u", "", "user name")
	f.StringVar(&c.password, "password", "", "password; better given in the environment, where other users don't see it")
	f.DurationVar(&c.Timeout, "timeout", 10*time.Second, "how long to wait for the server")
	f.BoolVarP(&c.Verbose, "verbose", "v", false, "say more: versions, and connections on standard error")
	flags.NoteVariables(f, Variables)
}

// connects is the annotation of the commands that connect to a server.
const connects = "connection"

// Connects reports whether a command connects to a server.
func Connects(cmd *cobra.Command) bool {
	_, ok := cmd.Annotations[connects]
	return ok
}

// Command adds the flags to a command that connects.
func (c *Flags) Command(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{connects: ""}
	c.AddFlags(cmd.Flags())
	cmd.ValidArgsFunction = cobra.NoFileCompletions // arguments are keys, values and topics
	return cmd
}

// Dial connects as the flags say. The caller closes the client.
func (c *Flags) Dial(cmd *cobra.Command, opts ...client.Option) (*client.Client, error) {
	return connect(cmd, c, client.Dial, opts)
}

// DialSession is Dial for a session, which needs another client ID than a client that is
// connected.
func (c *Flags) DialSession(cmd *cobra.Command, opts ...client.Option) (*client.Session, error) {
	return connect(cmd, c, client.DialSession, opts)
}

func connect[T any](cmd *cobra.Command, c *Flags, dial func(context.Context, string, ...client.Option) (T, error), opts []client.Option) (cl T, err error) {
	addresses, shared, err := c.settings(cmd)
	if err != nil {
		return cl, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), c.Timeout)
	defer cancel()
	cl, err = dial(ctx, addresses, append(shared, opts...)...) // the caller's options come last, and replace the flags'
	if errors.Is(err, client.ErrInvalidOption) && strings.Contains(err.Error(), "address") {
		return cl, fmt.Errorf("%s: %w", c.Name("hostname"), err)
	}
	if err != nil {
		return cl, Unreachable(addresses, c.Timeout, err)
	}
	return cl, nil
}

// settings are the server's addresses, and the options of package client.
func (c *Flags) settings(cmd *cobra.Command) (addresses string, opts []client.Option, err error) {
	if err = c.Prepare(cmd); err != nil {
		return "", nil, err
	}
	if addresses, err = c.Addresses(); err != nil {
		return "", nil, err
	}
	opts = []client.Option{client.WithTimeout(c.Timeout), client.WithLogger(c.logger(cmd.ErrOrStderr()))}
	if strings.ContainsAny(c.ClientID, "/+#\x00") || !utf8.ValidString(c.ClientID) {
		return "", nil, fmt.Errorf("--clientid %q: want UTF-8 without /, +, # and NUL; it becomes a level of the topic of the answers", c.ClientID)
	}
	if password := c.Secret(); c.Username != "" || password != nil {
		opts = append(opts, client.WithCredentials(c.Username, password))
	}
	t, err := c.TLSConfig()
	if err != nil {
		return "", nil, err
	}
	if t != nil {
		opts = append(opts, client.WithTLS(t))
	}
	return addresses, append(opts, client.WithClientID(c.ClientIDFor(t))), nil
}

// ClientIDFor is the client ID given, or a new random one. That begins with the name by
// which the server will know the client, if it has one, so that a policy can allow a
// client just the client IDs of its own.
func (c *Flags) ClientIDFor(t *tls.Config) string {
	if c.ClientID != "" {
		return c.ClientID
	}
	name := c.Username
	if name == "" && t != nil && len(t.Certificates) > 0 && t.Certificates[0].Leaf != nil {
		name = t.Certificates[0].Leaf.Subject.CommonName
	}
	random := strings.ToLower(rand.Text()[:16])
	if name == "" || len(name) > longestName || strings.ContainsAny(name, "/+#\x00") || !utf8.ValidString(name) {
		return "holdfast-" + random
	}
	return name + ":" + random // no name in a password file has a colon
}

// longestName is up to how many bytes a name becomes a part of the client ID.
const longestName = 256

// Prepare completes the flags from the environment and checks them.
func (c *Flags) Prepare(cmd *cobra.Command) (err error) {
	if c.variables, err = flags.TakeVariables(cmd, Variables); err != nil {
		return err
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("%s %v: it must be positive", c.Name("timeout"), c.Timeout)
	}
	if c.keyPass != "" && c.keyFile == "" {
		return fmt.Errorf("%s is for an encrypted --keyfile, and there is none; the password of a user is --password", c.Name("keypassword"))
	}
	c.hasPassword = cmd.Flags().Changed("password") || cmd.Root().Flags().Changed("password")
	if name, _, both := strings.Cut(c.Username, ":"); both && !c.hasPassword {
		return fmt.Errorf("%s holds %q and a colon: give a password in HOLDFAST_PASSWORD, or an empty one there if the colon is part of the name", c.Name("username"), name)
	}
	return nil
}

// Secret is the password, which may be empty; nil if there is none.
func (c *Flags) Secret() []byte {
	if !c.hasPassword {
		return nil
	}
	return []byte(c.password)
}

// Name says where a setting comes from, for errors: its flag, or the variable that
// stands in for it.
func (c *Flags) Name(flag string) string {
	if variable, ok := c.variables[flag]; ok {
		return variable
	}
	return "--" + flag
}

func (c *Flags) usesTLS() bool {
	return !c.noTLS && (c.tls || c.caFile != "" || c.certFile != "" || c.keyFile != "")
}

// Addresses are the server's, or those of the nodes of a cluster, as package client takes them.
func (c *Flags) Addresses() (string, error) {
	list := strings.Split(c.hostname, ",")
	for i, given := range list {
		var err error
		if list[i], err = c.address(strings.TrimSpace(given)); err != nil {
			return "", err
		}
	}
	return strings.Join(list, ","), nil
}

// address completes one of them by the port.
func (c *Flags) address(given string) (string, error) {
	host, port, hasPort := hostPort(given)
	isURL := strings.Contains(given, "://")
	_, portIsVariable := c.variables["port"]
	_, hostIsVariable := c.variables["hostname"]
	if (isURL || hasPort) && c.port != 0 && (hostIsVariable || !portIsVariable) { // else the flag wins
		what := "a scheme"
		if !isURL {
			what = "a port"
		}
		return "", fmt.Errorf("%s and an address with %s in %s exclude each other", c.Name("port"), what, c.Name("hostname"))
	}
	switch {
	case isURL:
		return given, nil
	case hasPort:
	case c.port != 0:
		port = strconv.Itoa(int(c.port))
	case c.usesTLS():
		port = "8883"
	default:
		port = "1883"
	}
	return net.JoinHostPort(host, port), nil
}

// hostPort divides host:port. An IPv6 address may be without brackets if there is no port.
func hostPort(given string) (host, port string, hasPort bool) {
	host = strings.Trim(given, "[]")
	if _, err := netip.ParseAddr(host); err == nil {
		return host, "", false
	}
	if h, p, err := net.SplitHostPort(given); err == nil {
		return h, p, true
	}
	return host, "", false
}

// TLSConfig is nil if TLS isn't asked for.
func (c *Flags) TLSConfig() (*tls.Config, error) {
	if !c.usesTLS() {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caFile != "" {
		bundle, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name("cafile"), err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("%s %s: no PEM certificate in it", c.Name("cafile"), c.caFile)
		}
	}
	if (c.certFile == "") != (c.keyFile == "") {
		return nil, fmt.Errorf("%s and %s go together", c.Name("certfile"), c.Name("keyfile"))
	}
	if c.certFile != "" {
		pair, err := c.certificate()
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// certificate reads the client certificate and its private key, which may be encrypted.
func (c *Flags) certificate() (tls.Certificate, error) {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s: %w", c.Name("certfile"), err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s: %w", c.Name("keyfile"), err)
	}
	switch key, err = keyfile.Decrypt(key, c.keyPass); {
	case errors.Is(err, keyfile.ErrNeedsPassword):
		return tls.Certificate{}, fmt.Errorf("%s %s is encrypted: give its password with --keypassword (-P) or in %s", c.Name("keyfile"), c.keyFile, Variables["keypassword"])
	case errors.Is(err, keyfile.ErrWrongPassword):
		return tls.Certificate{}, fmt.Errorf("%s %s: %s does not decrypt it", c.Name("keyfile"), c.keyFile, c.Name("keypassword"))
	case err != nil:
		return tls.Certificate{}, fmt.Errorf("%s %s: %w", c.Name("keyfile"), c.keyFile, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s %s, %s %s: %w", c.Name("certfile"), c.certFile, c.Name("keyfile"), c.keyFile, err)
	}
	return pair, nil
}

// logger writes what happens to the connection to w, if -v asks for it.
func (c *Flags) logger(w io.Writer) *slog.Logger {
	if !c.Verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// Bounded is the context of one request.
func (c *Flags) Bounded(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), c.Timeout)
}
