package consistent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// propertiesOf makes so many user properties with values of so many bytes.
func propertiesOf(n, bytes int) (u consistent.UserProperties) {
	for range n {
		u = append(u, consistent.UserProperty{Name: "n", Value: strings.Repeat("v", bytes)})
	}
	return u
}

// Messages that are as large as the server takes become dead letters as others do, with less of
// them, and do not hold up the messages behind them. The first has as many user properties as there
// may be, the second properties that fill a packet, the third a payload that does.
func TestDeadLettersOfTheLargestMessages(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.Limits.MaxPacketSize = 100_000 }).Addr
	run(t, bank(t, dial(t, addr)))
	o := observe(t, addr, "dead-letters/bank", "balances/+")
	large := []consistent.Message{
		{Topic: "deposits/a", Payload: []byte("x"), UserProperties: propertiesOf(1000, 1)},
		{Topic: "deposits/a", Payload: []byte("y"), UserProperties: propertiesOf(2, 49_900)},
		{Topic: "deposits/a", Payload: make([]byte, 99_900)},
	}
	for i, want := range []struct{ properties, payload int }{{5, 0}, {5, 0}, {5, 0}} {
		o.publish(t, large[i])
		got := o.next(t)
		code, _ := got.UserProperties.Get(consistent.DeadLetterCode)
		omitted, _ := got.UserProperties.Get(consistent.DeadLetterOmitted)
		if len(got.UserProperties) != want.properties || len(got.Payload) != want.payload || code != string(deadletter.NoIdentity) || omitted != fmt.Sprint(len(large[i].Payload)) {
			t.Errorf("message %d: a dead letter with %d properties and %d bytes, code %s, omitted %s", i+1, len(got.UserProperties), len(got.Payload), code, omitted)
		}
	}
	o.publish(t, message("1", deposit{"ann", 1}))
	if got := o.next(t); got.Topic != "balances/ann" {
		t.Errorf("then came a message to %s", got.Topic)
	}
	kept := 0
	for l, err := range deadletter.List(t.Context(), dial(t, addr).Client(), "bank") {
		if err != nil {
			t.Fatal(err)
		}
		if kept++; (l.Omitted == 0) != (len(l.Message.UserProperties) == 1000) {
			t.Errorf("a letter with %d user properties lacks %d bytes", len(l.Message.UserProperties), l.Omitted)
		}
	}
	if kept != len(large) {
		t.Errorf("%d letters are kept, want %d", kept, len(large))
	}
}

// A server that takes fewer user properties than a message and the reason have ends the connection.
func TestDeadLetterForAServerThatTakesFewProperties(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.Limits.MaxUserProperties = 10 }).Addr
	run(t, bank(t, dial(t, addr), quickly))
	o := observe(t, addr, "dead-letters/bank", "balances/+")
	o.publish(t, consistent.Message{Topic: "deposits/a", Payload: []byte("x"), UserProperties: propertiesOf(10, 1)})
	if got := o.next(t); len(got.UserProperties) != 5 {
		t.Errorf("a dead letter with %d properties", len(got.UserProperties))
	}
	o.publish(t, message("1", deposit{"ann", 1}))
	for o.next(t).Topic != "balances/ann" { // the first message came again with another connection
	}
}

// A handler that passes on more user properties than a server takes, on either path.
func TestOutputWithTooManyProperties(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]consistent.Option{"transactional": {}, "state-based": {consistent.Replay()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := testserver.Start(t).Addr
			p := transactional(t, dial(t, addr), "p", opts...)
			_ = consistent.Handle(p, "in", sameKey[int], func(_ *consistent.Context, s, n int) (int, []consistent.Message, error) {
				return s + 1, []consistent.Message{{Topic: "out", UserProperties: propertiesOf(n, 1)}}, nil
			})
			run(t, p)
			o := observe(t, addr, "out", "dead-letters/p")
			o.publish(t, consistenttest.Event("1", consistent.JSON("in", 995))) // and 5 of CloudEvents
			if got := o.next(t); got.Topic != "out" || len(got.UserProperties) != 1000 {
				t.Errorf("%s with %d user properties", got.Topic, len(got.UserProperties))
			}
			o.publish(t, consistenttest.Event("2", consistent.JSON("in", 996)))
			if reason, _ := o.next(t).UserProperties.Get(consistent.DeadLetterReason); !strings.Contains(reason, "1001 user properties") {
				t.Errorf("the reason is %q", reason)
			}
			if s, _ := state(t, dial(t, addr), "p/k"); s != "1" {
				t.Errorf("state %s", s)
			}
		})
	}
}

