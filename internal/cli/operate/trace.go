package operate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
	"github.com/holdfast-mqtt/holdfast/internal/trace/stream"
)

// NewTraceCommand makes the command trace.
func NewTraceCommand() *cobra.Command {
	data := server.Default().DataDir
	q := stream.Request{For: time.Minute}
	cmd := &cobra.Command{
		Use:   "trace (--client ID | --key PATTERN)",
		Short: "Show the packets of a client, or the commands on keys, as they come",
		Long: `Show the packets between a running server and one client, or the commands on the
keys that match a pattern, a line each, as they come:

  TIME CLIENT in|out PACKET what stands in it
  TIME CLIENT COMMAND KEY OUTCOME version=VERSION

The pattern is one of "holdfast scan --binary". With --key and --client only
commands of that client are shown. OUTCOME is ok, missed (no such key, or a
condition was not met), quota, denied or error. An operation of a transaction has a
line, a SCAN has none, and neither has a key that expires.

A line never has a password, authentication data or the value of a user property.
Of a payload it has the length, and the first bytes if --payload says how many.

The trace ends by itself (--for), when the command is interrupted, or with the
server. It never slows a client: lines beyond --rate in a second, or that are not
taken from this command in time, are counted and not shown. Up to ` + strconv.Itoa(trace.MaxTraces) + ` traces run at
once. The command reaches the server through a socket in its data directory; of a
cluster it is the directory of the node that leads.

Exit status: 0 something was shown, 1 there was nothing to show, 2 error.`,
		Example: `  holdfast trace --client sensor-7
  holdfast trace --key 'plant/7/*' --for 10m --payload 40`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Client == "" && q.Key == "" {
				return errors.New("nothing is named to trace: want --client ID or --key PATTERN")
			}
			return runTrace(cmd, data, q)
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", data, "`DIR` with the data of the running server")
	f.StringVar(&q.Client, "client", "", "the client with this `ID`")
	f.StringVar(&q.Key, "key", "", "commands on the keys that match the `PATTERN`")
	f.DurationVar(&q.For, "for", q.For, "end after this `TIME`")
	f.IntVar(&q.Rate, "rate", 1000, "`LINES` that are shown in a second at most")
	f.IntVar(&q.Payload, "payload", 0, "show the first `BYTES` of payloads and values")
	flags.Limit(f, map[string]flags.Span{
		"for": flags.Between(int64(time.Millisecond), int64(trace.MaxFor)), "rate": flags.Between(1, trace.MaxRate), "payload": flags.Between(0, trace.MaxPayload),
	})
	return cmd
}

func runTrace(cmd *cobra.Command, data string, q stream.Request) error {
	var seen, shown, dropped int64
	say := func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "holdfast trace: "+format+"\n", args...)
	}
	err := server.Trace(cmd.Context(), data, q, func(line stream.Line) error {
		switch {
		case line.Begun && line.Away:
			say("the client %q is not connected; the trace waits for it", q.Client)
		case line.Begun:
			say("tracing for %v", q.For)
		}
		if line.Dropped > dropped {
			say("%s not shown, because there were too many at once", output.Counted(line.Dropped-dropped, "line"))
			dropped = line.Dropped
		}
		seen = max(seen, line.Seen)
		if line.Line == "" {
			return nil
		}
		shown++
		_, err := fmt.Fprintln(cmd.OutOrStdout(), line.Line)
		return err
	})
	switch {
	case errors.Is(err, server.ErrNotRunning):
		return leaderOf(cmd.Context(), data, err)
	case err != nil && !errors.Is(err, context.Canceled):
		return err
	case shown == 0 && seen == 0 && q.Key != "":
		return exit.Negative("there was no command on a key that matches " + strconv.Quote(q.Key))
	case shown == 0 && seen == 0:
		return exit.Negative("there was no packet of the client " + strconv.Quote(q.Client))
	}
	return nil
}
