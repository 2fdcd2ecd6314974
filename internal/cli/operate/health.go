package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// healthTimeout is how long a server may take to say that it is ready.
const healthTimeout = 5 * time.Second

// NewHealthCommand makes the command health.
func NewHealthCommand() *cobra.Command {
	data, timeout := server.Default().DataDir, healthTimeout
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether a running server serves clients",
		Long: `Say whether the server that runs on a data directory serves clients, as /readyz of
"holdfast serve --admin" does. It is for the health check of a container: the command
reaches the server through a socket in its data directory, needs no other program and
no port.

A node of a cluster that does not lead is ready if it knows the leader, to which it
passes clients on, and has nearly all that the leader has.

Exit status: 0 it serves clients, 1 it does not (the reason is on standard error),
2 no server can be reached, which is so while a server reads its data.`,
		Example: `  holdfast health --data /var/lib/holdfast`,
		Args:    flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			unready, err := health(ctx, data)
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				return fmt.Errorf("the server has not answered within %v", timeout)
			case err != nil:
				return err
			case len(unready) > 0:
				return exit.Negative("not ready: " + strings.Join(unready, "; "))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ready")
			return err
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of the running server")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "`TIME` that the server may take to answer")
	flags.Limit(cmd.Flags(), nil)
	return cmd
}
