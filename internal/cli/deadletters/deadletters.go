// Package deadletters has the command dead-letters, by which an operator sees the messages
// that processors of package consistent could not process, has them processed again, or
// drops them.
package deadletters

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// NewCommand makes the command dead-letters.
func NewCommand(c *connect.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead-letters",
		Short: "List, show, replay and drop messages that could not be processed",
		Long: `List, show, replay and drop dead letters: messages that a processor of the Go
package consistent could not process. They are kept in the store, under
dead-letters/PROCESSOR/ID, until they expire (30 days, unless the processor says
otherwise).

A letter is named by PROCESSOR/ID, as list prints it.`,
		Args: cobra.ArbitraryArgs,
		RunE: flags.UnknownCommand,
	}
	cmd.AddCommand(newListCommand(c), newShowCommand(c), newReplayCommand(c), newDropCommand(c))
	return cmd
}

func newListCommand(c *connect.Flags) *cobra.Command {
	var out output.Format
	cmd := c.Command(&cobra.Command{
		Use:   "list [flags] [PROCESSOR]",
		Short: "List dead letters",
		Long: `List the dead letters of a processor, of all without one: a line for each, with its
name, time, code, topic and reason. Exit status: 0 also if there are none, 2 error.`,
		Example: `  holdfast dead-letters list
  holdfast dead-letters list --output json bank`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.Check(); err != nil {
				return err
			}
			cl, err := c.Dial(cmd)
			if err != nil {
				return err
			}
			defer cl.Close()
			w := cmd.OutOrStdout()
			return each(deadletter.List(cmd.Context(), cl, strings.Join(args, "")), func(l *deadletter.Letter) error {
				if out.JSON() {
					return writeJSON(w, l)
				}
				return output.Line(w, fmt.Sprintf("%s/%s %s %s %s %s", l.Processor, l.ID, l.Time.Format(time.RFC3339), l.Code,
					output.Word(l.Message.Topic), output.OneLine(l.Reason)), false)
			})
		},
	})
	out.AddFlag(cmd)
	return cmd
}

func newShowCommand(c *connect.Flags) *cobra.Command {
	var payload bool
	cmd := c.Command(&cobra.Command{
		Use:   "show [flags] PROCESSOR/ID",
		Short: "Show a dead letter",
		Long: `Show a dead letter as a JSON object, or with --payload the message's payload, byte
for byte. Exit status: 0 shown, 1 there is no such letter, 2 error.`,
		Example: `  holdfast dead-letters show bank/0123456789abcdef0123456789abcdef`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			processor, id, err := name(args[0])
			if err != nil {
				return err
			}
			cl, err := c.Dial(cmd)
			if err != nil {
				return err
			}
			defer cl.Close()
			ctx, cancel := c.Bounded(cmd)
			defer cancel()
			l, err := deadletter.Get(ctx, cl, processor, id)
			if err != nil {
				return explain(err)
			}
			if payload {
				_, err := cmd.OutOrStdout().Write(l.Message.Payload)
				return err
			}
			return writeJSON(cmd.OutOrStdout(), &l)
		},
	})
	cmd.Flags().BoolVar(&payload, "payload", false, "print the payload of the message, and nothing else")
	return cmd
}

func newReplayCommand(c *connect.Flags) *cobra.Command {
	var all string
	cmd := c.Command(&cobra.Command{
		Use:   "replay [flags] PROCESSOR/ID...",
		Short: "Publish the messages of dead letters again, and drop the letters",
		Long: `Publish the messages of dead letters to the topics by which they came, at QoS 1,
and drop the letters. A message keeps its identity, so handlers that have
processed it take it for a duplicate; other subscribers get it again.

Exit status: 0 all are published, 1 there is no such letter, 2 error. After the
first that can't be published the others stay.`,
		Example: `  holdfast dead-letters replay bank/0123456789abcdef0123456789abcdef
  holdfast dead-letters replay --all bank`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return forEach(cmd, c, all, args, "published", func(cl *client.Client, l *deadletter.Letter, s func() (*client.Session, error)) error {
				session, err := s()
				if err != nil {
					return err
				}
				ctx, cancel := c.Bounded(cmd)
				defer cancel()
				return explain(deadletter.Replay(ctx, cl, session, l))
			})
		},
	})
	cmd.Flags().StringVar(&all, "all", "", "all letters of this `processor`")
	return cmd
}

func newDropCommand(c *connect.Flags) *cobra.Command {
	var all string
	cmd := c.Command(&cobra.Command{
		Use:   "drop [flags] PROCESSOR/ID...",
		Short: "Delete dead letters",
		Long: `Delete dead letters, and with them the messages. Exit status: 0 all are deleted,
1 there is no such letter, 2 error.`,
		Example: `  holdfast dead-letters drop bank/0123456789abcdef0123456789abcdef
  holdfast dead-letters drop --all bank`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return forEach(cmd, c, all, args, "dropped", func(cl *client.Client, l *deadletter.Letter, _ func() (*client.Session, error)) error {
				ctx, cancel := c.Bounded(cmd)
				defer cancel()
				return explain(deadletter.Drop(ctx, cl, l))
			})
		},
	})
	cmd.Flags().StringVar(&all, "all", "", "all letters of this `processor`")
	return cmd
}

