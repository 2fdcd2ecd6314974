package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"holdfast/client"
)

func newWatchCommand(c *connection) *cobra.Command {
	var o operands
	var out output
	var count uint64
	cmd := c.command(&cobra.Command{
		Use:   "watch [flags] KEY",
		Short: "Print the changes of a key as they happen",
		Long: `Print the changes of a key as they happen, one line each:

  set KEY VALUE VERSION
  deleted KEY VERSION

Words with blanks or unprintable characters are quoted. A line ends with "gap"
if changes right before it may be missing, because the connection was lost
meanwhile; the line itself is the newest state. With --output json each line is
an object; values that are not UTF-8 come as value_base64.

The command goes on until it is interrupted or --count is reached (exit status
0), and reconnects by itself; a lost connection is told on standard error, and
with -v also that the watch has begun.`,
		Example: `  holdfast watch greeting
  holdfast watch --count 1 --output json lock`,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := o.takeOnlyKey(cmd, args)
			if err != nil {
				return err
			}
			return watch(cmd, c, key, count, &out)
		},
	})
	o.addKeyFlag(cmd)
	out.addFlag(cmd)
	cmd.Flags().Uint64Var(&count, "count", 0, "stop after this many events (0: never)")
	return cmd
}

func watch(cmd *cobra.Command, c *connection, key string, count uint64, out *output) error {
	if err := out.check(); err != nil {
		return err
	}
	// A watch can go on for days: a connection that is lost, and a server that
	// stays away, are told without -v as well.
	level := slog.LevelWarn
	if c.verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	cl, err := c.dial(cmd, client.WithLogger(log))
	if err != nil {
		return err
	}
	defer cl.Close()
	w, err := cl.Watch(cmd.Context(), key)
	if err != nil {
		return explain(err)
	}
	if c.verbose {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: watching %q\n", cmd.CommandPath(), key)
	}
	var seen uint64
	for e := range w.Events() {
		if err := printEvent(cmd.OutOrStdout(), &e, out.json()); err != nil {
			return err
		}
		if seen++; seen == count {
			return nil
		}
	}
	if err := w.Err(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // interrupted: that is how it ends
}

func printEvent(w io.Writer, e *client.Event, asJSON bool) error {
	if asJSON {
		return eventRecord(e).write(w)
	}
	line := e.Kind.String() + " " + word(e.Key)
	if e.Kind == client.KeySet {
		line += " " + word(string(e.Value))
	}
	line += " " + e.Version.String()
	if e.Gap {
		line += " gap"
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func eventRecord(e *client.Event) *record {
	r := newRecord(e.Key)
	r.Event, r.Gap = e.Kind.String(), e.Gap
	if e.Kind == client.KeySet {
		r.setValue(e.Value)
	}
	if !e.Version.IsZero() {
		r.Version = e.Version.String()
	}
	return r
}
