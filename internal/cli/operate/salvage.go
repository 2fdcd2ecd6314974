package operate

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// NewSalvageCommand makes the command salvage.
func NewSalvageCommand() *cobra.Command {
	cfg := server.Default()
	var data string
	cmd := &cobra.Command{
		Use:   "salvage DIR --data NEW",
		Short: "Copy what can be read of a damaged data directory",
		Long: `Copy what can be read in the data directory DIR, of which a server says that it is
damaged, into the data directory NEW, which must not exist, or be empty. DIR is left
as it is; no server may run on it. A server starts on NEW, and holdfast check finds
no problem in it.

What can't be read is listed: of tables, the ranges of keys; of the log, the
batches. No older value takes the place of one in a table that can't be read. What
a lost batch of the log changed is as it was before. So restore a backup if it is
recent enough, and salvage otherwise.

Exit status: 0 everything was readable, 1 something was not (one line each on
standard output), 2 nothing was salvaged.`,
		Example: `  holdfast salvage /var/lib/holdfast --data /var/lib/holdfast-new
  holdfast serve --data /var/lib/holdfast-new`,
		Args: flags.Args("directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.DataDir = args[0]
			cfg.Logger = slog.New(slog.DiscardHandler) // the report has what it would log
			bar := output.NewProgress(cmd.ErrOrStderr())
			report, err := server.Salvage(cfg, data, shower(bar, "copied"), shower(bar, "verified"))
			bar.End()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			for _, lost := range report.Problems {
				fmt.Fprintf(out, "lost: %s\n", output.OneLine(lost))
			}
			fmt.Fprintf(out, "%s holds what was salvaged: %s\n", data, report)
			if report.Sound() {
				return nil
			}
			return exit.Negative(fmt.Sprintf("%s: %d problems found", args[0], len(report.Problems)+report.More))
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "`DIR` for what is salvaged; new, or empty")
	_ = cmd.MarkFlagRequired("data")
	return cmd
}