// A handler that ends its goroutine, as t.FailNow does, and middleware that panics, make dead
// letters; the messages behind them are processed.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	panics := func(next consistent.Process) consistent.Process {
		return func(ctx context.Context, in *consistent.Incoming) error {
			if in.MessageID == "event:4:testpanic" {
				panic("middleware")
			}
			return next(ctx, in)
		}
	}
	for name, opts := range map[string][]consistent.Option{
		"transactional": {}, "state-based": {consistent.Replay()},
		"middleware": {consistent.WithMiddleware(panics)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := consistenttest.NewBroker()
			p := transactional(t, b.Connect("p"), "p", append(opts, consistent.WithConcurrency(1))...)
			_ = consistent.Handle(p, "in", sameKey[string], func(_ *consistent.Context, n int, what string) (int, []consistent.Message, error) {
				if what == "exit" {
					runtime.Goexit()
				}
				return n + 1, nil, nil
			})
			stop := run(t, p)
			want := []string{"runtime.Goexit"}
			for i, what := range []string{"go", "go", "exit", "go", "go"} {
				b.Publish(consistenttest.Event(fmt.Sprint(i), consistent.JSON("in", what)))
			}
			if name == "middleware" {
				b.Publish(consistenttest.Event("panic", consistent.JSON("in", "go")))
				want = append(want, "panicked: middleware")
			}
			settle(t, b)
			wantDeadLetters(t, b, want...)
			wantState(t, b, "p/k", "4")
			stop()
		})
	}
}

// Run does not wait for ever for a handler that takes no notice of the end of its context.
func TestHandlerThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	p := transactional(t, b.Connect("p"), "p", consistent.WithDrainTimeout(time.Millisecond))
	begun, goOn := make(chan struct{}), make(chan struct{})
	_ = consistent.Handle(p, "in", sameKey[int], func(*consistent.Context, int, int) (int, []consistent.Message, error) {
		close(begun)
		<-goOn
		return 1, []consistent.Message{consistent.JSON("out", 1)}, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	<-p.Subscribed()
	b.Publish(consistenttest.Event("1", consistent.JSON("in", 1)))
	<-begun
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "handlers have not returned") {
		t.Errorf("Run: %v", err)
	}
	close(goOn)
	if _, found := b.State("p/k"); found || len(b.Published("out")) > 0 {
		t.Error("what it returned afterwards counts")
	}
}

// An identity that the store cannot remember is refused where it is made, and makes a dead letter
// that says so. The longest is taken.
func TestLongIdentity(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	run(t, transactionalBank(t, dial(t, addr)))
	o := observe(t, addr, "dead-letters/bank", "balances/+")
	longest := 1024 - len("event:4:test")
	o.publish(t, message(strings.Repeat("i", longest), deposit{"ann", 1}))
	if got := o.next(t); got.Topic != "balances/ann" {
		reason, _ := got.UserProperties.Get(consistent.DeadLetterReason)
		t.Errorf("%s: %s", got.Topic, reason)
	}
	o.publish(t, message(strings.Repeat("i", longest+1), deposit{"ann", 1}))
	if reason, _ := o.next(t).UserProperties.Get(consistent.DeadLetterReason); !strings.Contains(reason, "1025 bytes") {
		t.Errorf("the reason is %q", reason)
	}
	if _, err := consistent.Event("test", strings.Repeat("i", longest), "t", 1); err != nil {
		t.Error(err)
	}
	if _, err := consistent.Event("test", strings.Repeat("i", longest+1), "t", 1); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("Event: %v", err)
	}
}

