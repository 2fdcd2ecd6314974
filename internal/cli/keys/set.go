package keys

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// setFlags are the conditions and the lifetime of a set.
type setFlags struct {
	nx, nex   bool
	nexValue  string
	px        string
	ifVersion string
	fencing   fencing
}

// NewSetCommand makes the command set.
func NewSetCommand(c *connect.Flags) *cobra.Command {
	var o operands
	var f setFlags
	var out output.Format
	cmd := c.Command(&cobra.Command{
		Use:   "set [flags] KEY VALUE",
		Short: "Write a key",
		Long: `Write a key. The value is taken byte for byte: from VALUE or --value, from a
file with -f, or from standard input with -f -.

Nothing is printed, except "OK" on a terminal, the new version with -v, and an
object with --output json. Exit status: 0 written, 1 a condition (--nx, --nex,
--nex-value, --if-version) was not met, 2 error.`,
		Example: `  holdfast set greeting hello
  holdfast set -f photo.jpg photo
  tar c . | holdfast set -f - backup
  holdfast set --nx --px 30s lock "$HOSTNAME"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, value, err := o.takeKeyAndValue(cmd, args)
			if err != nil {
				return err
			}
			return set(cmd, c, key, value, &f, &out)
		},
	})
	o.addKeyFlag(cmd)
	o.addValueFlags(cmd)
	f.addFlags(cmd)
	out.AddFlag(cmd)
	return cmd
}

func (f *setFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.nx, "nx", false, "only if the key does not exist")
	flags.BoolVar(&f.nex, "nex", false, "only if the key does not exist or already has this value")
	flags.StringVar(&f.nexValue, "nex-value", "", "only if the key does not exist or has the `value` given here")
	flags.StringVar(&f.px, "px", "", "let the key disappear after this `time`: milliseconds, or 1.5s, 2h")
	flags.StringVar(&f.ifVersion, "if-version", "", "only if the key has this `version`; - means that it does not exist")
	f.fencing.addFlag(cmd)
}

func (f *setFlags) options(cmd *cobra.Command) ([]client.SetOption, error) {
	var opts []client.SetOption
	given := cmd.Flags().Changed
	if f.nx && f.nex || (f.nx || f.nex) && given("nex-value") {
		return nil, errors.New("--nx, --nex and --nex-value exclude each other: give one of them")
	}
	if f.nx {
		opts = append(opts, client.IfAbsent())
	}
	switch {
	case given("nex-value"):
		opts = append(opts, client.IfAbsentOrValue([]byte(f.nexValue)))
	case f.nex:
		opts = append(opts, client.IfAbsentOrEqual())
	}
	if given("px") {
		d, err := parsePX(f.px)
		if err != nil {
			return nil, err
		}
		opts = append(opts, client.Expiry(d))
	}
	switch {
	case given("if-version") && f.ifVersion == "-":
		opts = append(opts, client.IfVersion(hlc.Timestamp{}))
	case given("if-version"):
		v, err := hlc.Parse(f.ifVersion)
		if err != nil {
			return nil, fmt.Errorf("--if-version %q: %w", f.ifVersion, err)
		}
		opts = append(opts, client.IfVersion(v))
	}
	token, err := f.fencing.option(cmd)
	if err != nil {
		return nil, err
	}
	if token != nil {
		opts = append(opts, token)
	}
	return opts, nil
}

func set(cmd *cobra.Command, c *connect.Flags, key string, value []byte, f *setFlags, out *output.Format) error {
	if err := out.Check(); err != nil {
		return err
	}
	opts, err := f.options(cmd)
	if err != nil {
		return err
	}
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := c.Bounded(cmd)
	defer cancel()
	set, err := cl.Set(ctx, key, value, opts...)
	applied, version := err == nil, set.Version
	if err != nil && !errors.Is(err, client.ErrNotApplied) {
		return connect.Explain(err)
	}
	if out.JSON() {
		r := output.NewRecord(key)
		r.Applied = &applied
		if !version.IsZero() {
			r.Version = version.String()
		}
		if err := r.Write(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	switch {
	case !applied && version.IsZero():
		return exit.Negative("not applied: there is no such key")
	case !applied:
		return exit.Negative("not applied: the key has version " + version.String())
	}
	if !out.JSON() {
		return confirm(cmd.OutOrStdout(), c.Verbose, version)
	}
	return nil
}

// confirm prints the version with -v, and otherwise OK on a terminal.
func confirm(w io.Writer, verbose bool, version hlc.Timestamp) error {
	var err error
	switch {
	case verbose:
		_, err = fmt.Fprintln(w, version)
	case output.IsTerminal(w):
		_, err = fmt.Fprintln(w, "OK")
	}
	return err
}
