package transfer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
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
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// exportFlags are those of the command export.
type exportFlags struct {
	file     string
	resume   bool
	retained string // a topic filter; empty: no retained messages
	noKeys   bool
	settle   time.Duration
}

// NewExportCommand makes the command export.
func NewExportCommand(c *connect.Flags) *cobra.Command {
	var f exportFlags
	cmd := c.Command(&cobra.Command{
		Use:   "export [flags] [PATTERN]",
		Short: "Write keys and retained messages as JSON lines",
		Long: `Write the keys that match a pattern, all keys without one, as lines of JSON, in the
order of their bytes:

  {"key":"greeting","value":"hello","version":"1700000000000:1:StateStore"}

A line has "expires", the time at which the key expires, and "fencing_token", if the
key has them. Keys and values that are not UTF-8 are in base 64, as "key_base64" and
"value_base64". "holdfast import" reads the lines.

With --retained the retained messages that match a topic filter follow, with all that
they have ("payload" or "payload_base64", "qos", "utf8", "content_type",
"response_topic", "correlation_data", "user" for user properties, "expires"):

  {"topic":"plant/7/mode","payload":"auto","qos":1}

With --no-keys as well, the server may be any broker of MQTT 5. No broker but Holdfast
says which retained message is the last: the export ends when none has come for
--settle. So it does with a Holdfast whose policy lets the client not read
$SYS/broker/version.

The export is not a snapshot: a key that changes meanwhile is exported as it was
before or after. Where that matters, make a backup ("holdfast backup").

With --file the lines go to a file; after an interruption --resume goes on behind
the last key that is in it, and leaves out the retained messages that are in it.`,
		Example: `  holdfast export >keys.jsonl
  holdfast export --retained '#' --file all.jsonl
  holdfast export -n old.example --no-keys --retained 'plant/#' >retained.jsonl
  holdfast export --file keys.jsonl --resume 'sensor/*'`,
		Args: flags.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pattern := "*"
			switch {
			case f.noKeys && f.retained == "":
				return errors.New("--no-keys leaves nothing to export: give --retained")
			case f.noKeys && len(args) > 0:
				return fmt.Errorf("the pattern %q is for keys, which --no-keys leaves out", args[0])
			case f.retained != "" && !topic.ValidFilter(f.retained):
				return fmt.Errorf("--retained %q: want a topic filter: UTF-8 with + only as a whole level and # only as the last, for example plant/#", f.retained)
			case f.settle <= 0:
				return fmt.Errorf("--settle %v: it must be positive", f.settle)
			case len(args) > 0:
				pattern = args[0]
			}
			return f.run(cmd, c, pattern)
		},
	})
	cmd.Flags().StringVar(&f.file, "file", "", "write to this `FILE`, which does not exist yet")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "with --file: go on with a file of an export that was interrupted")
	cmd.Flags().StringVar(&f.retained, "retained", "", "also write the retained messages that match this topic `FILTER`")
	cmd.Flags().BoolVar(&f.noKeys, "no-keys", false, "with --retained: write no keys")
	cmd.Flags().DurationVar(&f.settle, "settle", 3*time.Second, "how long no retained message must come before the last has, if the server does not say")
	return cmd
}

