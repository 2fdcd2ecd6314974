package secure

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
)

// The files that init makes, besides those of the authority.
const (
	configFile   = "holdfast.yaml"
	passwordFile = "passwords"
	policyFile   = "policy.yaml"
	serverName   = "server"
	adminName    = "admin"
)

const day = 24 * time.Hour

// NewInitCommand makes the command init.
func NewInitCommand() *cobra.Command {
	var hosts []string
	var days int
	var address string
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Set up a secure server: certificates, passwords, a policy, a configuration",
		Long: `Make a directory with everything that a server with TLS needs:

  holdfast.yaml              the configuration: holdfast serve --config DIR/holdfast.yaml
  ca.crt, ca.key, ca.crl     an authority that signs certificates, and its revocation list
  server.crt, server.key     the server's certificate, for this machine's names and --host
  admin.crt, admin.key       the administrator's certificate
  passwords                  user names and passwords: holdfast passwd edits it
  policy.yaml                who may do what: the administrator everything, to be edited

Clients show a certificate of the authority, or a user name and a password. Private keys
and passwords can be read by their owner only. Keep ca.key where only you get at it: its
holder decides who is let in. Nothing that exists is overwritten.

The last lines are the commands of a first session.`,
		Example: `  holdfast init site
  holdfast init /etc/holdfast --host broker.example.com --host 192.0.2.7`,
		Args: flags.Args("directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := setup{dir: args[0], hosts: hosts, valid: time.Duration(days) * day, listen: address}
			if err := s.make(); err != nil {
				return err
			}
			s.explain(cmd.OutOrStdout())
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&hosts, "host", nil, "further `NAME` or IP address by which clients reach the server; may be repeated")
	f.StringVar(&address, "listen", "mqtts://0.0.0.0:8883", "`URL` that the server will listen on")
	f.IntVar(&days, "days", 825, "days for which the certificates are valid; the authority is for ten years")
	return cmd
}

// setup is what init makes.
type setup struct {
	dir    string
	hosts  []string
	valid  time.Duration
	listen string
	url    listen.URL // of listen
}

// authorityValid is for how long the authority signs.
const authorityValid = 10 * 365 * day

func (s *setup) make() error {
	u, err := listen.ParseURL(s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if !u.IsTLS() {
		return fmt.Errorf("--listen %s: a secure server listens on mqtts:// or wss://", s.listen)
	}
	s.url = u
	if s.valid < day || s.valid > authorityValid-day {
		return fmt.Errorf("--days: want 1 to %d", int(authorityValid/day)-1)
	}
	if err := s.directory(); err != nil {
		return err
	}
	a, err := certs.NewAuthority(s.dir, "Holdfast authority of "+filepath.Base(s.absolute(".")), authorityValid)
	if err != nil {
		return err
	}
	server := certs.Request{Name: s.serverHosts()[0], Hosts: s.serverHosts(), Server: true, Valid: s.valid}
	if err := a.Issue(server, filepath.Join(s.dir, serverName)); err != nil {
		return err
	}
	if err := a.Issue(certs.Request{Name: adminName, Valid: s.valid}, filepath.Join(s.dir, adminName)); err != nil {
		return err
	}
	for name, content := range map[string]string{
		passwordFile: passwordText,
		policyFile:   policyText,
		configFile:   strings.ReplaceAll(configText, "LISTEN", u.String()),
	} {
		if err := writeNew(filepath.Join(s.dir, name), content); err != nil {
			return err
		}
	}
	return nil
}

// directory makes the directory, or looks that it has none of the files.
func (s *setup) directory() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{
		configFile, certs.AuthorityCert, certs.AuthorityKey, certs.AuthorityCRL, serverName + ".crt", serverName + ".key",
		adminName + ".crt", adminName + ".key", passwordFile, policyFile,
	} {
		if _, err := os.Lstat(filepath.Join(s.dir, name)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s has a file %s already, and nothing is overwritten: name another directory", s.dir, name)
		}
	}
	return nil
}

// serverHosts are the names in the server's certificate.
func (s *setup) serverHosts() (names []string) {
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, h := range s.hosts {
		add(h)
	}
	if own, err := os.Hostname(); err == nil && !strings.ContainsAny(own, " /:@") {
		add(own)
	}
	for _, local := range []string{"localhost", "127.0.0.1", "::1"} {
		add(local)
	}
	return names
}

func (s *setup) absolute(name string) string {
	path, err := filepath.Abs(filepath.Join(s.dir, name))
	if err != nil {
		return filepath.Join(s.dir, name)
	}
	return path
}

// explain says what to do next.
func (s *setup) explain(out io.Writer) {
	in := func(name string) string { return output.ShellWord(filepath.Join(s.dir, name)) }
	_, port, _ := net.SplitHostPort(s.url.Host)
	address := ""
	switch {
	case s.url.IsWebSocket():
		address = " --hostname " + listen.WSS + "://localhost:" + port + s.url.Path
	case port != "8883":
		address = " --port " + port
	}
	fmt.Fprintf(out, `%s has an authority, certificates, a password file, a policy and a configuration.
Start the server, and use it as the administrator:

  holdfast serve --config %s
  holdfast set --cafile %s --certfile %s --keyfile %s%s greeting hello

Next: holdfast cert client NAME --ca %s, holdfast passwd, and %s, which says who may do what.
`, s.dir, in(configFile), in(certs.AuthorityCert), in(adminName+".crt"), in(adminName+".key"), address, output.ShellWord(s.dir), in(policyFile))
}

// writeNew writes a file that must not exist yet, and that only its owner reads.
func writeNew(name, content string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, content)
	return errors.Join(err, f.Close())
}
