package keys

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// deletion is what a del command line asks for.
type deletion struct {
	operands
	fencing fencing
	out     output.Format

	stdin, null     bool
	pattern         string
	binary          bool
	dryRun, certain bool
}

// NewDelCommand makes the command del.
func NewDelCommand(c *connect.Flags) *cobra.Command {
	var d deletion
	cmd := c.Command(&cobra.Command{
		Use:     "del [flags] KEY...",
		Aliases: []string{"delete"}, // statestore-cli's name for it
		Short:   "Delete keys",
		Long: `Delete keys: those named, those that standard input names with --stdin, or those
that match a pattern with --pattern (holdfast scan says what a pattern is).
Many requests travel at a time, over one connection.

A pattern deletes at once with --yes. Without it the command counts the keys and asks,
if standard input is a terminal, and refuses otherwise. Keys that are created while it
runs may or may not be deleted. --dry-run prints the keys and deletes nothing.

Nothing is printed, except on a terminal "OK" or how many keys were deleted, with -v
the deleted values' versions (after their keys, if they may be several), and with
--output json an object for each key.

Exit status: 0 all deleted, 1 a key did not exist, or nothing matched, or the question
was answered with no, 2 error. After an error no further key is tried.`,
		Example: `  holdfast del greeting
  holdfast del --pattern 'sensor/*' --dry-run
  holdfast scan --null 'tmp/*' | holdfast del --stdin --null`,
		RunE: func(cmd *cobra.Command, args []string) error { return d.run(cmd, c, args) },
	})
	d.addKeyFlag(cmd)
	d.fencing.addFlag(cmd)
	d.out.AddFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&d.stdin, "stdin", false, "read the keys from standard input, one per line")
	flags.BoolVarP(&d.null, "null", "0", false, "with --stdin or --dry-run: keys end with NUL instead of a line feed")
	flags.StringVar(&d.pattern, "pattern", "", "delete the keys that match this `pattern`")
	flags.BoolVar(&d.binary, "binary", false, "with --pattern: match byte by byte, also keys that are not UTF-8")
	flags.BoolVar(&d.dryRun, "dry-run", false, "print the keys that would be tried, and delete nothing")
	flags.BoolVarP(&d.certain, "yes", "y", false, "with --pattern: don't ask")
	return cmd
}

func (d *deletion) run(cmd *cobra.Command, c *connect.Flags, args []string) error {
	if err := d.out.Check(); err != nil {
		return err
	}
	byPattern, byFlag := cmd.Flags().Changed("pattern"), cmd.Flags().Changed("key")
	sources := 0
	for _, given := range []bool{len(args) > 0, byFlag, d.stdin, byPattern} {
		if given {
			sources++
		}
	}
	switch {
	case sources == 0:
		return fmt.Errorf("no key is given: give KEY, --stdin or --pattern; usage: %s", cmd.UseLine())
	case byFlag && len(args) > 0:
		return fmt.Errorf("unexpected argument %q: --key names the only key; usage: %s", args[0], cmd.UseLine())
	case sources > 1:
		return errors.New("KEY, --stdin and --pattern exclude each other")
	case d.binary && !byPattern:
		return errors.New("--binary is for --pattern only: keys that are named are bytes anyway")
	case d.certain && !byPattern:
		return errors.New("--yes is for --pattern only: nothing else asks")
	case d.null && !d.stdin && !d.dryRun:
		return errors.New("--null is for --stdin and --dry-run only")
	}
	opts, err := d.options(cmd)
	if err != nil {
		return err
	}
	if byFlag {
		args = []string{d.key}
	}
	var cl *client.Client
	if byPattern || !d.dryRun {
		if cl, err = c.Dial(cmd); err != nil {
			return err
		}
		defer cl.Close()
	}
	var keys iter.Seq2[string, error]
	switch {
	case byPattern:
		keys = d.matching(cmd, cl)
	case d.stdin:
		keys = d.decoded(input.NonEmptyLines(cmd.InOrStdin(), d.null))
	default:
		keys = d.decoded(func(yield func(string, error) bool) {
			for _, key := range args {
				if !yield(key, nil) {
					return
				}
			}
		})
	}
	if d.dryRun {
		return d.list(cmd.OutOrStdout(), keys)
	}
	if byPattern && !d.certain {
		if err := d.ask(cmd, keys); err != nil {
			return err
		}
	}
	p := progress{cmd: cmd, out: &d.out, verbose: c.Verbose, several: d.stdin || byPattern || len(args) > 1, byPattern: byPattern}
	return p.summarize(deleteAll(cmd.Context(), c, cl, keys, opts, p.report))
}

