package main

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/journal"
	"holdfast/internal/server"
)

func newCheckCommand() *cobra.Command {
	cfg := server.Default()
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Verify a data directory while no server runs on it",
		Long: `Verify a data directory: the checksum of every block on disk, and every row.
Nothing is written. The server must be stopped.

A batch at the end of the log that is wrong in one bit is mended by the next
start, and a note here: a power cut leaves such, and it may also be a bit that has
gone wrong since.

Exit status: 0 it is sound, 1 problems were found (one per line on standard
output), 2 it could not be checked.`,
		Example: `  holdfast check
  holdfast check --data /var/lib/holdfast`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bar := newProgressLine(cmd.ErrOrStderr(), "checked")
			cfg.Logger = slog.New(slog.DiscardHandler) // what it would say is in the report
			report, err := server.Check(cfg, bar.show)
			bar.end()
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
		fmt.Fprintf(out, "note: %s\n", oneLine(note))
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(out, "problem: %s\n", oneLine(problem))
	}
	if r.Sound() {
		fmt.Fprintf(out, "%s is sound: %s\n", dir, r)
		return nil
	}
	fmt.Fprintf(out, "%s has problems: %s\n", dir, r)
	return negative(fmt.Sprintf("%s: %d problems found", dir, len(r.Problems)+r.More))
}

// progressLine is one line that a person sees being rewritten; in a pipe it is
// nothing at all.
type progressLine struct {
	out   io.Writer
	verb  string
	last  time.Time
	shown bool
}

// progressInterval is how often the line is rewritten at the most.
const progressInterval = 100 * time.Millisecond

func newProgressLine(out io.Writer, verb string) *progressLine {
	if !isTerminal(out) {
		out = nil
	}
	return &progressLine{out: out, verb: verb}
}

func (l *progressLine) show(p journal.Progress) {
	if l.out == nil || time.Since(l.last) < progressInterval {
		return
	}
	l.last, l.shown = time.Now(), true
	fmt.Fprintf(l.out, "\r%s %d of %d files, %s of %s\x1b[K", l.verb, p.Files, p.OfFiles, formatBytes(p.Bytes), formatBytes(p.OfBytes))
}

// end takes the line away.
func (l *progressLine) end() {
	if l.shown {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}

// formatBytes is a number of bytes for a person.
func formatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for value >= unit && prefix < len("KMGT")-1 {
		value /= unit
		prefix++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[prefix])
}
