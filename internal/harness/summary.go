package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Summary is what the summaries of all runs begin with.
type Summary struct {
	Broker  string  `json:"broker"`
	Seed    uint64  `json:"seed"`
	Seconds float64 `json:"seconds"`
	// Violations are the promises that were broken, in words.
	Violations []string `json:"violations"`
}

// Failed says whether the broker broke a promise.
func (s *Summary) Failed() bool { return len(s.Violations) > 0 }

// Head says what ran.
func (s *Summary) Head() string { return fmt.Sprintf("%s, seed %d", s.Broker, s.Seed) }

// Broken says how many promises were broken.
func (s *Summary) Broken() string { return fmt.Sprintf("%d promises broken", len(s.Violations)) }

// shown is how many violations List shows.
const shown = 30

// List has a line for each promise that was broken, up to a bound.
func (s *Summary) List() string {
	var b strings.Builder
	for i, v := range s.Violations {
		if i == shown {
			fmt.Fprintf(&b, "\n  … and %d more", len(s.Violations)-shown)
			break
		}
		fmt.Fprintf(&b, "\n  BROKEN: %s", v)
	}
	return b.String()
}

// Result is a run's whole summary.
type Result interface {
	fmt.Stringer
	Failed() bool
}

// Report ends a command: it prints the result (nil: there is none) for people on standard
// error, and as JSON into a file ("-": standard output; "": nowhere), and returns the
// exit status: 0 nothing was found, 1 a promise was broken, 2 the run itself failed.
func Report(command string, r Result, failure error, file string) int {
	if failure != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", command, failure)
	}
	if r == nil {
		return 2
	}
	fmt.Fprintln(os.Stderr, r)
	if err := writeJSON(r, file); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", command, err)
		return 2
	}
	switch {
	case failure != nil:
		return 2
	case r.Failed():
		return 1
	}
	return 0
}

// WithHoldfast builds the program and has run work with it, in a directory that is removed
// afterwards. SIGINT and SIGTERM end ctx, so that run can end the processes that it has started.
func WithHoldfast(run func(ctx context.Context, dir, binary string) error) error {
	ctx, stop := UntilSignal()
	defer stop()
	dir, remove, err := TempDir()
	if err != nil {
		return err
	}
	defer remove()
	binary, err := process.Build(dir, process.Holdfast)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return run(ctx, dir, binary)
}

// UntilSignal is a context that SIGINT and SIGTERM end, for a command that starts processes.
func UntilSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

func writeJSON(r Result, file string) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if file == "-" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
