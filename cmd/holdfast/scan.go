package main

import (
	"bufio"
	"errors"
	"io"
	"iter"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"holdfast/internal/server"
)

func newScanCommand(c *connection) *cobra.Command {
	var out output
	var null, binary bool
	data := server.Default().DataDir
	cmd := c.command(&cobra.Command{
		Use:   "scan [flags] [PATTERN]",
		Short: "List keys",
		Long: `List the keys that match a pattern, all keys without one: one per line, byte
for byte. In the pattern, * stands for anything, ? for one character, [abc],
[a-z] and [!abc] for one of, or none of, these, [*] for the character itself.

SCAN lists keys that are UTF-8 only. --binary lists all others, quoted, unless
--null or --output json asks for them as they are or in base 64. It takes no pattern,
and reaches the server through a socket in its data directory.`,
		Example: `  holdfast scan 'sensor/*'
  holdfast scan --null 'tmp/*' | xargs -0 -n1 holdfast del
  holdfast scan --binary --data /var/lib/holdfast`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if binary {
				if len(args) > 0 {
					return errors.New("--binary takes no PATTERN: patterns match UTF-8 only")
				}
				return printKeys(cmd, server.BinaryKeys(cmd.Context(), data), null, &out)
			}
			if cmd.Flags().Changed("data") {
				return errors.New("--data is for --binary only: other keys come from --hostname and --port")
			}
			pattern := "*"
			if len(args) > 0 {
				pattern = args[0]
			}
			return scan(cmd, c, pattern, null, &out)
		},
	})
	out.addFlag(cmd)
	cmd.Flags().BoolVarP(&null, "null", "0", false, "end each key with NUL instead of a line feed")
	cmd.Flags().BoolVar(&binary, "binary", false, "list the keys that are not UTF-8")
	cmd.Flags().StringVar(&data, "data", data, "with --binary: `DIR` with the data of the running server")
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
	return printKeys(cmd, cl.Scan(cmd.Context(), pattern), null, out)
}

func printKeys(cmd *cobra.Command, keys iter.Seq2[string, error], null bool, out *output) error {
	if err := out.check(); err != nil {
		return err
	}
	w := bufio.NewWriter(cmd.OutOrStdout())
	for key, err := range keys {
		if err != nil {
			_ = w.Flush() // what was found is found
			return explain(err)
		}
		if !null && !out.json() && !utf8.ValidString(key) {
			key = word(key)
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
