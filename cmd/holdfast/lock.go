package main

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
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/client/lease"
)

// Exit statuses of a command that could not be run, as shells have them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// commandStatus is the exit status of the command that was run, if not 0. It is
// passed through, and nothing is added to what the command has printed.
type commandStatus int

func (s commandStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// lockFlags are what may be said about a lock.
type lockFlags struct {
	ttl    time.Duration
	wait   time.Duration // negative: as long as it takes
	grace  time.Duration
	holder string
}

func newLockCommand(c *connection) *cobra.Command {
	var f lockFlags
	cmd := c.command(&cobra.Command{
		Use:   "lock [flags] NAME -- COMMAND [ARGUMENT]...",
		Short: "Run a command while holding a lock",
		Long: `Wait for a lock, run a command while holding it, and release it.

The command finds the lock's name and its fencing token in its environment:
HOLDFAST_LOCK_NAME and HOLDFAST_LOCK_TOKEN. Writes with that token are refused
once a later holder has written:

  holdfast set --fencing-token "$HOLDFAST_LOCK_TOKEN" KEY VALUE

If the lock is lost, because the server can't be reached for nearly --ttl or
somebody deletes its key, the command gets SIGTERM, and SIGKILL when --grace is
over: before anybody else can have the lock, unless its key was deleted. Other
signals are forwarded to the command. It runs in a process group of its own, all
of which is signalled, except when started from a terminal: there the keyboard's
signals reach it anyway, and the others go to the command alone.

Exit status: that of the command, 128 and the signal's number if a signal ended
it; 1 if the lock was not to be had within --wait; 2 on error, and whenever the
lock was lost while the command ran; 126 or 127 if it can't be executed or found.`,
		Example: `  holdfast lock backup -- ./backup.sh
  holdfast lock --wait 0 backup -- ./backup.sh || echo "somebody else does it"
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
	flags.DurationVar(&f.ttl, "ttl", lease.DefaultTTL, "how long the lock outlives a holder that has died")
	flags.DurationVarP(&f.wait, "wait", "w", -1, "how long to wait for the lock; 0: not at all (default: as long as it takes)")
	flags.DurationVar(&f.grace, "grace", 0, "time between SIGTERM and SIGKILL when the lock is lost (default 5s, at most a quarter of --ttl)")
	flags.StringVar(&f.holder, "holder", "", "who holds it, as others see it; the same `text` again is the same holder, who takes the lock over (default: one of a kind)")
	flags.Lookup("wait").DefValue = ""
	return cmd
}

// lockOperands splits NAME -- COMMAND.
func lockOperands(cmd *cobra.Command, args []string) (name string, command []string, err error) {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) > 1:
		return "", nil, fmt.Errorf("put -- before the command; usage: %s", cmd.UseLine())
	case dash > 1:
		return "", nil, fmt.Errorf("what is %q for? usage: %s", args[1], cmd.UseLine())
	case dash == 0 || len(args) == 0:
		return "", nil, fmt.Errorf("which lock? usage: %s", cmd.UseLine())
	case len(args) == 1:
		return "", nil, fmt.Errorf("which command? usage: %s", cmd.UseLine())
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
		return fmt.Errorf("--grace %v: it must be from 0 to 0.45 of --ttl %v, or the lock could be somebody else's before the command is ended", f.grace, f.ttl)
	}
	return nil
}

// margin is how long before the lock can end it counts as lost: the command must
// be gone by then.
func (f *lockFlags) margin() time.Duration { return f.grace + f.ttl/20 }

func lock(cmd *cobra.Command, c *connection, name string, command []string, f *lockFlags) error {
	if _, err := exec.LookPath(command[0]); err != nil {
		return notStarted(cmd, command[0], err)
	}
	var level slog.LevelVar
	level.Set(slog.LevelError) // a failure to connect is told by dial's error
	if c.verbose {
		level.Set(slog.LevelInfo)
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: &level}))
	cl, err := c.dial(cmd, client.WithLogger(log))
	if err != nil {
		return err
	}
	defer cl.Close()
	if !c.verbose {
		// A command can run for days: a connection that is lost, and a server
		// that stays away, are told from now on.
		level.Set(slog.LevelWarn)
	}
	held, err := f.acquire(cmd, c, cl, name)
	if err != nil {
		return err
	}
	if c.verbose {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: holding %q with token %v\n", cmd.CommandPath(), name, held.Token())
	}
	err = runHolding(cmd, held, command, f.grace)
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	switch released := held.Release(ctx); {
	case errors.Is(released, lease.ErrLost):
		return fmt.Errorf("the lock was lost while the command ran: %w", released)
	case released != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: not released, it ends within %v: %s\n", cmd.CommandPath(), f.ttl, oneLine(explain(released).Error()))
	}
	return err
}

// acquire waits for the lock as long as it may.
func (f *lockFlags) acquire(cmd *cobra.Command, c *connection, cl *client.Client, name string) (*lease.Lease, error) {
	opts := []lease.Option{lease.WithTTL(f.ttl), lease.WithMargin(f.margin()), lease.WithHolder(f.holder)}
	if f.holder == "" {
		opts[2] = lease.WithHolder(holderOfItsKind())
	}
	k, err := lease.NewLock(cl, name, opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.bounded(cmd)
	defer cancel()
	held, err := k.TryLock(ctx)
	if !errors.Is(err, lease.ErrTaken) {
		return held, explain(err)
	}
	if f.wait == 0 {
		return nil, negative(heldBy(ctx, cl, name))
	}
	if c.verbose {
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
		ctx, cancel := c.bounded(cmd)
		defer cancel()
		return nil, negative(fmt.Sprintf("not acquired within %v: %s", f.wait, heldBy(ctx, cl, name)))
	}
	return nil, explain(err)
}

func heldBy(ctx context.Context, cl *client.Client, name string) string {
	holder, held, err := lease.Holder(ctx, cl, name)
	if err != nil || !held {
		return word(name) + " was held by somebody else"
	}
	return word(name) + " is held by " + word(holder)
}

// holderOfItsKind tells people which process holds the lock.
func holderOfItsKind() string {
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
	inherited := inForeground() // of a terminal, whose signals reach the command without us
	signal.Notify(signals, forwardedSignals(inherited)...)
	defer signal.Stop(signals)
	if inherited { // they are for the command; ignoring them would make it ignore them, too
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
				killAll(child, !inherited) // what the command has left of its group
			}
			return statusOf(err)
		case s := <-signals:
			forward(child, s, !inherited)
		case <-lost:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: ending the command: %s\n", cmd.CommandPath(), oneLine(held.Err().Error()))
			lost, tooLong = nil, time.After(grace)
			terminate(child, !inherited)
		case <-tooLong:
			killAll(child, !inherited)
		}
	}
}

// statusOf is nil for a command that ended well.
func statusOf(err error) error {
	var exit *exec.ExitError
	if err == nil || !errors.As(err, &exit) {
		return err
	}
	return commandStatus(exitStatusOf(exit.ProcessState))
}

// notStarted says why there is no command to run.
func notStarted(cmd *cobra.Command, command string, err error) error {
	status := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		status = exitNotFound
	}
	complain(cmd.ErrOrStderr(), cmd.CommandPath(), command, err)
	return commandStatus(status)
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
	fmt.Fprintf(w, "%s: cannot run %s: %s\n", who, word(command), oneLine(err.Error()))
}
