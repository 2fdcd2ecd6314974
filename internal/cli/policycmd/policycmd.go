// Package policycmd has the command policy, which looks at policy files, explains what
// they allow, and makes them of Mosquitto's. They need no server.
package policycmd

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
)

// NewCommand makes the command policy.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, explain and convert policy files",
		Long: `Work with policy files, which say what clients may do (serve --policy).
docs/policy.md has their format.`,
		Args: cobra.ArbitraryArgs,
		RunE: flags.UnknownCommand,
	}
	cmd.AddCommand(newCheckCommand(), newExplainCommand(), newImportCommand())
	return cmd
}

func newCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a policy file",
		Long: `Read a policy file as the server does, and print a line, FILE:LINE: TEXT, for
everything that is wrong with it, and for what is allowed but looks like a
mistake. Exit status: 0 if a server takes the file, 1 if not, 2 if it cannot be
read.`,
		Args: flags.Args("policy file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			p, err := policy.Read(args[0])
			var problems *policy.Problems
			switch {
			case errors.As(err, &problems):
				fmt.Fprintln(out, problems)
				return exit.Negative(output.Counted(int64(len(problems.List)), "problem"))
			case err != nil:
				return err
			}
			for _, w := range p.Warnings {
				fmt.Fprintln(out, "warning: "+w.In(args[0]))
			}
			fmt.Fprintf(out, "%s: %s, %s\n", args[0], output.Counted(int64(p.Rules()), "rule"), output.Counted(int64(p.Groups()), "group"))
			return nil
		},
	}
}

// question is what the flags of explain ask.
type question struct {
	file       string
	client     string
	username   string
	attributes []string
	topic, key string

	connect, publish, subscribe, read, write bool
	quotas                                   bool
}

func newExplainCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "explain [FILE] --client ID (--topic TOPIC | --key KEY | --connect | --quotas)",
		Short: "Say which rule decides",
		Long: `Say whether a policy file allows a client something, and which rule decides, or
which rules come near. Without --publish and --subscribe both are asked of a
topic, without --read and --write both of a key. --quotas prints a line for each
quota of the client's principal, and which group sets it, or what applies
otherwise. Exit status: 0 if all that is asked is allowed, 1 if not, 2 after an
error.`,
		Example: `  holdfast policy explain policy.yaml --client press-4 --topic plant/4/speed --publish
  holdfast policy explain policy.yaml --client x --username olga --attribute role=operator --key limits/4 --write`,
		Args: flags.AtMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && q.file != "" {
				return errors.New("the policy file is given twice; leave out --policy, or the argument")
			}
			if len(args) == 1 {
				q.file = args[0]
			}
			return q.explain(cmd)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&q.file, "policy", "", "policy `FILE`, if not given as the argument")
	f.StringVar(&q.client, "client", "", "client `ID` that the client connects with")
	f.StringVar(&q.username, "username", "", "user `NAME` that the client has proven (default none: it is anonymous)")
	f.StringArrayVar(&q.attributes, "attribute", nil, "attribute of its certificate, token or password entry, as `NAME=VALUE`; may be repeated")
	f.BoolVar(&q.connect, "connect", false, "ask whether it may connect")
	f.StringVar(&q.topic, "topic", "", "`TOPIC` to publish to, or topic filter to subscribe to")
	f.BoolVar(&q.publish, "publish", false, "ask whether it may publish to the topic")
	f.BoolVar(&q.subscribe, "subscribe", false, "ask whether it may subscribe to the topic filter")
	f.StringVar(&q.key, "key", "", "`KEY` of the state store")
	f.BoolVar(&q.read, "read", false, "ask whether it may read the key")
	f.BoolVar(&q.write, "write", false, "ask whether it may write the key")
	f.BoolVar(&q.quotas, "quotas", false, "ask what its principal may hold")
	return cmd
}

func (q *question) explain(cmd *cobra.Command) error {
	questions, err := q.questions(cmd)
	if err != nil {
		return err
	}
	id, err := q.identity()
	if err != nil {
		return err
	}
	p, err := policy.Read(q.file)
	if err != nil {
		return err
	}
	denied := 0
	for _, one := range questions {
		e := p.Explain(id, one)
		if !e.Allowed {
			denied++
		}
		for i, line := range e.Lines {
			if i > 0 {
				line = "  " + line
			}
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
	}
	if q.quotas {
		for _, line := range p.ExplainQuotas(id) {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
	}
	if denied > 0 {
		return exit.Negative("denied")
	}
	return nil
}

func (q *question) questions(cmd *cobra.Command) (list []policy.Question, err error) {
	f := cmd.Flags()
	topic, key := f.Changed("topic"), f.Changed("key")
	switch {
	case q.file == "":
		return nil, errors.New("no policy file given, as the argument or with --policy")
	case !topic && !key && !q.connect && !q.quotas:
		return nil, errors.New("nothing asked; give --topic, --key, --connect or --quotas")
	case (q.publish || q.subscribe) && !topic:
		return nil, errors.New("--publish and --subscribe need --topic")
	case (q.read || q.write) && !key:
		return nil, errors.New("--read and --write need --key")
	case q.client == "" && q.username == "" && len(q.attributes) == 0:
		return nil, errors.New("no client given; give --client, and --username and --attribute as the client has them")
	}
	ask := func(wanted bool, a policy.Action, name string) {
		if wanted {
			list = append(list, policy.Question{Action: a, Name: name})
		}
	}
	ask(q.connect, policy.ToConnect, "")
	ask(topic && (q.publish || !q.subscribe), policy.ToPublish, q.topic)
	ask(topic && (q.subscribe || !q.publish), policy.ToSubscribe, q.topic)
	ask(key && (q.read || !q.write), policy.ToRead, q.key)
	ask(key && (q.write || !q.read), policy.ToWrite, q.key)
	return list, nil
}

func (q *question) identity() (*access.Identity, error) {
	id := &access.Identity{ClientID: q.client, Username: q.username, Attributes: map[string]string{}}
	for _, a := range q.attributes {
		name, value, ok := strings.Cut(a, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--attribute %q: want NAME=VALUE", a)
		}
		id.Attributes[name] = value
	}
	return id, nil
}

func newImportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import-mosquitto FILE",
		Short: "Convert Mosquitto's access control list",
		Long: `Convert the access control list of Mosquitto (its setting acl_file) to a policy, on
standard output. What cannot be converted, such as deny lines, is named on
standard error, as FILE:LINE: TEXT. Exit status: 0 if all was converted, 1 if
not, 2 if the file cannot be read.`,
		Example: `  holdfast policy import-mosquitto /etc/mosquitto/acl > policy.yaml`,
		Args:    flags.Args("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			content, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			converted, problems := policy.ImportMosquitto(args[0], content)
			if _, err := cmd.OutOrStdout().Write(converted); err != nil {
				return err
			}
			for _, p := range problems {
				fmt.Fprintln(cmd.ErrOrStderr(), p.In(args[0]))
			}
			if len(problems) > 0 {
				return exit.Negative(output.Counted(int64(len(problems)), "line") + " not converted")
			}
			return nil
		},
	}
}
