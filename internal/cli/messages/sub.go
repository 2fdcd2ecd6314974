package messages

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/mqttconn"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// subscription is what a sub command line asks for.
type subscription struct {
	filters       []string
	qos           qosValue
	count         uint64
	wait          time.Duration
	noRetained    bool
	sessionExpiry time.Duration
	null          bool
	format        messageFormat
	out           output.Format
}

// NewSubCommand makes the command sub.
func NewSubCommand(c *connect.Flags) *cobra.Command {
	s := subscription{qos: 1}
	cmd := c.Command(&cobra.Command{
		Use:   "sub [flags] FILTER...",
		Short: "Print messages as they are published",
		Long: `Subscribe to topic filters, in which + stands for one level and # at the end for any
number, and print the payload of each message, byte for byte, with a line feed after
it. With -v the topic stands before it, with --output json a message is an object with
all that came with it; a payload that isn't UTF-8 comes as payload_base64.

--format prints what it says, with these replaced:

  %t topic           %p payload        %x payload in base 16  %l its length in bytes
  %q QoS             %r RETAIN (0, 1)  %I time of arrival     %U the same, Unix seconds
  %C content type    %R response topic %D correlation data    %E expiry in seconds
  %P user properties (NAME=VALUE, separated by blanks)        %% a percent sign
  \n \r \t \0 \\     as in C

The command goes on until it is interrupted, or --count messages have come (exit
status 0), or --wait is over (exit status 1 if --count has not been reached, else 0).
It reconnects by itself, and logs a lost connection to standard error, with -v also
that it has subscribed. Messages published while there is no connection are lost,
unless --session-expiry has the server keep them for --clientid.`,
		Example: `  holdfast sub 'plant/#'
  holdfast sub --count 1 --wait 10s plant/7/state
  holdfast sub --format '%t %p' 'plant/+/temperature'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			s.filters = append(s.filters, args...)
			if err := s.check(cmd, c); err != nil {
				return err
			}
			return s.run(cmd, c)
		},
	})
	f := cmd.Flags()
	f.StringArrayVarP(&s.filters, "topic", "t", nil, "a topic `filter`, like FILTER; may be given several times")
	s.qos.addFlag(cmd, "maximum quality of service: 0, 1 or 2")
	f.Uint64Var(&s.count, "count", 0, "end after this many messages (0: never)")
	f.DurationVarP(&s.wait, "wait", "W", 0, "end this long after the first subscription (0: never)")
	f.BoolVarP(&s.noRetained, "no-retained", "R", false, "without the messages that the server keeps for new subscribers")
	f.DurationVar(&s.sessionExpiry, "session-expiry", 0, "the server keeps the session of --clientid for this time, with messages that come meanwhile")
	f.BoolVarP(&s.null, "null", "0", false, "end each message with NUL instead of a line feed")
	f.VarP(&s.format, "format", "F", "print this for each message, see above")
	s.out.AddFlag(cmd)
	return cmd
}

func (s *subscription) check(cmd *cobra.Command, c *connect.Flags) error {
	if err := s.out.Check(); err != nil {
		return err
	}
	if len(s.filters) == 0 {
		return fmt.Errorf("no topic filter is given; usage: %s", cmd.UseLine())
	}
	for _, filter := range s.filters {
		if !topic.ValidFilter(filter) {
			return fmt.Errorf("topic filter %q: want UTF-8 that is not empty, with + only as a whole level and # only as the last, for example plant/+/temperature or plant/#", filter)
		}
	}
	given := cmd.Flags().Changed
	switch {
	case s.wait < 0:
		return fmt.Errorf("--wait %v: it must not be negative", s.wait)
	case given("session-expiry") && (s.sessionExpiry < time.Second || s.sessionExpiry > (math.MaxUint32-1)*time.Second):
		return fmt.Errorf("--session-expiry %v: want a duration from 1s to %ds", s.sessionExpiry, int64(math.MaxUint32-1))
	case given("session-expiry") && c.ClientID == "":
		return errors.New("--session-expiry needs a --clientid, by which the session is found again")
	case s.out.JSON() && (s.null || given("format")):
		return errors.New("--output json has a format and an end of line of its own: give neither --format nor --null with it")
	}
	return nil
}

// What ends a subscription, besides an interruption.
var (
	errEnough = errors.New("enough messages have come")
	errWaited = errors.New("the time is over")
)

// Pauses between two attempts to connect.
const (
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// run prints messages until the command ends.
func (s *subscription) run(cmd *cobra.Command, c *connect.Flags) error {
	if err := c.Prepare(cmd); err != nil {
		return err
	}
	broker, err := mqttconn.NewBroker(c)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(cmd.Context())
	defer end(nil)
	r := &receiver{print: s.printer(cmd.OutOrStdout(), c.Verbose), count: s.count, end: end}
	kept := new(clientconn.Unreleased)
	level := slog.LevelWarn
	if c.Verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	pause := minPause
	for first := true; ctx.Err() == nil; first = false {
		l, err := s.connect(ctx, broker, c.Timeout, kept, first, r.received)
		switch {
		case err == nil:
			if first && s.wait > 0 {
				defer time.AfterFunc(s.wait, func() { end(errWaited) }).Stop()
			}
			if !first {
				log.Info("connected and subscribed again")
			} else if c.Verbose {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: subscribed to %q\n", cmd.CommandPath(), s.filters)
			}
			pause = minPause
			select {
			case <-ctx.Done():
				l.close()
				return r.outcome(context.Cause(ctx))
			case err := <-l.ended:
				log.Warn("connection lost", "error", err)
			}
		case ctx.Err() != nil:
		case first || isRefused(err):
			return err
		default:
			log.Warn("cannot connect", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxPause)
	}
	return r.outcome(context.Cause(ctx))
}

// isRefused reports whether the server has refused, and not a failure that may pass.
func isRefused(err error) bool {
	var rejected *client.RejectedError
	return errors.As(err, &rejected)
}

// connect connects and subscribes.
func (s *subscription) connect(ctx context.Context, broker *mqttconn.Broker, timeout time.Duration, kept *clientconn.Unreleased, first bool, received func(*link, *mqtt.Publish)) (*link, error) {
	packet := &mqtt.Connect{CleanStart: s.sessionExpiry == 0, SessionExpiry: uint32((s.sessionExpiry + time.Second - 1) / time.Second)}
	l, err := openLink(ctx, broker, kept, packet, received)
	if err != nil {
		return nil, err
	}
	subscribe := &mqtt.Subscribe{}
	for _, filter := range s.filters {
		o := mqtt.Subscription{Filter: []byte(filter), QoS: byte(s.qos)}
		switch {
		case s.noRetained:
			o.RetainHandling = 2 // never
		case !first:
			o.RetainHandling = 1 // unless the session has the subscription
		}
		subscribe.Subscriptions = append(subscribe.Subscriptions, o)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = l.Subscribe(ctx, subscribe)
	var said *clientconn.ReasonError
	switch {
	case errors.As(err, &said):
		l.close()
		return nil, fmt.Errorf("topic filter %q: %w", s.filters[said.Filter], mqttconn.Rejected(err))
	case errors.Is(err, clientconn.ErrEnded):
		return nil, fmt.Errorf("cannot subscribe: %w", <-l.ended)
	case err != nil:
		l.close()
		return nil, fmt.Errorf("cannot subscribe: %w", err)
	}
	return l, nil
}

// printer prints messages as the flags say, and flushes after each.
func (s *subscription) printer(out io.Writer, verbose bool) func(*mqtt.Publish) error {
	w := bufio.NewWriter(out)
	if s.format.parts == nil {
		text := "%p"
		if verbose {
			text = "%t %p"
		}
		_ = s.format.Set(text)
	}
	end := byte('\n')
	if s.null {
		end = 0
	}
	return func(m *mqtt.Publish) error {
		if s.out.JSON() {
			if err := newMessageRecord(m, time.Now()).write(w); err != nil {
				return err
			}
			return w.Flush()
		}
		line := append(s.format.append(nil, m, time.Now()), end)
		if _, err := w.Write(line); err != nil {
			return err
		}
		return w.Flush()
	}
}

// receiver prints and counts messages. The goroutine that reads a lost connection may still
// call received when that of the next one has begun.
type receiver struct {
	print func(*mqtt.Publish) error
	count uint64 // 0: no end
	end   context.CancelCauseFunc

	mu      sync.Mutex
	printed uint64 // under mu
}

// received prints a message, and acknowledges it then.
func (r *receiver) received(l *link, m *mqtt.Publish) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > 0 && r.printed == r.count {
		return
	}
	if err := r.print(m); err != nil {
		r.end(fmt.Errorf("write a message: %w", err))
		return
	}
	r.printed++
	l.Acknowledge(m.QoS, m.PacketID)
	if r.count > 0 && r.printed == r.count {
		r.end(errEnough)
	}
}

// outcome is what the command ends with.
func (r *receiver) outcome(cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(cause, errWaited) && r.printed < r.count:
		return exit.Negative(fmt.Sprintf("%d of %s had come when the time was over", r.printed, output.Counted(int64(r.count), "message")))
	case errors.Is(cause, errWaited), errors.Is(cause, errEnough), errors.Is(cause, context.Canceled):
		return nil
	}
	return cause
}