func (d *deletion) options(cmd *cobra.Command) ([]client.DelOption, error) {
	token, err := d.fencing.option(cmd)
	if err != nil || token == nil {
		return nil, err
	}
	return []client.DelOption{token}, nil
}

// matching scans for the keys that match the pattern.
func (d *deletion) matching(cmd *cobra.Command, cl *client.Client) iter.Seq2[string, error] {
	var opts []client.ScanOption
	if d.binary {
		opts = append(opts, client.BinaryKeys())
	}
	return cl.Scan(cmd.Context(), d.pattern, opts...)
}

// decoded gives the keys that texts stand for.
func (d *deletion) decoded(texts iter.Seq2[string, error]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for text, err := range texts {
			key := text
			if err == nil {
				key, err = d.encoding.decode(text)
			}
			if !yield(key, err) || err != nil {
				return
			}
		}
	}
}

// list prints the keys.
func (d *deletion) list(out io.Writer, keys iter.Seq2[string, error]) error {
	f := scanFlags{null: d.null, encoding: d.encoding, out: d.out}
	if d.binary && f.encoding.name == "" && !f.null {
		f.encoding.name = quotedKeys
	}
	w := bufio.NewWriter(out)
	for key, err := range keys {
		if err != nil {
			_ = w.Flush()
			return connect.Explain(err)
		}
		if err := f.print(w, &client.Entry{Key: key}); err != nil {
			return err
		}
	}
	return w.Flush()
}

// ask counts the keys and asks for confirmation.
func (d *deletion) ask(cmd *cobra.Command, keys iter.Seq2[string, error]) error {
	unasked := errors.New("--pattern deletes without asking only with --yes; --dry-run shows what it would delete")
	if !output.IsTerminal(cmd.InOrStdin()) {
		return unasked
	}
	n := 0
	for _, err := range keys {
		if err != nil {
			return connect.Explain(err)
		}
		n++
	}
	if n == 0 {
		return exit.Negative("no key matches " + protocol.Quote(d.pattern))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "delete %s that match %s? [y/N] ", output.Counted(int64(n), "key"), protocol.Quote(d.pattern))
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	switch answer = strings.ToLower(strings.TrimSpace(answer)); {
	case answer == "y", answer == "yes":
		return nil
	case err != nil && answer == "": // the end of the input
		fmt.Fprintln(cmd.ErrOrStderr())
		return unasked
	}
	return exit.Negative("nothing was deleted")
}

// deleteWindow is how many deletions are under way at a time.
const deleteWindow = 256

// deleted is the outcome of one key.
type deleted struct {
	key string
	client.Deletion
	err error
}

// deleteAll deletes keys, up to deleteWindow at a time, and reports each in the order of
// the keys. After an error it begins no further one; the first error is returned. After
// an interruption it waits for the requests that have been sent, and reports them.
func deleteAll(ctx context.Context, c *connect.Flags, cl *client.Client, keys iter.Seq2[string, error], opts []client.DelOption, report func(*deleted) error) error {
	begin := func(key string) (<-chan deleted, error) {
		done := make(chan deleted, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
			defer cancel()
			d, err := cl.Del(ctx, key, opts...)
			done <- deleted{key, d, err}
		}()
		return done, nil
	}
	return pipeline.Run(ctx, pipeline.Window[string]{Items: deleteWindow}, keys, nil, begin, func(d deleted) error {
		if d.err != nil {
			return d.err
		}
		return report(&d)
	})
}

