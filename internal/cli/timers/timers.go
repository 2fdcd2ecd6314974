// Package timers has the command timers, which lists and cancels messages that the server
// delivers later.
package timers

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// NewCommand makes the command timers.
func NewCommand(c *connect.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "timers",
		Short: "List and cancel messages that are to be delivered later",
		Long: `List and cancel timers: messages that the server delivers later, as those of
holdfast pub --after and --at. Each principal has timers of its own; clients that
have not proven who they are share theirs.`,
		Args: cobra.ArbitraryArgs,
		RunE: flags.UnknownCommand,
	}
	cmd.AddCommand(newListCommand(c), newCancelCommand(c))
	return cmd
}

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func newListCommand(c *connect.Flags) *cobra.Command {
	var out output.Format
	cmd := c.Command(&cobra.Command{
		Use:   "list [flags] [PREFIX]",
		Short: "List timers",
		Long: `List timers whose IDs begin with PREFIX, all without it, in the order of their IDs:
a line for each, with its time, ID and topic. Exit status: 0 also if there are none,
2 error.`,
		Example: `  holdfast timers list
  holdfast timers list --output json invoice/`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.Check(); err != nil {
				return err
			}
			cl, err := c.Dial(cmd)
			if err != nil {
				return err
			}
			defer cl.Close()
			w := cmd.OutOrStdout()
			for t, err := range cl.Timers(cmd.Context(), strings.Join(args, "")) {
				if err != nil {
					return err
				}
				line := fmt.Sprintf("%s %s %s", t.Due.UTC().Format(timeFormat), output.Word(t.ID), output.Word(t.Topic))
				if out.JSON() {
					text, err := json.Marshal(map[string]string{"id": t.ID, "due": t.Due.UTC().Format(timeFormat), "topic": t.Topic})
					if err != nil {
						return err
					}
					line = string(text)
				}
				if err := output.Line(w, line, false); err != nil {
					return err
				}
			}
			return nil
		},
	})
	out.AddFlag(cmd)
	return cmd
}

func newCancelCommand(c *connect.Flags) *cobra.Command {
	return c.Command(&cobra.Command{
		Use:   "cancel [flags] ID...",
		Short: "Cancel timers",
		Long: `Cancel timers by their IDs. Exit status: 0 all are cancelled, 1 there is no such timer
(its message was delivered, or it was never set), 2 error.`,
		Example: `  holdfast timers cancel invoice/7`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.Dial(cmd)
			if err != nil {
				return err
			}
			defer cl.Close()
			var missing []string
			for _, id := range args {
				ctx, cancel := c.Bounded(cmd)
				found, err := cl.CancelTimer(ctx, id)
				cancel()
				if err != nil {
					return err
				}
				if !found {
					missing = append(missing, output.Word(id))
				}
			}
			if len(missing) > 0 {
				return exit.Negative("there is no such timer: " + strings.Join(missing, " "))
			}
			return nil
		},
	})
}
