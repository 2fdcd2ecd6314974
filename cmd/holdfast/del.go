package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/protocol"
)

func newDelCommand(c *connection) *cobra.Command {
	var o operands
	var f fencing
	var out output
	cmd := c.command(&cobra.Command{
		Use:     "del [flags] KEY",
		Aliases: []string{"delete"}, // statestore-cli's name for it
		Short:   "Delete a key",
		Long: `Delete a key. Nothing is printed, except "OK" on a terminal, the deleted
value's version with -v, and an object with --output json. Exit status:
0 deleted, 1 no such key, 2 error.`,
		Example: `  holdfast del greeting`,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := o.takeOnlyKey(cmd, args)
			if err != nil {
				return err
			}
			return remove(cmd, c, key, &f, &out, func(ctx context.Context, cl *client.Client, opts ...client.DelOption) (client.Deletion, error) {
				return cl.Del(ctx, key, opts...)
			})
		},
	})
	o.addKeyFlag(cmd)
	f.addFlag(cmd)
	out.addFlag(cmd)
	return cmd
}

func newVDelCommand(c *connection) *cobra.Command {
	var o operands
	var f fencing
	var out output
	cmd := c.command(&cobra.Command{
		Use:   "vdel [flags] KEY VALUE",
		Short: "Delete a key if it has a value",
		Long: `Delete a key only if it has the given value. Nothing is printed, except "OK"
on a terminal, the deleted value's version with -v, and an object with
--output json. Exit status: 0 deleted, 1 no such key or another value, 2 error.`,
		Example: `  holdfast vdel lock "$HOSTNAME"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, value, err := o.takeKeyAndValue(cmd, args)
			if err != nil {
				return err
			}
			return remove(cmd, c, key, &f, &out, func(ctx context.Context, cl *client.Client, opts ...client.DelOption) (client.Deletion, error) {
				return cl.VDel(ctx, key, value, opts...)
			})
		},
	})
	o.addKeyFlag(cmd)
	o.addValueFlags(cmd)
	f.addFlag(cmd)
	out.addFlag(cmd)
	return cmd
}

// remove is what del and vdel have in common.
func remove(cmd *cobra.Command, c *connection, key string, f *fencing, out *output,
	do func(context.Context, *client.Client, ...client.DelOption) (client.Deletion, error)) error {
	if err := out.check(); err != nil {
		return err
	}
	var opts []client.DelOption
	token, err := f.option(cmd)
	if err != nil {
		return err
	}
	if token != nil {
		opts = append(opts, token)
	}
	cl, err := c.dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := c.bounded(cmd)
	defer cancel()
	d, err := do(ctx, cl, opts...)
	if err != nil {
		return explain(err)
	}
	if out.json() {
		r := newRecord(key)
		r.Found, r.Deleted = &d.Found, &d.Deleted
		if d.Found {
			r.Version = d.Version.String()
		}
		if err := r.write(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	switch {
	case !d.Found:
		return noSuchKey(key)
	case !d.Deleted:
		return negative("not deleted: the key has another value, of version " + d.Version.String())
	case out.json():
		return nil
	}
	return confirm(cmd.OutOrStdout(), c.verbose, d.Version)
}

func noSuchKey(key string) error { return negative("no such key: " + protocol.Quote(key)) }

// explain takes the operation's name off an error: the command's stands there
// already.
func explain(err error) error {
	var e *client.Error
	if errors.As(err, &e) {
		name := protocol.Quote(e.Key)
		if errors.Is(e.Err, client.ErrSyntax) && e.Op != "scan" && len(e.Key) > protocol.DefaultMaxKey {
			return fmt.Errorf("%s: %w: a key has at most %d bytes, unless the server's --max-key-size says otherwise", name, e.Err, protocol.DefaultMaxKey)
		}
		return fmt.Errorf("%s: %w", name, e.Err)
	}
	return err
}
