// Package bench has the command bench: load on the state store, or on topics, of any MQTT 5
// broker, and how long requests and messages take. It is a client like others; what is
// measured is at both ends of its connections.
package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
)

// Bounds of what a run holds: a connection and its operations under way.
const (
	maxClients   = 10_000
	maxInflight  = 10_000
	maxUnderWay  = 1_000_000 // clients times inflight
	maxSizeBytes = 1 << 20
	maxKeys      = 1_000_000
	maxDuration  = 24 * time.Hour
)

// load is what a command line asks for.
type load struct {
	c        *connect.Flags
	kind     string
	clients  int
	inflight int
	duration time.Duration
	size     int
	keys     int
	qos      int
	json     bool
}

// NewCommand makes the command bench.
func NewCommand(c *connect.Flags) *cobra.Command {
	l := load{c: c, kind: "set"}
	cmd := c.Command(&cobra.Command{
		Use:   "bench [flags] [set | get | pub]",
		Short: "Measure how much a server does, and how long it takes",
		Long: `Put load on a server, and print how many requests or messages it did a second, and
how long they took: half of them (p50) up to so long, 90, 99 and 99.9 of 100, and
the slowest. The server is any MQTT 5 broker; for set and get one with a state store.

  set   clients write keys of the state store (the default)
  get   clients read keys that bench has written before
  pub   each client publishes to a topic of its own, and receives it over another
        connection: until the publish is acknowledged (from QoS 1 on), and until it
        is received

Each client keeps --inflight requests or messages under way, so times contain the
wait behind the others: with --clients 1 --inflight 1 they are those of an idle
server. Keys and topics begin with bench/ and a random name; keys expire.

Exit status: 0 done, 2 error. A request that fails, or a message that is not
received within --timeout, ends the run.`,
		Example: `  holdfast bench
  holdfast bench get --clients 50 --inflight 1 --for 30s
  holdfast bench pub --qos 1 --size 1000 --hostname broker.example.com --json`,
		Args:      flags.AtMost(1),
		ValidArgs: []string{"set", "get", "pub"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				l.kind = args[0]
			}
			return l.run(cmd)
		},
	})
	cmd.ValidArgsFunction = cobra.FixedCompletions([]string{"set", "get", "pub"}, cobra.ShellCompDirectiveNoFileComp)
	f := cmd.Flags()
	f.IntVar(&l.clients, "clients", 10, "connections that make requests or publish; pub has as many that receive")
	f.IntVar(&l.inflight, "inflight", 10, "requests or messages that each of them has under way")
	f.DurationVar(&l.duration, "for", 10*time.Second, "`TIME` that the load lasts")
	f.IntVar(&l.size, "size", 100, "bytes of a value or a message")
	f.IntVar(&l.keys, "keys", 1000, "keys that set and get use in turn")
	f.IntVar(&l.qos, "qos", 1, "quality of service of pub and of its receivers: 0, 1 or 2")
	f.BoolVar(&l.json, "json", false, "print the result as a JSON object")
	flags.Limit(f, map[string]flags.Span{
		"clients": flags.Between(1, maxClients), "inflight": flags.Between(1, maxInflight), "for": flags.Between(int64(time.Millisecond), int64(maxDuration)),
		"size": flags.Between(stampBytes, maxSizeBytes), "keys": flags.Between(1, maxKeys), "qos": flags.Between(0, 2),
	})
	return cmd
}

// workload is one kind of load.
type workload interface {
	// connect opens all connections, and prepares what the load needs.
	connect(ctx context.Context) error
	// run puts the load on until until ends, and returns when nothing is under way. Each
	// client makes one request at least. An error, or the end of ctx, ends it early.
	run(ctx, until context.Context) error
	// measured are the figures, of which the first counts for the progress.
	measured() []*timings
	close()
}

func (l *load) run(cmd *cobra.Command) error {
	if l.clients*l.inflight > maxUnderWay {
		return fmt.Errorf("--clients %d with --inflight %d: want at most %d requests under way", l.clients, l.inflight, maxUnderWay)
	}
	if err := l.c.Prepare(cmd); err != nil { // before each connection has a copy of the flags
		return err
	}
	if l.c.ClientID != "" {
		return errors.New(l.c.Name("clientid") + ": bench has several connections, and chooses a client ID for each")
	}
	var w workload
	switch l.kind {
	case "set", "get":
		w = newStoreLoad(cmd, l)
	case "pub":
		w = newTopicLoad(l)
	default:
		return fmt.Errorf("unknown load %q: want set, get or pub", l.kind)
	}
	defer w.close()
	if err := w.connect(cmd.Context()); err != nil {
		return err
	}
	until, cancel := context.WithTimeout(cmd.Context(), l.duration)
	defer cancel()
	began := time.Now()
	progress := startProgress(cmd.ErrOrStderr(), l.kind, w.measured()[0], l.duration)
	err := w.run(cmd.Context(), until)
	took := time.Since(began)
	progress.end()
	switch {
	case err != nil:
		return err
	case cmd.Context().Err() != nil:
		return errors.New("interrupted")
	}
	return l.report(cmd.OutOrStdout(), w.measured(), took)
}

// each runs f for every client, a few at a time, and returns the first error.
func (l *load) each(atOnce int, f func(i int) error) error {
	var group sync.WaitGroup
	turns, failed := make(chan struct{}, atOnce), make(chan error, 1)
	for i := range l.clients {
		turns <- struct{}{}
		if len(failed) > 0 {
			break
		}
		group.Go(func() {
			defer func() { <-turns }()
			if err := f(i); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// connectsAtOnce is how many connections are opened at a time, as servers bound handshakes.
const connectsAtOnce = 20
