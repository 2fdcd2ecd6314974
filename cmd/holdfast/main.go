// Command holdfast is an MQTT 5 broker with a durable state store inside, and
// the tools to use the store from a shell: one file per subcommand.
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
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit statuses.
const (
	exitDone  = 0
	exitNo    = 1 // not found, not applied
	exitError = 2
)

// negative is an answer of the store that is a "no" and not an error.
type negative string

func (n negative) Error() string { return string(n) }

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
		return exitDone
	}
	if status := commandStatus(0); errors.As(err, &status) {
		return int(status) // the command that was run has said why
	}
	fmt.Fprintf(errOut, "%s: %s\n", cmd.CommandPath(), oneLine(explainFlag(cmd, err).Error()))
	var no negative
	if errors.As(err, &no) {
		return exitNo
	}
	return exitError
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func newRootCommand() *cobra.Command {
	var c connection
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "MQTT 5 broker with a durable state store",
		Long: `Holdfast is an MQTT 5 broker with a durable key-value store inside, reached
over the same connection.

  holdfast serve                   start a server
  holdfast set greeting hello      write a key
  holdfast get greeting            read it
  holdfast watch greeting          see it change
  holdfast lock backup -- ./run    run a command while holding a lock

Exit status of get, set, del, vdel, watch and scan: 0 done, 1 not found or
not applied, 2 error.`,
		Args:              cobra.ArbitraryArgs,
		RunE:              func(cmd *cobra.Command, args []string) error { return noCommand(cmd, args) },
		PersistentPreRunE: refuseStrayFlags,
		TraverseChildren:  true, // holdfast -n host get key, as with statestore-cli
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           version(),
	}
	root.SetVersionTemplate("holdfast {{.Version}}\n")
	root.Flags().BoolP("version", "V", false, "print the version")
	c.addFlags(root.Flags())
	root.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Name != "version" })
	root.AddCommand(
		newServeCommand(), newCheckCommand(), newBackupCommand(), newRestoreCommand(), newSalvageCommand(), newSessionCommand(),
		newGetCommand(&c), newSetCommand(&c), newDelCommand(&c), newVDelCommand(&c),
		newWatchCommand(&c), newScanCommand(&c), newLockCommand(&c),
		newVersionCommand(),
	)
	return root
}

func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, append(c.Aliases, c.Name())...)
	}
	return fmt.Errorf("unknown command %q%s; see %s --help", args[0], meant("", args[0], names), cmd.CommandPath())
}

// usesConnection marks the commands that connect to a server.
const usesConnection = "connection"

// refuseStrayFlags keeps `holdfast -p 1884 serve` from starting on another
// port than its user thinks: flags before the subcommand are for the commands
// that connect to a server.
func refuseStrayFlags(cmd *cobra.Command, _ []string) error {
	if _, ok := cmd.Annotations[usesConnection]; ok || !cmd.HasParent() {
		return nil
	}
	var stray error
	cmd.Root().Flags().Visit(func(f *pflag.Flag) {
		stray = fmt.Errorf("--%s before the command has no meaning for it", f.Name)
	})
	return stray
}
