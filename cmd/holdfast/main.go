// Command holdfast is an MQTT 5 broker with a durable state store inside, and
// the tools to use the store from a shell. This package puts the subcommands of the
// packages under internal/cli together and makes exit statuses of their errors.
//
// The tools follow a script's needs: the result on standard output and nothing
// else there, one line per error on standard error, and an exit status of 0
// (done), 1 (not found, or a condition was not met) or 2 (error).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/deadletters"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/keys"
	"github.com/holdfast-mqtt/holdfast/internal/cli/lock"
	"github.com/holdfast-mqtt/holdfast/internal/cli/messages"
	"github.com/holdfast-mqtt/holdfast/internal/cli/operate"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/passwdcmd"
	"github.com/holdfast-mqtt/holdfast/internal/cli/policycmd"
	"github.com/holdfast-mqtt/holdfast/internal/cli/secure"
	"github.com/holdfast-mqtt/holdfast/internal/cli/serve"
	"github.com/holdfast-mqtt/holdfast/internal/cli/timers"
	"github.com/holdfast-mqtt/holdfast/internal/cli/txn"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit status.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.Done
	}
	if status := exit.Status(0); errors.As(err, &status) {
		return int(status) // the command that was run has said why
	}
	fmt.Fprintf(errOut, "%s: %s\n", cmd.CommandPath(), output.OneLine(flags.Explain(cmd, err).Error()))
	var no exit.Negative
	if errors.As(err, &no) {
		return exit.No
	}
	return exit.Failed
}

func newRootCommand() *cobra.Command {
	var c connect.Flags
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "MQTT 5 broker with a durable state store",
		Long: `Holdfast is an MQTT 5 broker with a durable key-value store inside, reached
over the same connection.

  holdfast serve                   start a server
  holdfast init site               set up a secure one
  holdfast set greeting hello      write a key
  holdfast get greeting            read it
  holdfast watch greeting          see it change
  holdfast lock backup -- ./run    run a command while holding a lock
  holdfast sub 'plant/#'           see messages
  holdfast pub plant/7/state on    publish one

Exit status of get, set, del, vdel, watch, scan, pub and sub: 0 done, 1 not
found or not applied, 2 error.

Flags in whose help a name stands in brackets, [HOLDFAST_HOST] for example, are
taken from that variable of the environment if they are not given.`,
		Args:              cobra.ArbitraryArgs,
		RunE:              flags.UnknownCommand,
		PersistentPreRunE: refuseStrayFlags,
		TraverseChildren:  true, // holdfast -n host get key, as with statestore-cli
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           version(),
	}
	root.SetVersionTemplate("holdfast {{.Version}}\n")
	root.Flags().BoolP("version", "V", false, "print the version")
	c.AddFlags(root.Flags())
	root.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Name != "version" })
	root.AddCommand(
		serve.NewCommand(version()), serve.NewConfigCommand(), operate.NewCheckCommand(), operate.NewBackupCommand(), operate.NewRestoreCommand(), operate.NewSalvageCommand(), operate.NewSessionCommand(),
		keys.NewGetCommand(&c), keys.NewSetCommand(&c), keys.NewDelCommand(&c), keys.NewVDelCommand(&c),
		keys.NewWatchCommand(&c), keys.NewScanCommand(&c), txn.NewCommand(&c), lock.NewCommand(&c), messages.NewPubCommand(&c), messages.NewSubCommand(&c), timers.NewCommand(&c), deadletters.NewCommand(&c),
		secure.NewInitCommand(), secure.NewCertCommand(), passwdcmd.NewCommand(), policycmd.NewCommand(),
		newVersionCommand(),
	)
	return root
}

// refuseStrayFlags keeps `holdfast -p 1884 serve` from starting on another
// port than its user thinks: flags before the subcommand are for the commands
// that connect to a server.
func refuseStrayFlags(cmd *cobra.Command, _ []string) error {
	if connect.Connects(cmd) || !cmd.HasParent() {
		return nil
	}
	var stray error
	cmd.Root().Flags().Visit(func(f *pflag.Flag) {
		stray = fmt.Errorf("--%s before the command has no meaning for it", f.Name)
	})
	return stray
}
