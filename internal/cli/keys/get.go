package keys

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// NewGetCommand makes the command get.
func NewGetCommand(c *connect.Flags) *cobra.Command {
	var o operands
	var out output.Format
	cmd := c.Command(&cobra.Command{
		Use:   "get [flags] KEY",
		Short: "Print the value of a key",
		Long: `Print the value of a key, byte for byte. A line feed is added only if the
output is a terminal. Exit status: 0 found, 1 no such key, 2 error.`,
		Example: `  holdfast get greeting
  holdfast get -f photo.jpg photo`,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := o.takeOnlyKey(cmd, args)
			if err != nil {
				return err
			}
			file := o.valueFile
			if file == "-" {
				file = ""
			}
			return get(cmd, c, key, file, &out)
		},
	})
	o.addKeyFlag(cmd)
	cmd.Flags().StringVarP(&o.valueFile, "valuefile", "f", "", "write the value to this `file`, - for standard output")
	out.AddFlag(cmd)
	return cmd
}

func get(cmd *cobra.Command, c *connect.Flags, key, file string, out *output.Format) error {
	if err := out.Check(); err != nil {
		return err
	}
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := c.Bounded(cmd)
	defer cancel()
	v, found, err := cl.Get(ctx, key)
	if err != nil {
		return connect.Explain(err)
	}
	if out.JSON() {
		r := output.NewRecord(key)
		r.Found = &found
		if found {
			r.Version = v.Version.String()
			if file == "" {
				r.SetValue(v.Bytes)
			}
		}
		if err := r.Write(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	if !found {
		return noSuchKey(key)
	}
	return deliver(cmd, v, file, out.JSON())
}

// deliver writes the value into a file, or to standard output if file is empty.
func deliver(cmd *cobra.Command, v client.Value, file string, asJSON bool) error {
	if file != "" {
		if err := os.WriteFile(file, v.Bytes, 0o666); err != nil {
			return fmt.Errorf("--valuefile: %w", err)
		}
		return nil
	}
	if asJSON {
		return nil
	}
	w := cmd.OutOrStdout()
	if _, err := w.Write(v.Bytes); err != nil {
		return fmt.Errorf("write the value: %w", err)
	}
	if output.IsTerminal(w) {
		fmt.Fprintln(w)
	}
	return nil
}
