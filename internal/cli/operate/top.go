package operate

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/top"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

const (
	// weighEvery is how often the server looks at each key and session, which takes a
	// processor some 50 ms for a million keys.
	weighEvery = 10 * time.Second
	// looksAtSize is how often the command looks whether the terminal has another size.
	looksAtSize = 250 * time.Millisecond
	// heaviest is how many keys and sessions a page has at most.
	heaviest = 40
	// columnsOfText is the width of a page that is not for a terminal.
	columnsOfText = 80
)

// NewTopCommand makes the command top.
func NewTopCommand() *cobra.Command {
	data, every, timeout, once := server.Default().DataDir, 2*time.Second, 10*time.Second, false
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show how a running server is, and what takes most, in a terminal",
		Long: `Show what is wrong with a running server, its rates, times and sizes, and the keys
and sessions that take most. The page is drawn anew every 2 seconds (--every), and
fits into 80 columns. q ends it.

The server looks at each key and session every 10 seconds; a session's weight is the
bytes of its queue, and those that its client's socket has not taken. Times are upper
bounds, each twice the one below it.

With --once, or if the output is no terminal, or one that cannot be drawn on (TERM is
dumb), one page is printed, with the rates of one second. The command reaches the
server through a socket in its data directory; of a cluster it is the directory of the
node that leads.`,
		Example: `  holdfast top
  holdfast top --data /var/lib/holdfast --once`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := topping{data: data, timeout: timeout}
			out, isFile := cmd.OutOrStdout().(*os.File)
			if !isFile || !output.IsTerminal(out) {
				return t.print(cmd, columnsOfText)
			}
			if once || os.Getenv("TERM") == "dumb" {
				columns, _ := top.Size(out)
				return t.print(cmd, columns)
			}
			return t.show(cmd, out, every)
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", data, "`DIR` with the data of the running server")
	f.DurationVar(&every, "every", every, "draw the page anew every `TIME`")
	f.BoolVar(&once, "once", false, "print one page, and end")
	f.DurationVar(&timeout, "timeout", timeout, "`TIME` that the server may take to answer")
	flags.Limit(f, map[string]flags.Span{"every": flags.Between(int64(100*time.Millisecond), int64(time.Hour))})
	return cmd
}

// topping asks one server how it is.
type topping struct {
	data    string
	timeout time.Duration
	view    top.View
	weighed time.Time // when the server was last asked for what takes most
}

// ask asks once. What it asked before is what rates are compared with.
func (t *topping) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, t.timeout, errors.New("the server has not answered within "+t.timeout.String()))
	defer cancel()
	most := 0
	if time.Since(t.weighed) >= weighEvery {
		most = heaviest
	}
	now, err := server.Overview(ctx, t.data, most)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return context.Cause(ctx)
	case err != nil:
		return leaderOf(ctx, t.data, err)
	}
	before := t.view.Now
	if most > 0 {
		t.weighed = time.Now()
	} else {
		now.Keys, now.Sessions = before.Keys, before.Sessions
	}
	t.view = top.View{Now: now}
	if !before.At.IsZero() && before.Uptime < now.Uptime {
		t.view.Before = &before
	}
	return nil
}

// print prints one page, with the rates of a second.
func (t *topping) print(cmd *cobra.Command, columns int) error {
	if err := t.ask(cmd.Context()); err != nil {
		return err
	}
	select {
	case <-time.After(time.Second):
	case <-cmd.Context().Done():
		return cmd.Context().Err()
	}
	if err := t.ask(cmd.Context()); err != nil {
		return err
	}
	return top.Print(cmd.OutOrStdout(), t.view.Page(columns, 0))
}

// show draws pages until q or Ctrl-C is pressed, or the command is interrupted.
func (t *topping) show(cmd *cobra.Command, out *os.File, every time.Duration) (err error) {
	if err := t.ask(cmd.Context()); err != nil {
		return err
	}
	screen, err := top.Open(out, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, screen.Close()) }()
	answers := make(chan error, 1) // has room, so that an answer which is not awaited ends
	next, looks := time.NewTicker(every), time.NewTicker(looksAtSize)
	defer next.Stop()
	defer looks.Stop()
	shown, asking := t.view, false
	var columns, lines int
	draw := func() error {
		columns, lines = screen.Size()
		return screen.Draw(shown.Page(columns, lines))
	}
	for err := draw(); ; {
		if err != nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case key, more := <-screen.Pressed():
			const ctrlC, ctrlD = 3, 4
			if !more || key == 'q' || key == 'Q' || key == ctrlC || key == ctrlD {
				return nil
			}
		case <-next.C:
			if !asking {
				asking = true
				go func() { answers <- t.ask(cmd.Context()) }()
			}
		case failed := <-answers:
			asking = false
			if failed == nil {
				shown = t.view
			} else {
				shown.Fault = failed.Error()
			}
			err = draw()
		case <-looks.C:
			if c, l := screen.Size(); c != columns || l != lines {
				err = draw()
			}
		}
	}
}
