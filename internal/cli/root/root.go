// Package root puts the subcommands of the packages beside it together: the command line
// of the program. It is a package of its own so that the man pages and completions of a
// release are made of it.
package root

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/cli/bench"
	"github.com/holdfast-mqtt/holdfast/internal/cli/cluster"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/deadletters"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/keys"
	"github.com/holdfast-mqtt/holdfast/internal/cli/lock"
	"github.com/holdfast-mqtt/holdfast/internal/cli/messages"
	"github.com/holdfast-mqtt/holdfast/internal/cli/mosquitto"
	"github.com/holdfast-mqtt/holdfast/internal/cli/operate"
	"github.com/holdfast-mqtt/holdfast/internal/cli/passwdcmd"
	"github.com/holdfast-mqtt/holdfast/internal/cli/policycmd"
	"github.com/holdfast-mqtt/holdfast/internal/cli/secure"
	"github.com/holdfast-mqtt/holdfast/internal/cli/serve"
	"github.com/holdfast-mqtt/holdfast/internal/cli/timers"
	"github.com/holdfast-mqtt/holdfast/internal/cli/transfer"
	"github.com/holdfast-mqtt/holdfast/internal/cli/txn"
)

// New makes the command holdfast with all its subcommands. release is the version of a
// release; empty: the go command has noted the version.
func New(release string) *cobra.Command {
	version := versionOf(release)
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
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asked, _ := cmd.Flags().GetBool("version"); asked {
				return printVersion(cmd.OutOrStdout(), version)
			}
			return flags.UnknownCommand(cmd, args)
		},
		PersistentPreRunE: refuseStrayFlags,
		TraverseChildren:  true, // holdfast -n host get key, as with statestore-cli
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	root.Flags().BoolP("version", "V", false, "print the version")
	c.AddFlags(root.Flags())
	root.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Name != "version" })
	root.AddCommand(
		serve.NewCommand(version), serve.NewConfigCommand(), serve.NewDoctorCommand(), operate.NewCheckCommand(), operate.NewBackupCommand(), operate.NewRestoreCommand(), operate.NewSalvageCommand(), operate.NewSessionCommand(), operate.NewHealthCommand(), operate.NewTraceCommand(), operate.NewTopCommand(),
		cluster.NewCommand(), cluster.NewDemoCommand(), serve.NewFrontCommand(),
		keys.NewGetCommand(&c), keys.NewSetCommand(&c), keys.NewDelCommand(&c), keys.NewVDelCommand(&c),
		keys.NewWatchCommand(&c), keys.NewScanCommand(&c), transfer.NewExportCommand(&c), transfer.NewImportCommand(&c), txn.NewCommand(&c), lock.NewCommand(&c), messages.NewPubCommand(&c), messages.NewSubCommand(&c), deadletters.NewCommand(&c), timers.NewCommand(&c), bench.NewCommand(&c),
		secure.NewInitCommand(), secure.NewCertCommand(), passwdcmd.NewCommand(), policycmd.NewCommand(), mosquitto.NewCommand(),
		newVersionCommand(version),
	)
	flags.PlainNumbers(root)
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
