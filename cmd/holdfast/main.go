// Command holdfast is an MQTT 5 broker with a durable state store inside, and
// the tools to use the store from a shell. Package internal/cli/root puts the
// subcommands together; this one makes exit statuses of their errors.
//
// The tools follow a script's needs: the result on standard output and nothing
// else there, one line per error on standard error, and an exit status of 0
// (done), 1 (not found, or a condition was not met) or 2 (error).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/root"
)

// release is set when a release is built: -ldflags "-X main.release=v1.2.3".
var release string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit status.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	cmdLine := root.New(release)
	cmdLine.SetArgs(args)
	cmdLine.SetIn(in)
	cmdLine.SetOut(out)
	cmdLine.SetErr(errOut)
	cmd, err := cmdLine.ExecuteContextC(ctx)
	if err == nil {
		return exit.Done
	}
	if status := exit.Status(0); errors.As(err, &status) {
		return int(status) // the command that was run has said why
	}
	fmt.Fprintf(errOut, "%s: %s\n", cmd.CommandPath(), output.OneLine(flags.Explain(cmd, err).Error()))
	var no exit.Negative
	if errors.As(err, &no) {
		return exit.No
	}
	return exit.Failed
}
