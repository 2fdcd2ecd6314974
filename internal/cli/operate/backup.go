package operate

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// NewBackupCommand makes the command backup.
func NewBackupCommand() *cobra.Command {
	data, copies := server.Default().DataDir, false
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the data of a running server",
		Long: `Copy the data of a running server into DIR, as it is at one moment. Everything
that was acknowledged before is in it; clients notice nothing. The server writes
the copy, so DIR is a directory of its machine that it may write to; it must not
exist, be empty, or hold a backup that was cut off. On the same file system files
are linked rather than copied, unless --copy is given: take DIR to another disk if
it is to outlive this one, with any program that copies files.

A list of all files with their SHA-256 is part of the backup (BACKUP); holdfast
check --data DIR and holdfast restore verify it. No server starts on a backup.

The data of a stopped server can be copied like any directory. In a cluster any node
makes backups: one that does not lead asks the leader first what was acknowledged, and
waits until it has that. Its backup is one of all data, which holdfast restore makes a
data directory of a server by itself.`,
		Example: `  holdfast backup /backups/today
  holdfast backup --data /var/lib/holdfast /backups/today`,
		Args: flags.Args("directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bar := output.NewProgress(cmd.ErrOrStderr())
			ask := server.Backup
			noticed := func() {}
			if isNode(data) {
				ask = control.Backup
				noticed = control.NoticeWait(cmd.Context(), data, cmd.ErrOrStderr())
			}
			done, err := ask(cmd.Context(), data, args[0], copies, shower(bar, "copied"))
			noticed()
			bar.End()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s holds a backup: %d files, %s", args[0], done.Files, units.FormatBytes(done.Bytes))
			if done.Node != "" {
				fmt.Fprintf(cmd.OutOrStdout(), ", by node %s, up to entry %d of its cluster's log", done.Node, done.Entry)
			}
			fmt.Fprintln(cmd.OutOrStdout())
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of the running server")
	cmd.Flags().BoolVar(&copies, "copy", false, "copy every file, and link none to the server's own")
	return cmd
}
