package keys

import (
	"bufio"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// scanFlags say what a scan prints, and how.
type scanFlags struct {
	values, binary, null bool
	encoding             keyEncoding
	out                  output.Format
}

// NewScanCommand makes the command scan.
func NewScanCommand(c *connect.Flags) *cobra.Command {
	var f scanFlags
	cmd := c.Command(&cobra.Command{
		Use:   "scan [flags] [PATTERN]",
		Short: "List keys",
		Long: `List the keys that match a pattern, all keys without one: one per line, byte
for byte. In the pattern, * stands for anything, ? for one character, [abc],
[a-z] and [!abc] for one of, or none of, these, [*] for the character itself.

With --values a line is KEY VALUE VERSION.

Keys that are not UTF-8 are listed only with --binary. The pattern, which need not
be UTF-8 either, is then matched byte by byte: ? stands for one byte, and so does
what is in brackets.

With --binary or --values, keys and values with blanks or unprintable characters are
quoted, as --key-encoding quoted does without them. All commands take keys in that
form, and in base64, with the same flag. With --output json each line is an object;
keys and values that are not UTF-8 come as key_base64 and value_base64.`,
		Example: `  holdfast scan 'sensor/*'
  holdfast scan --values --output json 'sensor/*'
  holdfast scan --binary | holdfast del --stdin --key-encoding quoted`,
		Args: flags.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pattern := "*"
			if len(args) > 0 {
				pattern = args[0]
			}
			return scan(cmd, c, pattern, &f)
		},
	})
	f.out.AddFlag(cmd)
	f.encoding.addFlag(cmd, "print keys plain, quoted or in base64 (default plain, with --binary or --values quoted)")
	cmd.Flags().BoolVar(&f.values, "values", false, "print each key's value and version as well")
	cmd.Flags().BoolVar(&f.binary, "binary", false, "list keys that are not UTF-8 as well; match byte by byte")
	cmd.Flags().BoolVarP(&f.null, "null", "0", false, "end each key with NUL instead of a line feed")
	cmd.MarkFlagsMutuallyExclusive("null", "values")
	return cmd
}

func scan(cmd *cobra.Command, c *connect.Flags, pattern string, f *scanFlags) error {
	if err := f.out.Check(); err != nil {
		return err
	}
	if f.out.JSON() && (f.null || f.encoding.name != "") {
		return errors.New("--output json has an encoding and an end of line of its own: give neither --null nor --key-encoding with it")
	}
	if f.encoding.name == "" && !f.null && (f.binary || f.values) {
		f.encoding.name = quotedKeys
	}
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	w := bufio.NewWriter(cmd.OutOrStdout())
	var opts []client.ScanOption
	if f.binary {
		opts = append(opts, client.BinaryKeys())
	}
	for e, err := range entries(cmd, cl, pattern, f.values, opts) {
		if err != nil {
			_ = w.Flush() // what was found is found
			return connect.Explain(err)
		}
		if err := f.print(w, &e); err != nil {
			return err
		}
	}
	return w.Flush()
}

// entries scans for keys alone, or for all that is to be printed of them.
func entries(cmd *cobra.Command, cl *client.Client, pattern string, values bool, opts []client.ScanOption) func(func(client.Entry, error) bool) {
	if values {
		return cl.ScanValues(cmd.Context(), pattern, opts...)
	}
	return func(yield func(client.Entry, error) bool) {
		for key, err := range cl.Scan(cmd.Context(), pattern, opts...) {
			if !yield(client.Entry{Key: key}, err) {
				return
			}
		}
	}
}

func (f *scanFlags) print(w io.Writer, e *client.Entry) error {
	if f.out.JSON() {
		r := output.NewRecord(e.Key)
		if f.values {
			r.SetValue(e.Bytes)
			r.Version = e.Version.String()
		}
		return r.Write(w)
	}
	line := f.encoding.encode(e.Key)
	if f.values {
		line += " " + output.Word(string(e.Bytes)) + " " + e.Version.String()
	}
	return output.Line(w, line, f.null)
}
