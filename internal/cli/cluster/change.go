package cluster

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// progressPause is how often the status is asked for while a node gets its data.
const progressPause = 250 * time.Millisecond

func newAddCommand() *cobra.Command {
	data := server.Default().DataDir
	noWait := false
	cmd := &cobra.Command{
		Use:   "add NAME=HOST:PORT",
		Short: "Add a node that waits for it",
		Long: `Add a node to the cluster: NAME is its --node, HOST:PORT where it listens for the other
nodes. Start it first, with a new data directory, and with itself and some of the
cluster's nodes in --cluster-peers: it waits until it is added. It then gets all data
as a learner, without a vote, and a vote when it has them. The command waits for that;
if it is interrupted the cluster goes on.

One node is added at a time. The command is refused if the cluster has the name or the
address already, or if with one node more no quorum would answer.`,
		Example: `  holdfast cluster add d=10.0.0.4:7001 --data /var/lib/holdfast`,
		Args:    flags.Args("NAME=HOST:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := settings.ParsePeer(args[0])
			if err != nil {
				return err
			}
			name := p.Name
			noticed := control.NoticeWait(cmd.Context(), data, cmd.ErrOrStderr())
			err = control.Add(cmd.Context(), data, name, p.Address)
			if noticed(); err != nil {
				return err
			}
			if noWait {
				fmt.Fprintf(cmd.OutOrStdout(), "node %s is being added\n", name)
				return nil
			}
			if err := awaitVote(cmd.Context(), data, name, terminal(cmd.ErrOrStderr())); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "node %s was added\n", name)
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of a running node")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return when the node is a learner, before it has all data")
	return cmd
}

// terminal is w if it is a terminal.
func terminal(w io.Writer) io.Writer {
	if output.IsTerminal(w) {
		return w
	}
	return nil
}

// awaitVote waits until a node has its vote, and shows how far it is.
func awaitVote(ctx context.Context, data, name string, progress io.Writer) error {
	shown := ""
	show := func(text string) {
		if progress != nil && text != shown {
			fmt.Fprintf(progress, "\r%-*s", len(shown), text)
			shown = text
		}
	}
	defer func() {
		if shown != "" {
			fmt.Fprintln(progress)
		}
	}()
	for {
		report, err := control.Status(ctx, data)
		if err != nil {
			return fmt.Errorf("node %s is a learner, and gets its vote by itself: %w", name, err)
		}
		if line, known := report.Named(name); report.Leader != "" {
			switch {
			case !known:
				return fmt.Errorf("node %s is no node of the cluster any more: it was removed meanwhile", name)
			case !line.Learner:
				return nil
			}
			show(fmt.Sprintf("node %s: %s, %d entries behind", name, roleOf(line), line.Lag))
		}
		select {
		case <-time.After(progressPause):
		case <-ctx.Done():
			return fmt.Errorf("node %s is a learner, and gets its vote by itself: %w", name, ctx.Err())
		}
	}
}

func newRemoveCommand() *cobra.Command {
	data := server.Default().DataDir
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a node, which may run or not",
		Long: `Remove a node from the cluster. A leader gives the leadership away first. A node that runs
ends by itself; one that comes back later is refused, and says so. To use the machine
again, give the node a new data directory and add it.

The command is refused if no quorum of the others would answer, or if the node is the
only one.`,
		Example: `  holdfast cluster remove d --data /var/lib/holdfast`,
		Args:    flags.Args("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			noticed := control.NoticeWait(cmd.Context(), data, cmd.ErrOrStderr())
			err := control.Remove(cmd.Context(), data, args[0])
			if noticed(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "node %s was removed\n", args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of a running node")
	return cmd
}
