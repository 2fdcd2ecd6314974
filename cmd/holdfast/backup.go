package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"holdfast/internal/server"
)

func newBackupCommand() *cobra.Command {
	data := server.Default().DataDir
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the data of a running server",
		Long: `Copy the data of a running server into DIR, as it is at one moment. Everything
that was acknowledged before is in it; clients notice nothing. The server writes
the copy, so DIR is a directory of its machine that it may write to; it must not
exist, or be empty. On the same file system files are linked rather than copied:
take DIR to another disk if it is to outlive this one.

The data of a stopped server can be copied like any directory.`,
		Example: `  holdfast backup /backups/today
  holdfast backup --data /var/lib/holdfast /backups/today`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bar := newProgressLine(cmd.ErrOrStderr(), "copied")
			done, err := server.Backup(cmd.Context(), data, args[0], bar.show)
			bar.end()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s holds a backup: %d files, %s\n", args[0], done.Files, formatBytes(done.Bytes))
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of the running server")
	return cmd
}
