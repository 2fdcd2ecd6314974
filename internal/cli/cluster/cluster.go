// Package cluster has the commands for clusters: cluster, which asks a running node for the
// cluster's status and gives the leadership away, and demo-cluster, which runs three nodes on
// one machine.
package cluster

import (
	"encoding/json"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// NewCommand makes the command cluster.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Look at a cluster, change its nodes, and give its leadership away",
		Long: `Look at a cluster, add nodes to it and remove them, and give its leadership away. The
commands reach any node of the cluster through a socket in its data directory, which
only the directory's owner may use; that node asks the others.`,
		Args: cobra.ArbitraryArgs,
		RunE: flags.UnknownCommand,
	}
	cmd.AddCommand(newStatusCommand(), newAddCommand(), newRemoveCommand(), newTransferCommand(), newRecoverCommand())
	return cmd
}

func newStatusCommand() *cobra.Command {
	data := server.Default().DataDir
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say which nodes answer, which one leads, and how far the others are behind",
		Long: `Print a line for each node: its name, its address for other nodes, its role (leader,
follower, learner while it has no vote because it was just added, receiving while it
gets all data, candidate while it knows no leader, or unreachable), its term, how many entries of the
log it lacks, and the format level of the cluster; in parentheses that which the node's
program knows, if that is a higher one. Nodes write what the cluster's level says, so
that they can be given a new version one after the other: the level rises when all
nodes run a program that knows the next one. Below is said why a node does not answer,
and which clocks are a second or more away from those of the other nodes.

Exit status: 0 all nodes answer and one leads, 1 something is missing (on standard
error), 2 no node can be reached.`,
		Example: `  holdfast cluster status --data /var/lib/holdfast`,
		Args:    flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := control.Status(cmd.Context(), data)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				err = json.NewEncoder(out).Encode(report)
			} else {
				table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
				fmt.Fprintln(table, "NODE\tADDRESS\tROLE\tTERM\tLAG\tLEVEL")
				for _, n := range report.Nodes {
					fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.Address, roleOf(n), termOf(n), lagOf(n, report.Leader), levelOf(n, report.Level))
				}
				err = table.Flush()
				for _, n := range report.Nodes {
					if n.Error != "" {
						fmt.Fprintf(out, "node %s: %s\n", n.Name, output.OneLine(n.Error))
					}
				}
				for _, line := range report.Clocks() {
					fmt.Fprintln(out, line)
				}
				if upgrade := report.Upgrade(); upgrade != "" {
					fmt.Fprintln(out, upgrade)
				}
			}
			if why := report.Explain(); err == nil && why != "" {
				return exit.Negative(why)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of a running node")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func roleOf(n control.Line) string {
	if n.ReceiveBytes > 0 {
		return fmt.Sprintf("%s (%d %%)", n.Role, 100*n.Received/n.ReceiveBytes)
	}
	return n.Role
}

// termOf is the term that a node has said; ?: it does not answer.
func termOf(n control.Line) string {
	if n.Role == control.Unreachable {
		return "?"
	}
	return strconv.FormatUint(n.Term, 10)
}

// lagOf is what a node lacks, as the leader says; ?: none does, and the node does not answer either.
func lagOf(n control.Line, leader string) string {
	if n.Role == control.Unreachable && leader == "" {
		return "?"
	}
	return strconv.FormatUint(n.Lag, 10)
}

// levelOf is the cluster's format level, and what a node's program knows if that is another one.
func levelOf(n control.Line, inForce int) string {
	switch n.Level {
	case 0:
		return "?"
	case inForce:
		return strconv.Itoa(inForce)
	}
	return fmt.Sprintf("%d (%d)", inForce, n.Level)
}

func newTransferCommand() *cobra.Command {
	data, ifLeader := server.Default().DataDir, false
	cmd := &cobra.Command{
		Use:   "transfer [NODE]",
		Short: "Give the leadership to another node",
		Long: `Give the leadership to a node, or to the one that is furthest if none is named, for
example before the leader's machine is stopped. Clients are disconnected and find
the new leader at whichever node they connect to.`,
		Example: `  holdfast cluster transfer b --data /var/lib/holdfast`,
		Args:    flags.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			to := ""
			if len(args) > 0 {
				to = args[0]
			}
			if ifLeader {
				status, err := control.Status(cmd.Context(), data)
				if err != nil || status.Leader != status.Node {
					return err
				}
			}
			return control.Transfer(cmd.Context(), data, to)
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of a running node")
	cmd.Flags().BoolVar(&ifLeader, "if-leader", false, "do nothing if the node of --data does not lead: for a hook that runs before it is stopped")
	return cmd
}
