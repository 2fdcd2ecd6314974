package keys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// NewWatchCommand makes the command watch.
func NewWatchCommand(c *connect.Flags) *cobra.Command {
	var o operands
	var out output.Format
	var f watchFlags
	cmd := c.Command(&cobra.Command{
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
0), and reconnects by itself. It logs a lost connection to standard error, and
with -v also that the watch has begun.

With --prefix all keys that begin with KEY are watched. The server notifies of single
keys, so the command scans for them, and again every --rescan. It prints every change of
a key that it has found. A key that is created later is printed when a scan finds it,
with its value of that moment and "gap"; one that is deleted before a scan finds it is
not seen. The server bounds how many keys a client watches (10,000, unless its
--max-watches says otherwise); one more ends the command.`,
		Example: `  holdfast watch greeting
  holdfast watch --count 1 --output json lock
  holdfast watch --prefix sensor/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := o.takeOnlyKey(cmd, args)
			if err != nil {
				return err
			}
			return watch(cmd, c, key, &f, &out)
		},
	})
	o.addKeyFlag(cmd)
	out.AddFlag(cmd)
	cmd.Flags().Uint64Var(&f.count, "count", 0, "stop after this many events (0: never)")
	cmd.Flags().BoolVar(&f.prefix, "prefix", false, "watch all keys that begin with KEY")
	cmd.Flags().DurationVar(&f.rescan, "rescan", time.Second, "with --prefix: how often to look for new keys")
	return cmd
}

// watchFlags say what to watch.
type watchFlags struct {
	count  uint64 // 0: no end
	prefix bool
	rescan time.Duration
}

func (f *watchFlags) check(cmd *cobra.Command) error {
	switch {
	case cmd.Flags().Changed("rescan") && !f.prefix:
		return errors.New("--rescan is for --prefix only")
	case f.rescan < 10*time.Millisecond:
		return fmt.Errorf("--rescan %v: want a duration of at least 10ms", f.rescan)
	}
	return nil
}

func watch(cmd *cobra.Command, c *connect.Flags, key string, f *watchFlags, out *output.Format) error {
	if err := out.Check(); err != nil {
		return err
	}
	if err := f.check(cmd); err != nil {
		return err
	}
	// A watch can go on for days: a connection that is lost, and each failure to
	// connect again, are logged without -v as well.
	level := slog.LevelWarn
	if c.Verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	cl, err := c.Dial(cmd, client.WithLogger(log))
	if err != nil {
		return err
	}
	defer cl.Close()
	w, what, err := f.begin(cmd.Context(), cl, key)
	if err != nil {
		return err
	}
	defer w.Close()
	if c.Verbose {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: watching %s\n", cmd.CommandPath(), what)
	}
	seen := uint64(0)
	for e := range w.Chan() {
		if err := printEvent(cmd.OutOrStdout(), &e, out.JSON()); err != nil {
			return err
		}
		if seen++; seen == f.count {
			return nil
		}
	}
	if cmd.Context().Err() != nil {
		return nil // an interruption is the usual end
	}
	return f.explain(w.Err(), key)
}

// begin registers the watch. what names what it watches, for people.
func (f *watchFlags) begin(ctx context.Context, cl *client.Client, key string) (w *client.Watch, what string, err error) {
	if !f.prefix {
		w, err = cl.Watch(ctx, key)
		return w, protocol.Quote(key), f.explain(err, key)
	}
	pattern := client.LiteralPattern(key) + "*"
	if len(pattern) > protocol.MaxPattern {
		return nil, "", fmt.Errorf("a prefix has at most %d bytes, and each *, ? and [ in it counts as three", protocol.MaxPattern-1)
	}
	w, err = cl.WatchPattern(ctx, pattern, client.BinaryKeys(), client.Rescan(f.rescan))
	return w, "the keys that begin with " + protocol.Quote(key), f.explain(err, key)
}

// explain says what an error of a watch means for a person.
func (f *watchFlags) explain(err error, key string) error {
	if f.prefix && errors.Is(err, client.ErrQuotaExceeded) {
		return fmt.Errorf("more keys begin with %s than the server lets this client watch: its --max-watches, --max-watch-bytes or --max-memory says how many; %w", protocol.Quote(key), connect.Explain(err))
	}
	return connect.Explain(err)
}

func printEvent(w io.Writer, e *client.Event, asJSON bool) error {
	if asJSON {
		return eventRecord(e).Write(w)
	}
	line := e.Kind.String() + " " + output.Word(e.Key)
	if e.Kind == client.KeySet {
		line += " " + output.Word(string(e.Value))
	}
	line += " " + e.Version.String()
	if e.Gap {
		line += " gap"
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func eventRecord(e *client.Event) *output.Record {
	r := output.NewRecord(e.Key)
	r.Event, r.Gap = e.Kind.String(), e.Gap
	if e.Kind == client.KeySet {
		r.SetValue(e.Value)
	}
	if !e.Version.IsZero() {
		r.Version = e.Version.String()
	}
	return r
}
