package operate

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// NewSessionCommand makes the command session.
func NewSessionCommand() *cobra.Command {
	data := server.Default().DataDir
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List and end the sessions of a running server",
		Long: `List the sessions of a running server, disconnect clients, and end sessions.

The commands reach the server through a socket in its data directory, which only
the directory's owner may use: also when the server takes no more connections. In a
cluster, the node that leads has the sessions; another one says which node that is.`,
		Example: `  holdfast session list
  holdfast session kick sensor-7
  holdfast session list --ids --away | holdfast session delete --stdin`,
		Args: cobra.ArbitraryArgs,
		RunE: flags.UnknownCommand,
	}
	cmd.PersistentFlags().StringVar(&data, "data", data, "`DIR` with the data of the running server")
	cmd.AddCommand(
		newSessionListCommand(&data),
		newSessionActionCommand(&data, server.Kick, "Disconnect clients", `Disconnect clients (reason code 0x98, Administrative action). Their sessions live
on for as long as their expiry says, and they may connect again.`, "not connected"),
		newSessionActionCommand(&data, server.Delete, "End sessions with all that they hold", `End sessions: their subscriptions and the messages waiting in them are gone for
good. A client that is connected is disconnected (reason code 0x98, Administrative
action). Wills are published.`, "no such session"),
	)
	return cmd
}

// sessionList is what `session list` shows, and how.
type sessionList struct {
	away, connected bool
	ids, null, json bool
	byPrincipal     bool
}

func newSessionListCommand(data *string) *cobra.Command {
	var l sessionList
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List sessions",
		Long: `List sessions, one per line, in the order of their client IDs:

  CLIENT STATE SINCE ADDRESS SUBSCRIPTIONS MESSAGES BYTES EXPIRY

STATE is connected or away, SINCE when that began, ADDRESS where the client is
connected from or -. MESSAGES and BYTES are what waits for the client, EXPIRY the
seconds that the session outlives its connection, or never. Client IDs with blanks
or unprintable characters are quoted.

With --by-principal, list those to which the sessions belong, the one that has most
of them first:

  PRINCIPAL SESSIONS CONNECTED SUBSCRIPTIONS MESSAGES BYTES

Sessions of clients that have not proven who they are count for the address that
the client is connected from, or for - while it is away.`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := bufio.NewWriter(cmd.OutOrStdout())
			var principals holders
			for s, err := range server.Sessions(cmd.Context(), *data) {
				if err != nil {
					_ = w.Flush() // the sessions that were read
					return leaderOf(cmd.Context(), *data, err)
				}
				if l.away && s.Connected || l.connected && !s.Connected {
					continue
				}
				if l.byPrincipal {
					principals.add(&s)
					continue
				}
				if err := l.print(w, &s); err != nil {
					return err
				}
			}
			for _, h := range principals.most() {
				if err := l.printHolder(w, h); err != nil {
					return err
				}
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	f.BoolVar(&l.away, "away", false, "only sessions whose client is away")
	f.BoolVar(&l.connected, "connected", false, "only sessions whose client is connected")
	f.BoolVar(&l.ids, "ids", false, "print client IDs only, as they are")
	f.BoolVarP(&l.null, "null", "0", false, "with --ids: end each with NUL instead of a line feed")
	f.BoolVar(&l.json, "json", false, "print an object per line")
	f.BoolVar(&l.byPrincipal, "by-principal", false, "add up what each principal has")
	cmd.MarkFlagsMutuallyExclusive("away", "connected")
	cmd.MarkFlagsMutuallyExclusive("ids", "json")
	cmd.MarkFlagsMutuallyExclusive("ids", "by-principal")
	return cmd
}

func (l *sessionList) print(w io.Writer, s *broker.SessionInfo) error {
	if l.json {
		return json.NewEncoder(w).Encode(s)
	}
	if l.ids {
		return output.Line(w, s.ClientID, l.null)
	}
	state, address, expiry := "away", "-", strconv.FormatInt(s.Expiry, 10)
	if s.Connected {
		state, address = "connected", s.Address
	}
	if s.Expiry < 0 {
		expiry = "never"
	}
	_, err := fmt.Fprintf(w, "%-24s %-9s %s %-21s %5d %7d %10d %10s\n", output.Word(s.ClientID), state,
		s.Since.UTC().Format(time.RFC3339), address, s.Subscriptions, s.Queued, s.QueuedBytes, expiry)
	return err
}

func newSessionActionCommand(data *string, action server.SessionAction, short, long, missing string) *cobra.Command {
	var stdin, null bool
	cmd := &cobra.Command{
		Use:   string(action) + " [flags] CLIENT...",
		Short: short,
		Long: long + `

Exit status: 0 done, 1 done but for client IDs that were ` + missing + `, 2 error.`,
		Example: "  holdfast session " + string(action) + " sensor-7 sensor-8",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case stdin && len(args) > 0:
				return errors.New("--stdin and CLIENT exclude each other")
			case !stdin && len(args) == 0:
				return fmt.Errorf("no client is given; usage: %s", cmd.UseLine())
			}
			ids, readError := slices.Values(args), error(nil)
			if stdin {
				ids = input.UntilError(input.NonEmptyLines(cmd.InOrStdin(), null), &readError)
			}
			first, count := "", 0
			for acted, err := range server.ActOnSessions(cmd.Context(), *data, action, ids) {
				if err != nil {
					return leaderOf(cmd.Context(), *data, err)
				}
				if !acted.Found {
					if count++; count == 1 {
						first = acted.ClientID
					}
				}
			}
			switch {
			case readError != nil:
				return readError
			case count == 1:
				return exit.Negative(missing + ": " + strconv.Quote(first))
			case count > 1:
				return exit.Negative(fmt.Sprintf("%s: %q and %d more", missing, first, count-1))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&stdin, "stdin", false, "read the client IDs from standard input, one per line")
	cmd.Flags().BoolVarP(&null, "null", "0", false, "with --stdin: they end with NUL instead of a line feed")
	return cmd
}
