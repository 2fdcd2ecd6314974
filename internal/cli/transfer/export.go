package transfer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// exportFlags are those of the command export.
type exportFlags struct {
	file   string
	resume bool
}

// NewExportCommand makes the command export.
func NewExportCommand(c *connect.Flags) *cobra.Command {
	var f exportFlags
	cmd := c.Command(&cobra.Command{
		Use:   "export [flags] [PATTERN]",
		Short: "Write keys as JSON lines",
		Long: `Write the keys that match a pattern, all keys without one, as lines of JSON, in the
order of their bytes:

  {"key":"greeting","value":"hello","version":"1700000000000:1:StateStore"}

A line has "expires", the time at which the key expires, and "fencing_token", if the
key has them. Keys and values that are not UTF-8 are in base 64, as "key_base64" and
"value_base64". "holdfast import" reads the lines.

The export is not a snapshot: a key that changes meanwhile is exported as it was
before or after. Where that matters, make a backup ("holdfast backup").

With --file the lines go to a file; after an interruption --resume goes on behind
the last key that is in it.`,
		Example: `  holdfast export >keys.jsonl
  holdfast export --file keys.jsonl 'sensor/*'
  holdfast export --file keys.jsonl --resume 'sensor/*'`,
		Args: flags.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pattern := "*"
			if len(args) > 0 {
				pattern = args[0]
			}
			return f.run(cmd, c, pattern)
		},
	})
	cmd.Flags().StringVar(&f.file, "file", "", "write to this `FILE`, which does not exist yet")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "with --file: go on behind the last key that the file has")
	return cmd
}

func (f *exportFlags) run(cmd *cobra.Command, c *connect.Flags, pattern string) (err error) {
	out, after, err := f.open(cmd.OutOrStdout())
	if err != nil {
		return err
	}
	if out != cmd.OutOrStdout() {
		defer func() { err = errors.Join(err, out.(io.Closer).Close()) }()
	}
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	w := bufio.NewWriterSize(out, 1<<20)
	p := output.NewProgress(cmd.ErrOrStderr())
	n, err := export(cmd, cl, pattern, after, w, func(n int64) { p.Show("%d keys", n) })
	p.End()
	if flushed := w.Flush(); err == nil {
		err = flushed
	}
	if err != nil {
		return err
	}
	if f.file != "" {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", f.file, output.Counted(n, "key"))
	}
	return err
}

// export writes the keys that match pattern and come after a key; nil: all of them.
func export(cmd *cobra.Command, cl *client.Client, pattern string, after *string, w io.Writer, progress func(int64)) (n int64, err error) {
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	for e, err := range cl.ScanValues(cmd.Context(), pattern, client.BinaryKeys(), client.Details()) {
		switch {
		case err != nil:
			return n, connect.Explain(err)
		case after != nil && e.Key <= *after:
			continue
		case e.TooLarge:
			return n, fmt.Errorf("the value of %q is larger than this client takes", e.Key)
		}
		if err := lines.Encode(newRecord(&e, time.Now())); err != nil {
			return n, err
		}
		n++
		progress(n)
	}
	return n, nil
}

// open opens what is written to. after is the last key that is in it already, with --resume.
func (f *exportFlags) open(standard io.Writer) (out io.Writer, after *string, err error) {
	switch {
	case f.file == "" && f.resume:
		return nil, nil, errors.New("--resume goes on with a file: give it with --file")
	case f.file == "":
		return standard, nil, nil
	case !f.resume:
		file, err := os.OpenFile(f.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			err = fmt.Errorf("%w: choose another file, or go on with it by --resume", err)
		}
		return file, nil, err
	}
	file, err := os.OpenFile(f.file, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	if after, err = lastKey(file); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", f.file, err), file.Close())
	}
	return file, after, nil
}

// lastKey reads the file, cuts off a last line that is not complete, and returns the key of
// the line before; nil: there is none. Afterwards the file is written at its end.
func lastKey(file *os.File) (after *string, err error) {
	var complete, line int64 // bytes of whole lines, and their number
	var last []byte
	r := bufio.NewReaderSize(file, 1<<20)
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(text) > input.MaxBytes {
			return nil, fmt.Errorf("line %d is too long", line+1)
		}
		complete += int64(len(text))
		last, line = text, line+1
	}
	if last != nil {
		e, err := readRecord(bytes.TrimSpace(last))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		after = &e.key
	}
	if err := file.Truncate(complete); err != nil {
		return nil, err
	}
	_, err = file.Seek(complete, io.SeekStart)
	return after, err
}
