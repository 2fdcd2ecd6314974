package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// lockFlags are the options of a lock.
type lockFlags struct {
	ttl    time.Duration
	wait   time.Duration // negative: as long as it takes
	grace  time.Duration
	holder string
}

// NewCommand makes the command lock.
func NewCommand(c *connect.Flags) *cobra.Command {
	var f lockFlags
	cmd := c.Command(&cobra.Command{
		Use:   "lock [flags] NAME -- COMMAND [ARGUMENT]...",
		Short: "Run a command while holding a lock",
		Long: `Wait for a lock, run a command while holding it, and release it.

The command finds the lock's name and its fencing token in its environment:
HOLDFAST_LOCK_NAME and HOLDFAST_LOCK_TOKEN. Writes with that token are refused
once a later holder has written:

  holdfast set --fencing-token "$HOLDFAST_LOCK_TOKEN" KEY VALUE

If the lock is lost, because the server can't be reached for nearly --ttl or
another client deletes the lock's key, the command gets SIGTERM, and SIGKILL when
--grace is over. Unless the key was deleted, the command has ended before another
client can acquire the lock. Other signals are forwarded to the command. It runs
in a process group of its own, and all processes of the group get the signals. If
it is started from a terminal, it stays in the terminal's group: the keyboard's
signals reach it from there, and other signals go to the command alone.

Exit status: that of the command, 128 and the signal's number if a signal ended
it; 1 if the lock could not be acquired within --wait; 2 on error, and whenever the
lock was lost while the command ran; 126 or 127 if it can't be executed or found.`,
		Example: `  holdfast lock backup -- ./backup.sh
  holdfast lock --wait 0 backup -- ./backup.sh || echo "another machine does it"
  holdfast lock --ttl 10s migrate -- sh -c 'make migrate'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, command, err := lockOperands(cmd, args)
			if err != nil {
				return err
			}
			if err := f.check(cmd); err != nil {
				return err
			}
			return lock(cmd, c, name, command, &f)
		},
	})
	flags := cmd.Flags()
	flags.DurationVar(&f.ttl, "ttl", lease.DefaultTTL, "how long the lock outlives a holder that can no longer renew it")
	flags.DurationVarP(&f.wait, "wait", "w", -1, "how long to wait for the lock; 0: not at all (default: as long as it takes)")
	flags.DurationVar(&f.grace, "grace", 0, "time between SIGTERM and SIGKILL when the lock is lost (default 5s, at most a quarter of --ttl)")
	flags.StringVar(&f.holder, "holder", "", "name of the holder, which other clients can read; a command with the same `text` takes the lock over (default: a unique name)")
	flags.Lookup("wait").DefValue = ""
	cmd.ValidArgsFunction = nil // the command to run, and its files
	return cmd
}

// lockOperands splits NAME -- COMMAND.
func lockOperands(cmd *cobra.Command, args []string) (name string, command []string, err error) {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) > 1:
		return "", nil, fmt.Errorf("put -- before the command; usage: %s", cmd.UseLine())
	case dash > 1:
		return "", nil, fmt.Errorf("unexpected argument %q; usage: %s", args[1], cmd.UseLine())
	case dash == 0 || len(args) == 0:
		return "", nil, fmt.Errorf("no lock is named; usage: %s", cmd.UseLine())
	case len(args) == 1:
		return "", nil, fmt.Errorf("no command is given; usage: %s", cmd.UseLine())
	}
	return args[0], args[1:], nil
}

func (f *lockFlags) check(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("grace") {
		f.grace = min(5*time.Second, f.ttl/4)
	}
	switch {
	case f.wait < 0 && cmd.Flags().Changed("wait"):
		return fmt.Errorf("--wait %v: it must not be negative; leave it out to wait as long as it takes", f.wait)
	case f.ttl < 100*time.Millisecond:
		return fmt.Errorf("--ttl %v: it must be at least 100ms", f.ttl)
	case f.grace < 0 || f.margin() > f.ttl/2:
		return fmt.Errorf("--grace %v: it must be from 0 to 0.45 of --ttl %v, or another client could acquire the lock before the command has ended", f.grace, f.ttl)
	}
	return nil
}

// margin is how long before its expiry the lock counts as lost: the command must have
// ended when it expires.
func (f *lockFlags) margin() time.Duration { return f.grace + f.ttl/20 }

func lock(cmd *cobra.Command, c *connect.Flags, name string, command []string, f *lockFlags) error {
	if _, err := exec.LookPath(command[0]); err != nil {
		return notStarted(cmd, command[0], err)
	}
	var level slog.LevelVar
	level.Set(slog.LevelError) // the error of Dial reports a failure to connect
	if c.Verbose {
		level.Set(slog.LevelInfo)
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: &level}))
	cl, err := c.Dial(cmd, client.WithLogger(log))
	if err != nil {
		return err
	}
	defer cl.Close()
	if !c.Verbose {
		// A command can run for days: from now on a connection that is lost, and
		// each failure to connect again, are logged.
		level.Set(slog.LevelWarn)
	}
	held, err := f.acquire(cmd, c, cl, name)
	if err != nil {
		return err
	}
	if c.Verbose {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: holding %q with token %v\n", cmd.CommandPath(), name, held.Token())
	}
	err = runHolding(cmd, held, command, f.grace)
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	switch released := held.Release(ctx); {
	case errors.Is(released, lease.ErrLost):
		return fmt.Errorf("the lock was lost while the command ran: %w", released)
	case released != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: not released, it ends within %v: %s\n", cmd.CommandPath(), f.ttl, output.OneLine(connect.Explain(released).Error()))
	}
	return err
}

// acquire waits for the lock, up to --wait.
func (f *lockFlags) acquire(cmd *cobra.Command, c *connect.Flags, cl *client.Client, name string) (*lease.Lease, error) {
	opts := []lease.Option{lease.WithTTL(f.ttl), lease.WithMargin(f.margin()), lease.WithHolder(f.holder)}
	if f.holder == "" {
		opts[2] = lease.WithHolder(uniqueHolder())
	}
	k, err := lease.NewLock(cl, name, opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.Bounded(cmd)
	defer cancel()
	held, err := k.TryLock(ctx)
	if !errors.Is(err, lease.ErrTaken) {
		return held, connect.Explain(err)
	}
	if f.wait == 0 {
		return nil, exit.Negative(heldBy(ctx, cl, name))
	}
	if c.Verbose {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: waiting: %s\n", cmd.CommandPath(), heldBy(ctx, cl, name))
	}
	waiting := cmd.Context()
	if f.wait > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(waiting, f.wait)
		defer cancel()
	}
	held, err = k.Lock(waiting)
	switch {
	case err == nil:
		return held, nil
	case cmd.Context().Err() != nil:
		return nil, errors.New("interrupted while waiting for the lock")
	case waiting.Err() != nil && !errors.Is(err, client.ErrNotConnected):
		ctx, cancel := c.Bounded(cmd)
		defer cancel()
		return nil, exit.Negative(fmt.Sprintf("not acquired within %v: %s", f.wait, heldBy(ctx, cl, name)))
	}
	return nil, connect.Explain(err)
}

func heldBy(ctx context.Context, cl *client.Client, name string) string {
	holder, held, err := lease.Holder(ctx, cl, name)
	if err != nil || !held {
		return output.Word(name) + " was held by another client"
	}
	return output.Word(name) + " is held by " + output.Word(holder)
}

// uniqueHolder is a name by which people find the process that holds the lock.
func uniqueHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s:%d:%s", host, os.Getpid(), rand.Text()[:8])
}

// runHolding runs the command until it ends, by itself or because the lock is
// lost, and returns its status.
func runHolding(cmd *cobra.Command, held *lease.Lease, command []string, grace time.Duration) error {
	signals := make(chan os.Signal, 16)
	inherited := inForeground() // the terminal sends its signals to the command, too
	signal.Notify(signals, forwardedSignals(inherited)...)
	defer signal.Stop(signals)
	if inherited { // the command handles the keyboard's signals; signal.Ignore would be inherited by it
		unread := make(chan os.Signal, 1)
		signal.Notify(unread, keyboardSignals...)
		defer signal.Stop(unread)
	}
	if cmd.Context().Err() != nil {
		return errors.New("interrupted")
	}
	child := exec.Command(command[0], command[1:]...)
	child.Stdin, child.Stdout, child.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.Env = append(os.Environ(), "HOLDFAST_LOCK_NAME="+held.Name(), "HOLDFAST_LOCK_TOKEN="+held.Token().String())
	arrange(child, !inherited)
	// What arrange asks for may be tied to the thread that starts the command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := child.Start(); err != nil {
		return notStarted(cmd, command[0], err)
	}
	exited := make(chan error, 1)
	go func() { exited <- child.Wait() }()

	lost := held.Context().Done()
	var tooLong <-chan time.Time
	for {
		select {
		case err := <-exited:
			if lost == nil {
				killAll(child, !inherited) // what the command has left running in its group
			}
			return statusOf(err)
		case s := <-signals:
			forward(child, s, !inherited)
		case <-lost:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: ending the command: %s\n", cmd.CommandPath(), output.OneLine(held.Err().Error()))
			lost, tooLong = nil, time.After(grace)
			terminate(child, !inherited)
		case <-tooLong:
			killAll(child, !inherited)
		}
	}
}

// statusOf is nil for a command that ended with status 0.
func statusOf(err error) error {
	var ended *exec.ExitError
	if err == nil || !errors.As(err, &ended) {
		return err
	}
	return exit.Status(exitStatusOf(ended.ProcessState))
}

// notStarted prints why the command could not be started, and returns its exit status.
func notStarted(cmd *cobra.Command, command string, err error) error {
	status := exit.NotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		status = exit.NotFound
	}
	complain(cmd.ErrOrStderr(), cmd.CommandPath(), command, err)
	return exit.Status(status)
}

func complain(w io.Writer, who, command string, err error) {
	var named *exec.Error
	var path *fs.PathError
	switch { // both name the command as well
	case errors.As(err, &path):
		err = path.Err
	case errors.As(err, &named):
		err = named.Err
	}
	fmt.Fprintf(w, "%s: cannot run %s: %s\n", who, output.Word(command), output.OneLine(err.Error()))
}
