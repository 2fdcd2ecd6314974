package secure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/keyfile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

// NewCertCommand makes the command cert.
func NewCertCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Make and revoke certificates",
		Long: `Make certificates that an authority signs, for example that of holdfast init, and
revoke them.`,
		Args: cobra.ArbitraryArgs,
		RunE: flags.UnknownCommand,
	}
	cmd.AddCommand(newIssueCommand(forClient), newIssueCommand(forServer), newIssueCommand(forNode), newIssueCommand(forFront), newRevokeCommand())
	return cmd
}

// authorityFlags say where the authority is.
type authorityFlags struct{ dir string }

// caPassword is the variable of the environment with the password of the authority's key.
const caPassword = "HOLDFAST_CAPASSWORD"

func (a *authorityFlags) add(f *pflag.FlagSet) {
	f.StringVar(&a.dir, "ca", ".", "`DIR` with the authority's ca.crt and ca.key, which may be encrypted: its password is then in "+caPassword)
}

func (a *authorityFlags) open() (*certs.Authority, error) {
	authority, err := certs.OpenAuthority(a.dir, os.Getenv(caPassword))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("--ca %s: no authority there: %w; holdfast init DIR makes one", a.dir, err)
	case errors.Is(err, keyfile.ErrNeedsPassword):
		return nil, fmt.Errorf("%w: give its password in %s", err, caPassword)
	}
	return authority, err
}

// What a certificate is for.
const (
	forClient = iota
	forServer
	forNode
	forFront
)

// newIssueCommand makes the command for certificates of one kind.
func newIssueCommand(kind int) *cobra.Command {
	var a authorityFlags
	var days int
	var out, password string
	var hosts []string
	cmd := &cobra.Command{
		Use:     "client NAME",
		Short:   "Make a client's certificate and key",
		Long:    "Make the files NAME.crt and NAME.key for a client. NAME is its identity: the subject's common name.",
		Example: "  holdfast cert client press-7 --ca site\n  HOLDFAST_KEYPASSWORD=secret holdfast cert client olga --ca site --encrypt",
		Args:    flags.Args("name"),
	}
	switch kind {
	case forServer:
		cmd.Use, cmd.Short = "server NAME", "Make a server's certificate and key"
		cmd.Long = "Make the files NAME.crt and NAME.key for a server that clients reach as NAME, and as each --host."
		cmd.Example = "  holdfast cert server broker.example.com --ca site --host 192.0.2.7"
	case forNode:
		cmd.Use, cmd.Short = "node NAME", "Make the certificate and key of a node of a cluster"
		cmd.Long = `Make the files NAME.crt and NAME.key for a node of a cluster, which shows it to the
other nodes as a server and as a client. The others reach it as NAME, and as each --host:
one of these is its host in --cluster-peers.`
		cmd.Example = "  holdfast cert node a --ca nodes --host 192.0.2.1"
	case forFront:
		cmd.Use, cmd.Short = "front NAME", "Make the certificate and key of a front of a cluster"
		cmd.Long = `Make the files NAME.crt and NAME.key for a front of a cluster (holdfast front), which
shows it to the nodes. The nodes let it pass clients on, and nothing else.`
		cmd.Example = "  holdfast cert front f1 --ca nodes"
	}
	var encrypt bool
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		if name == "" || len(name) > 64 || strings.ContainsAny(name, "\x00\r\n\t") {
			return fmt.Errorf("the name %q: want 1 to 64 bytes without control characters", name)
		}
		if days < 1 || days > 36500 {
			return errors.New("--days: want 1 to 36500")
		}
		if encrypt {
			if password = os.Getenv("HOLDFAST_KEYPASSWORD"); password == "" {
				return errors.New("--encrypt: give the key's password in HOLDFAST_KEYPASSWORD")
			}
		}
		if out == "" {
			out = filepath.Join(a.dir, strings.NewReplacer("/", "_", `\`, "_", ":", "_").Replace(name))
		}
		authority, err := a.open()
		if err != nil {
			return err
		}
		r := certs.Request{Name: name, Server: kind == forServer, Node: kind == forNode, Valid: time.Duration(days) * day, Password: password, Hosts: hosts}
		if kind == forFront {
			r.Hosts = []string{settings.FrontURI}
		} else if kind != forClient {
			r.Hosts = append([]string{name}, hosts...)
		}
		if err := authority.Issue(r, out); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s.crt and %s.key are valid for %d days\n", out, out, days)
		return nil
	}
	f := cmd.Flags()
	f.SortFlags = false
	a.add(f)
	f.StringVar(&out, "out", "", "`FILE` to write without .crt and .key (default: NAME in the authority's directory)")
	f.IntVar(&days, "days", 825, "days for which the certificate is valid")
	if kind != forNode && kind != forFront { // which start without a person who has the password
		f.BoolVar(&encrypt, "encrypt", false, "encrypt the key with the password in HOLDFAST_KEYPASSWORD")
	}
	switch kind {
	case forServer:
		f.StringArrayVar(&hosts, "host", nil, "further `NAME` or IP address by which clients reach the server; may be repeated")
	case forNode:
		f.StringArrayVar(&hosts, "host", nil, "further `NAME` or IP address by which other nodes reach this one; may be repeated")
	case forClient:
		f.StringArrayVar(&hosts, "san", nil, "subject alternative `NAME`: a DNS name, an IP address or a URI; may be repeated")
	}
	return cmd
}

func newRevokeCommand() *cobra.Command {
	var a authorityFlags
	cmd := &cobra.Command{
		Use:   "revoke FILE",
		Short: "Put a certificate on the authority's revocation list",
		Long: `Put the certificate in FILE on the revocation list ca.crl of the authority. A server
that has it as tls-crl reads it again, and refuses the certificate from then on.`,
		Example: "  holdfast cert revoke site/press-7.crt --ca site",
		Args:    flags.Args("certificate"),
		RunE: func(cmd *cobra.Command, args []string) error {
			authority, err := a.open()
			if err != nil {
				return err
			}
			cert, err := authority.Revoke(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the certificate of %s is revoked\n", cert.Subject)
			return nil
		},
	}
	a.add(cmd.Flags())
	return cmd
}
