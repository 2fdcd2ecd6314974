package operate

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// NewCheckCommand makes the command check.
func NewCheckCommand() *cobra.Command {
	cfg := server.Default()
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Verify a data directory while no server runs on it",
		Long: `Verify a data directory: the checksum of every block on disk, and every row.
Nothing is written. The server must be stopped.

A batch at the end of the log with one wrong bit is a note and no problem: the next
start repairs it. A power cut can leave such a batch, and so can a bit that has
changed on the disk.

Exit status: 0 it is sound, 1 problems were found (one per line on standard
output), 2 it could not be checked.`,
		Example: `  holdfast check
  holdfast check --data /var/lib/holdfast`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := output.NewProgress(cmd.ErrOrStderr())
			cfg.Logger = slog.New(slog.DiscardHandler) // the report has what it would log
			report, err := server.Check(cfg, shower(bar, "checked"))
			bar.End()
			if err != nil {
				return err
			}
			return printReport(cmd.OutOrStdout(), cfg.DataDir, report)
		},
	}
	cmd.Flags().StringVar(&cfg.DataDir, "data", cfg.DataDir, "`DIR` with the data")
	return cmd
}

// printReport prints one line per problem and note, and a summary; problems are a "no".
func printReport(out io.Writer, dir string, r *server.Report) error {
	for _, note := range r.Notes {
		fmt.Fprintf(out, "note: %s\n", output.OneLine(note))
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(out, "problem: %s\n", output.OneLine(problem))
	}
	if r.Sound() {
		fmt.Fprintf(out, "%s is sound: %s\n", dir, r)
		return nil
	}
	fmt.Fprintf(out, "%s has problems: %s\n", dir, r)
	return exit.Negative(fmt.Sprintf("%s: %d problems found", dir, len(r.Problems)+r.More))
}
