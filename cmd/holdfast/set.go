package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/hlc"
)

// setFlags are the conditions and the lifetime of a set.
type setFlags struct {
	nx, nex   bool
	nexValue  string
	px        string
	ifVersion string
	fencing   fencing
}

func newSetCommand(c *connection) *cobra.Command {
	var o operands
	var f setFlags
	var out output
	cmd := c.command(&cobra.Command{
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
	out.addFlag(cmd)
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
	if f.nx {
		opts = append(opts, client.NX())
	}
	switch {
	case given("nex-value"):
		opts = append(opts, client.NEXCompare([]byte(f.nexValue)))
	case f.nex:
		opts = append(opts, client.NEX())
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
		opts = append(opts, client.IfAbsent())
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

func set(cmd *cobra.Command, c *connection, key string, value []byte, f *setFlags, out *output) error {
	if err := out.check(); err != nil {
		return err
	}
	opts, err := f.options(cmd)
	if err != nil {
		return err
	}
	cl, err := c.dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := c.bounded(cmd)
	defer cancel()
	version, applied, err := cl.Set(ctx, key, value, opts...)
	if err != nil {
		return explain(err)
	}
	if out.json() {
		r := newRecord(key)
		r.Applied = &applied
		if !version.IsZero() {
			r.Version = version.String()
		}
		if err := r.write(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	switch {
	case !applied && version.IsZero():
		return negative("not applied: there is no such key")
	case !applied:
		return negative("not applied: the key has version " + version.String())
	}
	if !out.json() {
		return confirm(cmd.OutOrStdout(), c.verbose, version)
	}
	return nil
}

// confirm tells a person that a write was done, and a script only if asked.
func confirm(w io.Writer, verbose bool, version hlc.Timestamp) error {
	var err error
	switch {
	case verbose:
		_, err = fmt.Fprintln(w, version)
	case isTerminal(w):
		_, err = fmt.Fprintln(w, "OK")
	}
	return err
}