func (f *exportFlags) run(cmd *cobra.Command, c *connect.Flags, pattern string) (err error) {
	out, has, err := f.open(cmd.OutOrStdout())
	if err != nil {
		return err
	}
	if out != cmd.OutOrStdout() {
		defer func() { err = errors.Join(err, out.(io.Closer).Close()) }()
	}
	w := bufio.NewWriterSize(out, 1<<20)
	p := output.NewProgress(cmd.ErrOrStderr())
	x := &exporting{lines: json.NewEncoder(w), has: has, progress: p}
	x.lines.SetEscapeHTML(false)
	err = f.export(cmd, c, pattern, x)
	p.End()
	if flushed := w.Flush(); err == nil {
		err = flushed
	}
	if err != nil || f.file == "" {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", f.file, x.counted(f))
	return err
}

// exporting writes the lines.
type exporting struct {
	lines          *json.Encoder
	has            *exported
	keys, messages int64 // of this run
	progress       *output.Progress
}

func (x *exporting) counted(f *exportFlags) string {
	keys, messages := output.Counted(x.keys, "key"), output.Counted(x.messages, "retained message")
	switch {
	case f.retained == "":
		return keys
	case f.noKeys:
		return messages
	}
	return keys + ", " + messages
}

func (f *exportFlags) export(cmd *cobra.Command, c *connect.Flags, pattern string, x *exporting) error {
	if !f.noKeys {
		cl, err := c.Dial(cmd)
		if err != nil {
			return err
		}
		err = x.writeKeys(cmd.Context(), cl, pattern)
		_ = cl.Close()
		if err != nil {
			return err
		}
	}
	if f.retained == "" {
		return nil
	}
	if err := c.Prepare(cmd); err != nil {
		return err
	}
	return retained(cmd.Context(), c, f.retained, f.settle, x.writeMessage)
}

// writeKeys writes the keys that match pattern and come after the last key of the file.
func (x *exporting) writeKeys(ctx context.Context, cl *client.Client, pattern string) error {
	for e, err := range cl.ScanValues(ctx, pattern, client.BinaryKeys(), client.Details()) {
		switch {
		case err != nil:
			return connect.Explain(err)
		case x.has.key != nil && e.Key <= *x.has.key:
			continue
		case e.TooLarge:
			return fmt.Errorf("the value of %q is larger than this client takes", e.Key)
		}
		if err := x.lines.Encode(newRecord(&e, time.Now())); err != nil {
			return err
		}
		x.keys++
		x.progress.Show("%d keys", x.keys)
	}
	return nil
}

// writeMessage writes a retained message that the file does not have yet.
func (x *exporting) writeMessage(m *mqtt.Publish) error {
	if _, is := x.has.topics[topicSum(m.Topic)]; is {
		return nil
	}
	if err := x.lines.Encode(newMessageRecord(m, time.Now())); err != nil {
		return err
	}
	x.messages++
	x.progress.Show("%d keys, %d retained messages", x.keys, x.messages)
	return nil
}

// exported is what a file has already.
type exported struct {
	key    *string               // the last one; nil: none
	topics map[[16]byte]struct{} // of retained messages: their topicSum, as there may be millions
}

// topicSum stands for a topic.
func topicSum(topic []byte) [16]byte {
	sum := sha256.Sum256(topic)
	return [16]byte(sum[:])
}

// open opens what is written to, and says what is in it already, with --resume.
func (f *exportFlags) open(standard io.Writer) (out io.Writer, has *exported, err error) {
	has = new(exported)
	switch {
	case f.file == "" && f.resume:
		return nil, nil, errors.New("--resume goes on with a file: give it with --file")
	case f.file == "":
		return standard, has, nil
	case !f.resume:
		file, err := os.OpenFile(f.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			err = fmt.Errorf("%w: choose another file, or go on with it by --resume", err)
		}
		return file, has, err
	}
	file, err := os.OpenFile(f.file, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	if err = has.read(file); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", f.file, err), file.Close())
	}
	return file, has, nil
}

// read reads the file, and cuts off a last line that is not complete. Afterwards the file is
// written at its end.
func (x *exported) read(file *os.File) error {
	x.topics = make(map[[16]byte]struct{})
	var complete, line int64 // bytes of whole lines, and their number
	r := bufio.NewReaderSize(file, 1<<20)
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		line++
		if len(text) > input.MaxBytes {
			return fmt.Errorf("line %d is too long", line)
		}
		complete += int64(len(text))
		e, err := readRecord(bytes.TrimSpace(text))
		switch {
		case err != nil:
			return fmt.Errorf("line %d: %w", line, err)
		case e.message != nil:
			x.topics[topicSum([]byte(e.message.Topic))] = struct{}{}
		default:
			x.key = &e.key
		}
	}
	if err := file.Truncate(complete); err != nil {
		return err
	}
	_, err := file.Seek(complete, io.SeekStart)
	return err
}
