package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// examination is how long a running server may take to examine itself.
const examination = 10 * time.Second

// NewDoctorCommand makes the command doctor.
func NewDoctorCommand() *cobra.Command {
	set := newSettings("")
	var asJSON, everything bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong with a server or its machine, and say what to change",
		Long: `Look at descriptors, clock, disk, the time of an fsync, memory, certificates, bridges
and how far bounds are filled, and say what to change.

If a server runs on the data directory, it examines itself: the command reaches it
through a socket in that directory, which only the directory's owner may use. Of a
node of a cluster it also says which nodes are missing; one that does not lead has
no server that could examine itself: its machine is examined as if none ran.

If none runs, the command examines this machine for a server with the same flags,
variables of the environment and configuration file as "holdfast serve" would have;
to measure an fsync it writes a file of 200 KiB to the data directory, or to the
nearest directory above it that exists, and removes it.

A line for each finding: ok, advice (it works, and could be better) or problem (a
promise or the service is in danger), and below it what to change. Bounds are shown
from 80 % on, and all of them with --all.

Exit status: 0 no problem was found, 1 there is one, 2 error.`,
		Example: `  holdfast doctor
  holdfast doctor --config site/holdfast.yaml
  holdfast doctor --data /var/lib/holdfast --json`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := set.load(os.Environ()); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), examination)
			defer cancel()
			found, subject, err := examine(ctx, &set.cfg)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				err = printFindings(out, found)
			} else {
				err = describe(out, subject, found, everything)
			}
			if err == nil && doctor.Worst(found) == doctor.Problem {
				return exit.Negative("there is a problem")
			}
			return err
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each finding, in a line of its own")
	cmd.Flags().BoolVar(&everything, "all", false, "show all bounds, however little of them is used")
	cmd.Flags().AddFlagSet(set.flags)
	return cmd
}

// examine examines the server, or the node of a cluster, that runs with this configuration, or else the machine.
// subject says which of these it was.
func examine(ctx context.Context, cfg *server.Config) (found []doctor.Finding, subject string, err error) {
	found, err = server.Doctor(ctx, cfg.DataDir)
	report, asked := control.Status(ctx, cfg.DataDir)
	switch serves := !errors.Is(err, server.ErrNotRunning); {
	case serves && err != nil:
		return nil, "", err
	case serves:
		subject = "the server that runs on " + cfg.DataDir
	case asked == nil:
		unready, err := control.Health(ctx, cfg.DataDir)
		if err != nil {
			return nil, "", err
		}
		found = append([]doctor.Finding{doctor.Following(report.Leader, unready)}, cfg.Examine(true)...)
		subject = fmt.Sprintf("node %s, which runs on %s and serves no clients itself, and its machine", report.Node, cfg.DataDir)
	case !errors.Is(asked, control.ErrNotRunning):
		return nil, "", asked
	default:
		return cfg.Examine(false), "this machine, as no server runs on " + cfg.DataDir, nil
	}
	if asked == nil {
		found = slices.Insert(found, min(1, len(found)), doctor.Nodes(len(report.Nodes), report.Explain()))
	}
	return found, subject, nil
}

func printFindings(out io.Writer, found []doctor.Finding) error {
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, f := range found {
		if err := lines.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

// describe prints findings for a person. everything: also bounds that are far from full.
func describe(out io.Writer, subject string, found []doctor.Finding, everything bool) error {
	p := &errWriter{out: out}
	p.printf("Examined %s.\n\n", subject)
	bounds := 0
	for _, f := range found {
		if f.Check == doctor.Bounds && f.Level == doctor.OK && !everything {
			bounds++
			continue
		}
		p.printf("%-8s %-13s %s\n", f.Level, f.Check, f.Found)
		if f.Change != "" {
			p.printf("%-8s %-13s → %s\n", "", "", f.Change)
		}
	}
	if bounds > 0 {
		p.printf("%-8s %-13s %d bounds are filled to less than 80 %%\n", doctor.OK, doctor.Bounds, bounds)
	}
	return p.err
}

// errWriter prints until an error, which it keeps.
type errWriter struct {
	out io.Writer
	err error
}

func (w *errWriter) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, args...)
	}
}
