package main

import (
	"bufio"
	"io"

	"github.com/spf13/cobra"
)

func newScanCommand(c *connection) *cobra.Command {
	var out output
	var null bool
	cmd := c.command(&cobra.Command{
		Use:   "scan [flags] [PATTERN]",
		Short: "List keys",
		Long: `List the keys that match a pattern, all keys without one: one per line, byte
for byte. In the pattern, * stands for anything, ? for one character, [abc],
[a-z] and [!abc] for one of, or none of, these, [*] for the character itself.
Keys that are not UTF-8 are not listed.`,
		Example: `  holdfast scan 'sensor/*'
  holdfast scan --null 'tmp/*' | xargs -0 -n1 holdfast del`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pattern := "*"
			if len(args) > 0 {
				pattern = args[0]
			}
			return scan(cmd, c, pattern, null, &out)
		},
	})
	out.addFlag(cmd)
	cmd.Flags().BoolVarP(&null, "null", "0", false, "end each key with NUL instead of a line feed")
	return cmd
}

func scan(cmd *cobra.Command, c *connection, pattern string, null bool, out *output) error {
	if err := out.check(); err != nil {
		return err
	}
	cl, err := c.dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	w := bufio.NewWriter(cmd.OutOrStdout())
	for key, err := range cl.Scan(cmd.Context(), pattern) {
		if err != nil {
			_ = w.Flush() // what was found is found
			return explain(err)
		}
		if err := printKey(w, key, null, out.json()); err != nil {
			return err
		}
	}
	return w.Flush()
}

func printKey(w io.Writer, key string, null, asJSON bool) error {
	if asJSON {
		return newRecord(key).write(w)
	}
	end := "\n"
	if null {
		end = "\x00"
	}
	_, err := io.WriteString(w, key+end)
	return err
}