// progress prints the outcomes of keys, and counts them.
type progress struct {
	cmd       *cobra.Command
	out       *output.Format
	verbose   bool
	several   bool // the command line may stand for more than one key
	byPattern bool

	deleted, missing int
	firstMissing     string
	last             client.Deletion
}

func (p *progress) report(d *deleted) error {
	p.last = d.Deletion
	if d.Deleted {
		p.deleted++
	} else if p.missing++; p.missing == 1 {
		p.firstMissing = d.key
	}
	w := p.cmd.OutOrStdout()
	switch {
	case p.out.JSON():
		r := output.NewRecord(d.key)
		r.Found, r.Deleted = &d.Deleted, &d.Deleted // there is no condition
		if d.Deleted {
			r.Version = d.Version.String()
		}
		return r.Write(w)
	case p.several && p.verbose && d.Deleted:
		return output.Line(w, output.Word(d.key)+" "+d.Version.String(), false)
	}
	return nil
}

// summarize prints the result of all keys together, and returns the command's error.
func (p *progress) summarize(err error) error {
	switch {
	case err != nil && p.several:
		return fmt.Errorf("%w; %s deleted before", connect.Explain(err), wereDeleted(p.deleted))
	case err != nil:
		return connect.Explain(err)
	case p.byPattern && p.deleted == 0:
		return exit.Negative("no key matches")
	case p.missing == 1 && !p.byPattern:
		return noSuchKey(p.firstMissing)
	case p.missing > 1 && !p.byPattern: // by pattern, another client has deleted them first
		return exit.Negative(fmt.Sprintf("no such key: %s and %d more", protocol.Quote(p.firstMissing), p.missing-1))
	case p.out.JSON():
		return nil
	case !p.several:
		return confirm(p.cmd.OutOrStdout(), p.verbose, p.last.Version)
	case output.IsTerminal(p.cmd.OutOrStdout()):
		_, err := fmt.Fprintln(p.cmd.OutOrStdout(), wereDeleted(p.deleted)+" deleted")
		return err
	}
	return nil
}

func wereDeleted(n int) string {
	if n == 1 {
		return "1 key was"
	}
	return fmt.Sprintf("%d keys were", n)
}

// NewVDelCommand makes the command vdel.
func NewVDelCommand(c *connect.Flags) *cobra.Command {
	var o operands
	var f fencing
	var out output.Format
	cmd := c.Command(&cobra.Command{
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
				return cl.Del(ctx, key, append(opts, client.IfValue(value))...)
			})
		},
	})
	o.addKeyFlag(cmd)
	o.addValueFlags(cmd)
	f.addFlag(cmd)
	out.AddFlag(cmd)
	return cmd
}

// remove deletes a key, on a condition, and prints the outcome.
func remove(cmd *cobra.Command, c *connect.Flags, key string, f *fencing, out *output.Format,
	do func(context.Context, *client.Client, ...client.DelOption) (client.Deletion, error)) error {
	if err := out.Check(); err != nil {
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
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := c.Bounded(cmd)
	defer cancel()
	d, err := do(ctx, cl, opts...)
	otherValue := errors.Is(err, client.ErrNotApplied)
	if err != nil && !otherValue {
		return connect.Explain(err)
	}
	found := d.Deleted || otherValue
	if out.JSON() {
		r := output.NewRecord(key)
		r.Found, r.Deleted = &found, &d.Deleted
		if found {
			r.Version = d.Version.String()
		}
		if err := r.Write(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	switch {
	case !found:
		return noSuchKey(key)
	case !d.Deleted:
		return exit.Negative("not deleted: the key has another value, of version " + d.Version.String())
	case out.JSON():
		return nil
	}
	return confirm(cmd.OutOrStdout(), c.Verbose, d.Version)
}

func noSuchKey(key string) error { return exit.Negative("no such key: " + protocol.Quote(key)) }
