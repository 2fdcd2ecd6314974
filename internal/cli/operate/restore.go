package operate

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// NewRestoreCommand makes the command restore.
func NewRestoreCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "restore DIR --data NEW",
		Short: "Make a data directory of a backup",
		Long: `Copy the backup in DIR into the data directory NEW, which must not exist, be
empty, or hold a restore that was cut off: nothing else is overwritten. Each file is
compared with the list in the backup, and the copy is verified, as by holdfast check,
before it is moved to NEW. Then start a server with --data NEW.`,
		Example: `  holdfast restore /backups/today --data /var/lib/holdfast
  holdfast serve --data /var/lib/holdfast`,
		Args: flags.Args("backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bar := output.NewProgress(cmd.ErrOrStderr())
			report, _, err := server.Restore(args[0], data, shower(bar, "copied"), shower(bar, "verified"))
			bar.End()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is restored: %s\n", data, report)
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "`DIR` for the data; new, or empty")
	_ = cmd.MarkFlagRequired("data")
	return cmd
}
