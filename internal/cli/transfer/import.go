package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
)

// importWindow is how many keys are being written at a time.
const importWindow = 256

// progressSuffix ends the name of the file that says how far an import has come.
const progressSuffix = ".progress"

// importFlags are those of the command import.
type importFlags struct {
	from   string
	absent bool
	resume bool
}

// The forms that an import reads.
const (
	fromHoldfast = "holdfast"
	fromEtcd     = "etcd"
)

// NewImportCommand makes the command import.
func NewImportCommand(c *connect.Flags) *cobra.Command {
	f := importFlags{from: fromHoldfast}
	cmd := c.Command(&cobra.Command{
		Use:   "import [flags] FILE",
		Short: "Write keys that were exported",
		Long: `Write the keys of a file, or of standard input if FILE is -, that "holdfast export" has
written. A key that exists is overwritten, unless --absent is given. The server gives
each key a new version. What has expired meanwhile is left out.

With --from etcd the file is what "etcdctl get --prefix '' --write-out json" prints.

The command ends at the first line that cannot be imported, and says which. While it
runs, FILE.progress says how many lines have been acknowledged; after an interruption
--resume goes on behind them.`,
		Example: `  holdfast import keys.jsonl
  holdfast export -n old.example | holdfast import -n new.example -
  etcdctl get --prefix '' --write-out json | holdfast import --from etcd -`,
		Args: flags.Args("file"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, c, args[0]) },
	})
	cmd.Flags().Var(flags.Word(&f.from, fromHoldfast, fromEtcd), "from", "what has written the file: holdfast or etcd (default holdfast)")
	cmd.Flags().BoolVar(&f.absent, "absent", false, "write only keys that do not exist")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "go on where an import of the same file was interrupted")
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command, c *connect.Flags, name string) (err error) {
	in, state := cmd.InOrStdin(), ""
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in, state = file, name+progressSuffix
	}
	if f.resume && state == "" {
		return errors.New("--resume needs a file: standard input cannot be read again")
	}
	var skip int64
	if f.resume {
		if skip, err = readProgress(state); err != nil {
			return err
		}
	}
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	entries := lines(in)
	if f.from == fromEtcd {
		entries = etcdKeys(in)
	}
	p := output.NewProgress(cmd.ErrOrStderr())
	i := importing{state: state, done: skip, progress: func(done int64) { p.Show("%d lines", done) }}
	err = f.write(cmd.Context(), c, cl, after(entries, skip), &i)
	p.End()
	if err = i.end(err); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s written%s\n", output.Counted(i.written, "key"), i.leftOut())
	return err
}

// outcome is that of one entry.
type outcome struct {
	entry
	expired, existed bool
	err              error
}

// write sends the entries, many at a time.
func (f *importFlags) write(ctx context.Context, c *connect.Flags, cl *client.Client, entries iter.Seq2[entry, error], i *importing) error {
	begin := func(e entry) (<-chan outcome, error) {
		done := make(chan outcome, 1)
		opts, expired := f.options(&e, time.Now())
		if expired {
			done <- outcome{entry: e, expired: true}
			return done, nil
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
			defer cancel()
			_, err := cl.Set(ctx, e.key, e.value, opts...)
			if errors.Is(err, client.ErrNotApplied) {
				done <- outcome{entry: e, existed: true}
				return
			}
			done <- outcome{entry: e, err: err}
		}()
		return done, nil
	}
	return pipeline.Run(ctx, importWindow, entries, nil, begin, i.report)
}

// options are those of the SET of an entry, which may have expired.
func (f *importFlags) options(e *entry, now time.Time) (opts []client.SetOption, expired bool) {
	if !e.expires.IsZero() {
		left := e.expires.Sub(now)
		if left <= 0 {
			return nil, true
		}
		opts = append(opts, client.Expiry(left))
	}
	if !e.token.IsZero() {
		opts = append(opts, client.Fencing(e.token))
	}
	if f.absent {
		opts = append(opts, client.IfAbsent())
	}
	return opts, false
}

// importing counts what has been done, and notes it in a file.
type importing struct {
	state                     string // the file; empty: none
	done                      int64  // lines
	written, expired, existed int64  // keys of this run
	progress                  func(int64)
	noted                     time.Time
}

// noteEvery is how often the file is written.
const noteEvery = time.Second

func (i *importing) report(o outcome) error {
	switch {
	case o.err != nil:
		return fmt.Errorf("line %d, key %q: %w", o.line, o.key, connect.Explain(o.err))
	case o.expired:
		i.expired++
	case o.existed:
		i.existed++
	default:
		i.written++
	}
	i.done = o.line
	i.progress(i.done)
	if time.Since(i.noted) < noteEvery {
		return nil
	}
	i.noted = time.Now()
	return i.note()
}

func (i *importing) note() error {
	if i.state == "" {
		return nil
	}
	next := i.state + ".tmp"
	if err := os.WriteFile(next, strconv.AppendInt(nil, i.done, 10), 0o600); err != nil {
		return err
	}
	return os.Rename(next, i.state)
}

// end notes how far the import has come if it has failed, and removes the file otherwise.
func (i *importing) end(err error) error {
	if i.state == "" {
		return err
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%w (%s done; --resume goes on behind them)", err, output.Counted(i.done, "line")), i.note())
	}
	if err := os.Remove(i.state); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (i *importing) leftOut() (text string) {
	if i.expired > 0 {
		text += fmt.Sprintf(", %d had expired", i.expired)
	}
	if i.existed > 0 {
		text += fmt.Sprintf(", %d existed", i.existed)
	}
	return text
}

func readProgress(state string) (done int64, err error) {
	text, err := os.ReadFile(state)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: no import of this file was interrupted; begin without --resume", err)
	}
	if err != nil {
		return 0, err
	}
	if done, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil || done < 0 {
		return 0, fmt.Errorf("%s: want the number of lines that have been imported", state)
	}
	return done, nil
}

// lines reads a file of export.
func lines(in io.Reader) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		n := int64(0)
		for line, err := range input.Lines(in, false, input.MaxBytes) {
			n++
			var e entry
			if err == nil {
				e, err = readRecord(line)
			}
			if err != nil {
				err = fmt.Errorf("line %d: %w", n, err)
			}
			e.line = n
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// after leaves out the first n entries.
func after(entries iter.Seq2[entry, error], n int64) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		for e, err := range entries {
			if err == nil && e.line <= n {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// etcdKeys reads what etcdctl prints: one object with a list of keys, of which each counts
// as a line.
func etcdKeys(in io.Reader) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		d := json.NewDecoder(in)
		if err := findList(d, "kvs"); err != nil {
			yield(entry{}, fmt.Errorf("not what etcdctl get --write-out json prints: %w", err))
			return
		}
		for n := int64(1); d.More(); n++ {
			var kv struct{ Key, Value []byte }
			err := d.Decode(&kv)
			if err != nil {
				err = fmt.Errorf("key %d: %w", n, err)
			}
			if !yield(entry{line: n, key: string(kv.Key), value: kv.Value}, err) || err != nil {
				return
			}
		}
		if _, err := d.Token(); err != nil {
			yield(entry{}, fmt.Errorf("the list of keys is cut off: %w", err))
		}
	}
}

// findList reads to behind the [ of a list that the object has under a name. An object
// without it has an empty list.
func findList(d *json.Decoder, name string) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("no JSON object"), err)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		if t == name {
			if t, err := d.Token(); err != nil || t != json.Delim('[') {
				return errors.Join(fmt.Errorf("%s is not a list", name), err)
			}
			return nil
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return err
		}
	}
	return nil
}