// transactionalBank is a bank on the transactional path.
func transactionalBank(t *testing.T, conn consistent.Conn) *consistent.Processor {
	t.Helper()
	p := transactional(t, conn, "bank")
	_ = consistent.Handle(p, "deposits/+", accountOf, book)
	return p
}

// Names that begin other keys of the store are no names of handlers.
func TestReservedNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dead-letters", "httpin", "holdfast-timers"} {
		p := transactional(t, consistenttest.NewBroker().Connect("p"), "p")
		err := consistent.Handle(p, "in", sameKey[int], func(_ *consistent.Context, s, _ int) (int, []consistent.Message, error) { return s, nil, nil }, consistent.WithName(name))
		if !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Two processors on one connection would take each other's messages.
func TestOneProcessorOnAConnection(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := dial(t, addr)
	stop := run(t, bank(t, c))
	p := transactional(t, c, "other")
	_ = consistent.Handle(p, "other", sameKey[int], func(_ *consistent.Context, s, _ int) (int, []consistent.Message, error) { return s, nil, nil })
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another processor runs on this connection") {
		t.Errorf("a second processor: %v", err)
	}
	stop()
	run(t, bank(t, c))
}

// serverAhead is the clock of a server: 10 minutes ahead of this machine's.
type serverAhead struct{ start time.Time }

func (c serverAhead) WallMs() int64             { return time.Now().Add(10 * time.Minute).UnixMilli() }
func (c serverAhead) SinceStart() time.Duration { return time.Since(c.start) }

// An instance whose clock is 10 minutes behind that of the server and all senders takes their
// messages for new ones, says so, and gives its handlers the right time.
func TestInstanceWhoseClockIsBehind(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.Clock = serverAhead{time.Now()} }).Addr
	log := &logBook{}
	p := transactional(t, dial(t, addr), "h", log.option())
	_ = consistent.Handle(p, "in", sameKey[int], func(c *consistent.Context, _, _ int) (int, []consistent.Message, error) {
		return 0, []consistent.Message{consistent.JSON("out", c.Now())}, nil
	})
	run(t, p)
	o := observe(t, addr, "out", "dead-letters/h")
	o.publish(t, consistenttest.SentAt(time.Now().Add(10*time.Minute), consistenttest.Event("1", consistent.JSON("in", 1))))
	got := o.next(t)
	var now time.Time
	if err := now.UnmarshalJSON(got.Payload); err != nil {
		t.Fatalf("%v: %v", err, got)
	}
	if ahead := time.Until(now); ahead < 9*time.Minute || log.count("clock is behind the server's") != 1 {
		t.Errorf("the handler's time is in %v, and the log has that %d times", ahead, log.count("clock is behind"))
	}
	o.publish(t, consistenttest.SentAt(time.Now().Add(20*time.Minute), consistenttest.Event("2", consistent.JSON("in", 1))))
	if got := o.next(t); got.Topic != "dead-letters/h" {
		t.Errorf("a message from the future was processed")
	}
}

// A server that is started with one operation of each kind in a transaction: a message with one output
// has room in it, and one with two is a dead letter.
func TestServerOfFewOperations(t *testing.T) {
	t.Parallel()
	for outputs, want := range map[int]string{1: "balances/ann", 2: "dead-letters/bank"} {
		t.Run(fmt.Sprint(outputs), func(t *testing.T) {
			t.Parallel()
			addr := testserver.Start(t, func(c *server.Config) { c.MaxTxnOperations = 1 }).Addr
			p := transactional(t, dial(t, addr), "bank", quickly)
			_ = consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
				s, made, err := book(c, s, d)
				return s, slices.Repeat(made, outputs), err
			})
			run(t, p)
			o := observe(t, addr, "dead-letters/bank", "balances/+")
			for i := range 20 {
				o.publish(t, message(fmt.Sprint(i), deposit{"ann", 1}))
			}
			for range 20 {
				if got := o.next(t); got.Topic != want {
					reason, _ := got.UserProperties.Get(consistent.DeadLetterReason)
					t.Errorf("%s: %s", got.Topic, reason)
				}
			}
		})
	}
}
