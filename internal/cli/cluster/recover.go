package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/replica/convert"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func newRecoverCommand() *cobra.Command {
	data := server.Default().DataDir
	yes := false
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Make a new cluster of one node, when a quorum of the others is lost for good",
		Long: `Make a new cluster of one node that has survived, when so many of the others are lost
for good that there will be no quorum again. The node must not run. It keeps everything
that its log has; what the others have acknowledged and this node does not have is
lost. So choose the one whose log ends last.

A node that is the only one of its cluster needs no others, and is refused.

The nodes of the former cluster are refused by the new one: give them new data
directories and add them. Make sure before that they do not run: where a quorum of
them lives, the former cluster goes on.

The command says what may be lost, and asks for the cluster's ID, unless --yes is given.`,
		Example: `  holdfast cluster recover --data /var/lib/holdfast`,
		Args:    flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, err := convert.Open(nil, data, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, `Node %s of the cluster %v, with %s.
Its log ends with entry %d, written in term %d. It knows entries up to %d to be committed.
All of these are kept. Lost is whatever the cluster has acknowledged after entry %d.
`, s.Name, s.Cluster, othersOf(s), s.Last, s.Term, s.Committed, s.Last)
			if !yes {
				if err := confirm(cmd.Context(), cmd.InOrStdin(), out, s.Cluster.String()); err != nil {
					return err
				}
			}
			if err := s.Recover(); err != nil {
				return fmt.Errorf("node %s does not start before the command has succeeded: %w", s.Name, err)
			}
			fmt.Fprintf(out, "Node %s is a cluster of its own. Start it, and add other nodes, with new data directories, by holdfast cluster add.\n", s.Name)
			return nil
		},
	}
	cmd.Flags().StringVar(&data, "data", data, "`DIR` with the data of a node that does not run")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func othersOf(s *convert.Survivor) string {
	if len(s.Others) == 0 {
		return "no other nodes"
	}
	return "the other nodes " + strings.Join(s.Others, ", ")
}

var errNotConfirmed = errors.New("not confirmed: nothing was changed")

// maxAnswer is how many bytes of an answer are read.
const maxAnswer = 1 << 10

// confirm asks for want, until ctx ends.
func confirm(ctx context.Context, in io.Reader, out io.Writer, want string) error {
	fmt.Fprintf(out, "To make a new cluster of it, type %s: ", want)
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // it goes on after ctx, until the program ends
		line, err := bufio.NewReader(io.LimitReader(in, maxAnswer)).ReadString('\n')
		answers <- answer{strings.TrimSpace(line), err}
	}()
	select {
	case a := <-answers:
		switch {
		case a.line == want:
			return nil
		case a.line == "" && a.err != nil:
			return fmt.Errorf("%w; the input ended without an answer: with --yes the command does not ask", errNotConfirmed)
		}
		return errNotConfirmed
	case <-ctx.Done():
		return fmt.Errorf("%w; interrupted", errNotConfirmed)
	}
}