// forEach does something with the letters that are named, or with all of a processor.
func forEach(cmd *cobra.Command, c *connect.Flags, all string, args []string, done string,
	do func(*client.Client, *deadletter.Letter, func() (*client.Session, error)) error) error {
	byFlag := cmd.Flags().Changed("all")
	switch {
	case byFlag && len(args) > 0:
		return fmt.Errorf("unexpected argument %q: --all names the processor whose letters are meant", args[0])
	case byFlag && all == "":
		return errors.New("--all: give the name of a processor")
	case !byFlag && len(args) == 0:
		return fmt.Errorf("no dead letter is given: give PROCESSOR/ID or --all PROCESSOR; usage: %s", cmd.UseLine())
	}
	for _, arg := range args {
		if _, _, err := name(arg); err != nil {
			return err
		}
	}
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	var session *client.Session
	dial := func() (*client.Session, error) {
		if session == nil {
			session, err = c.DialSession(cmd, client.WithClientID(cl.ClientID()+"-replay"), client.WithSessionExpiry(time.Second))
		}
		return session, err
	}
	defer func() {
		if session != nil {
			_ = session.Close()
		}
	}()
	n := 0
	err = each(letters(cmd, c, cl, all, args), func(l *deadletter.Letter) error {
		if err := do(cl, l, dial); err != nil {
			return fmt.Errorf("%s/%s: %w", l.Processor, l.ID, err)
		}
		n++
		return nil
	})
	if output.IsTerminal(cmd.OutOrStdout()) {
		fmt.Fprintln(cmd.OutOrStdout(), output.Counted(int64(n), "dead letter"), done)
	}
	return err
}

// letters gives those that are named, or all of a processor.
func letters(cmd *cobra.Command, c *connect.Flags, cl *client.Client, all string, args []string) iter.Seq2[deadletter.Letter, error] {
	if all != "" {
		return deadletter.List(cmd.Context(), cl, all)
	}
	return func(yield func(deadletter.Letter, error) bool) {
		for _, arg := range args {
			processor, id, _ := name(arg)
			ctx, cancel := c.Bounded(cmd)
			l, err := deadletter.Get(ctx, cl, processor, id)
			cancel()
			if !yield(l, err) {
				return
			}
		}
	}
}

// each calls do for each letter, up to the first error.
func each(all iter.Seq2[deadletter.Letter, error], do func(*deadletter.Letter) error) error {
	for l, err := range all {
		if err != nil {
			return explain(err)
		}
		if err := do(&l); err != nil {
			return err
		}
	}
	return nil
}

// name takes PROCESSOR/ID apart; a processor's name may have a namespace before it.
func name(arg string) (processor, id string, err error) {
	i := strings.LastIndexByte(arg, '/')
	if i <= 0 || i == len(arg)-1 {
		return "", "", fmt.Errorf("%q is not the name of a dead letter: want PROCESSOR/ID, as dead-letters list prints it", arg)
	}
	return arg[:i], arg[i+1:], nil
}

// explain makes a no of a letter that is not there.
func explain(err error) error {
	if errors.Is(err, deadletter.ErrNotFound) {
		return exit.Negative(err.Error())
	}
	return connect.Explain(err)
}

// record is a letter for people and programs.
type record struct {
	Name            string          `json:"name"`
	Code            deadletter.Code `json:"code"`
	Reason          string          `json:"reason"`
	Handler         string          `json:"handler"`
	Key             string          `json:"key,omitempty"`
	MessageID       string          `json:"message_id,omitempty"`
	Time            time.Time       `json:"time"`
	Topic           string          `json:"topic"`
	Payload         *string         `json:"payload,omitempty"`
	PayloadBase64   []byte          `json:"payload_base64,omitempty"`
	OmittedBytes    int             `json:"omitted_bytes,omitempty"`
	ContentType     string          `json:"content_type,omitempty"`
	ResponseTopic   string          `json:"response_topic,omitempty"`
	CorrelationData []byte          `json:"correlation_data_base64,omitempty"`
	UserProperties  [][2]string     `json:"user_properties,omitempty"`
}

func writeJSON(w io.Writer, l *deadletter.Letter) error {
	m := &l.Message
	r := record{Name: l.Processor + "/" + l.ID, Code: l.Code, Reason: l.Reason, Handler: l.Handler, Key: l.Key, MessageID: l.MessageID, Time: l.Time,
		Topic: m.Topic, OmittedBytes: l.Omitted, ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData}
	switch text := string(m.Payload); {
	case l.Omitted > 0:
	case utf8.ValidString(text):
		r.Payload = &text
	default:
		r.PayloadBase64 = m.Payload
	}
	for _, u := range m.UserProperties {
		r.UserProperties = append(r.UserProperties, [2]string{u.Name, u.Value})
	}
	return json.NewEncoder(w).Encode(&r)
}
