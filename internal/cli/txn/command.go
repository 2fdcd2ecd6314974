package txn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// NewCommand makes the command txn.
func NewCommand(c *connect.Flags) *cobra.Command {
	var out output.Format
	var retry bool
	cmd := c.Command(&cobra.Command{
		Use:   "txn [flags] FILE|-",
		Short: "Change several keys and publish messages in one step, all or nothing",
		Long: `Change several keys and publish messages in one step, all or nothing. The
transaction is a JSON object in FILE, or on standard input with -:

  {
    "if":   [ {"key": "a", "version": "1700000000000:1:StateStore"},
              {"key": "b", "exists": false} ],
    "once": {"key": "jobs", "message_id": "job-7", "keep": "24h"},
    "then": [ {"set": "b", "value": "new", "px": "30s"},
              {"del": "a"} ],
    "publish": [ {"topic": "jobs/done", "payload": "job-7", "qos": 1} ],
    "done": [ {"key": "jobs", "message_id": "job-6"} ],
    "cancel": [ "job-7/timeout" ]
  }

All parts may be left out. A condition has one of "exists" (true or false),
"value", "version" ("-": there is no such key) and "made_by" (the ID of the
message that made the key's version). With "once" the server does it once, and
answers a repetition "already done". It may be a list: then nothing is done if one
of the messages was done before. A message may have a "context", which LOAD gives
back, or a "digest": a repetition with another digest is an error. With "open": true
it is remembered as STORE does, until "done" names it, perhaps with its "version"
and a "context". A write may have
a "fencing_token". A message
may have "retain", "expiry", "utf8", "content_type", "response_topic",
"correlation_data" and "user", a list of pairs of name and value; with the pair
"holdfast-deliver-after" and milliseconds it is delivered later. "cancel" has the
IDs of such messages that are not to be delivered any more. Names and values that
are not UTF-8 come in base 64 in fields that end with _base64.

It prints nothing, except what came of it on a terminal, the version that each
write has made with -v, which timers were cancelled and which messages that are
done were remembered, and an object with --output json. Exit status: 0 done, now
or before; 1 a condition was not met; 2 error.`,
		Example: `  holdfast txn transfer.json
  echo '{"if":[{"key":"k","value":"old"}],"then":[{"set":"k","value":"new"}]}' | holdfast txn -`,
		Args: flags.Args("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd, c, args[0], retry, &out)
		},
	})
	cmd.Flags().BoolVar(&retry, "retry", false, "send it again when the connection breaks before the answer: safe with \"once\"")
	out.AddFlag(cmd)
	return cmd
}

func run(cmd *cobra.Command, c *connect.Flags, file string, retry bool, out *output.Format) error {
	if err := out.Check(); err != nil {
		return err
	}
	data, err := input.File("FILE", file, cmd.InOrStdin())
	if err != nil {
		return err
	}
	doc, err := parse(data)
	if err != nil {
		return err
	}
	if err := doc.build(txn.New(nil)); err != nil { // before a server is asked
		return err
	}
	cl, err := c.Dial(cmd)
	if err != nil {
		return err
	}
	defer cl.Close()
	t := cl.Txn()
	if err := doc.build(t); err != nil {
		return err
	}
	ctx, cancel := c.Bounded(cmd)
	defer cancel()
	if retry {
		t.Retry()
	}
	result, err := t.Commit(ctx)
	if err != nil {
		var refused *txn.OperationError
		if errors.As(err, &refused) {
			return fmt.Errorf("%s: %w", doc.place(refused.Number-1), connect.Explain(err))
		}
		return connect.Explain(err)
	}
	if out.JSON() {
		err = newRecord(&result).write(cmd.OutOrStdout())
	} else {
		err = say(cmd.OutOrStdout(), &result, c.Verbose)
	}
	if err == nil && result.Outcome == txn.ConditionFailed {
		return unmet(&result.Failed)
	}
	return err
}

// unmet says which condition was not met.
func unmet(f *txn.Failed) error {
	is := "there is no such key"
	if f.Found {
		is = "the key has version " + f.Version.String()
	}
	return exit.Negative(fmt.Sprintf("condition %d is not met: %s: %s", f.Index+1, protocol.Quote(f.Key), is))
}

// say prints what came of a transaction that was done: with -v the versions, and otherwise
// the outcome on a terminal.
func say(w io.Writer, r *txn.Result, verbose bool) error {
	lines := []string{r.Outcome.String()}
	switch {
	case r.Outcome == txn.ConditionFailed:
		return nil
	case verbose && r.Outcome == txn.AlreadyDone:
		lines = append(lines, r.Version.String())
	case verbose:
		for _, v := range r.Versions {
			if v.IsZero() {
				lines = append(lines, "-")
			} else {
				lines = append(lines, v.String())
			}
		}
		for _, was := range r.Cancelled {
			if was {
				lines = append(lines, "cancelled")
			} else {
				lines = append(lines, "no such timer")
			}
		}
		for _, was := range r.Done {
			if was {
				lines = append(lines, "confirmed")
			} else {
				lines = append(lines, "no such message")
			}
		}
	case !output.IsTerminal(w):
		return nil
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// record is the outcome as one JSON object.
type record struct {
	Outcome  string    `json:"outcome"`
	Versions []*string `json:"versions,omitempty"` // one for each write; null: nothing was deleted
	Version  string    `json:"version,omitempty"`
	Failed   *failed   `json:"failed,omitempty"`

	Once int    `json:"once,omitempty"` // of one that was already done: which message, from 1
	Keep string `json:"keep,omitempty"` // for how long messages are remembered, if not as asked

	Cancelled []bool `json:"cancelled,omitempty"` // one for each timer: there was such
	Done      []bool `json:"done,omitempty"`      // one for each message that is done: it is remembered
}

type failed struct {
	Condition   int     `json:"condition"` // from 1
	Key         *string `json:"key,omitempty"`
	KeyBase64   []byte  `json:"key_base64,omitempty"`
	Found       bool    `json:"found"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
	Version     string  `json:"version,omitempty"`
}

func newRecord(r *txn.Result) *record {
	rec := &record{Outcome: strings.ReplaceAll(r.Outcome.String(), " ", "_"), Cancelled: r.Cancelled, Done: r.Done}
	if !r.Version.IsZero() {
		rec.Version = r.Version.String()
	}
	for _, v := range r.Versions {
		var version *string
		if !v.IsZero() {
			version = new(v.String())
		}
		rec.Versions = append(rec.Versions, version)
	}
	if r.Outcome == txn.AlreadyDone {
		rec.Once = r.Once + 1
	}
	if r.Keep != 0 {
		rec.Keep = r.Keep.String()
	}
	if r.Outcome != txn.ConditionFailed {
		return rec
	}
	f := &failed{Condition: r.Failed.Index + 1, Found: r.Failed.Found}
	f.Key, f.KeyBase64 = plainOrBase64([]byte(r.Failed.Key))
	if f.Found {
		f.Version = r.Failed.Version.String()
	}
	if r.Failed.Value != nil {
		f.Value, f.ValueBase64 = plainOrBase64(r.Failed.Value)
	}
	rec.Failed = f
	return rec
}

func plainOrBase64(b []byte) (plain *string, base64 []byte) {
	if utf8.Valid(b) {
		return new(string(b)), nil
	}
	return nil, b
}

func (r *record) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
