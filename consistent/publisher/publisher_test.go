package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/consistent/publisher"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

var (
	quietly = publisher.WithLogger(slog.New(slog.DiscardHandler))
	quickly = publisher.WithBackoff(time.Millisecond, 5*time.Millisecond)
)

func newPublisher(t *testing.T, conn publisher.Conn, opts ...publisher.Option) *publisher.Publisher {
	t.Helper()
	p, err := publisher.New(conn, append([]publisher.Option{quietly, quickly}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func message(t *testing.T, id string) consistent.Message {
	t.Helper()
	m, err := consistent.Event("test", id, "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	m.Topic = "in"
	return m
}

// scripted gives one error for each attempt, and then nil.
type scripted struct {
	errs []error
	sent []client.Message
}

func (s *scripted) Publish(_ context.Context, messages ...client.Message) error {
	s.sent = append(s.sent, messages...)
	if len(s.errs) == 0 {
		return nil
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return err
}

func Example() {
	broker := consistenttest.NewBroker() // in memory; client.DialSession connects to a real one
	p, err := publisher.New(broker.Connect("shop"))
	if err != nil {
		log.Fatal(err)
	}
	m, err := consistent.Event("shop", "order-4711", "com.example.ordered", "3 apples")
	if err != nil {
		log.Fatal(err)
	}
	m.Topic = "orders/4711"
	fmt.Println(p.Publish(context.Background(), m))
	fmt.Println(string(broker.Published("orders/#")[0].Payload))
	// Output:
	// <nil>
	// "3 apples"
}

// Every attempt sends the same message, until one is acknowledged.
func TestSameMessageUntilAcknowledged(t *testing.T) {
	t.Parallel()
	conn := &scripted{errs: []error{
		fmt.Errorf("%w: the connection broke", client.ErrUnknownOutcome), client.ErrNotConnected,
		&client.RejectedError{Code: client.ReasonQuotaExceeded}, context.DeadlineExceeded,
	}}
	m := message(t, "1")
	if err := newPublisher(t, conn).Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if len(conn.sent) != 5 {
		t.Errorf("%d attempts, want 5", len(conn.sent))
	}
	for _, sent := range conn.sent {
		if fmt.Sprint(sent) != fmt.Sprint(m) {
			t.Errorf("sent %v, want %v", sent, m)
		}
	}
}

// A queue has less room than there are messages: they are sent in pieces that fit, in order.
func TestMoreThanAQueueHasRoomFor(t *testing.T) {
	t.Parallel()
	const room = 3
	var taken []client.Message
	conn := publishFunc(func(messages []client.Message) error {
		if len(messages) > room {
			return &client.RejectedError{Code: client.ReasonQuotaExceeded}
		}
		taken = append(taken, messages...)
		return nil
	})
	var messages []client.Message
	for i := range 200 {
		messages = append(messages, message(t, fmt.Sprint(i)))
	}
	if err := newPublisher(t, conn).Publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(taken) != fmt.Sprint(messages) {
		t.Errorf("%d messages were taken, want %d in their order", len(taken), len(messages))
	}
}

type publishFunc func([]client.Message) error

func (f publishFunc) Publish(_ context.Context, messages ...client.Message) error { return f(messages) }

// What would fail again is returned at once.
func TestFinalErrors(t *testing.T) {
	t.Parallel()
	for _, want := range []error{client.ErrInvalidOption, client.ErrTooLarge, client.ErrClosed,
		&client.RejectedError{Code: client.ReasonNotAuthorized}, &client.RejectedError{Code: client.ReasonTopicNameInvalid},
		&client.RejectedError{Code: client.ReasonImplementationSpecific},
		&client.RejectedError{Code: client.ReasonQuotaExceeded, Reason: "the message is to be delivered later than --max-delay allows: 1h0m0s from now"}} {
		conn := &scripted{errs: []error{want}}
		if err := newPublisher(t, conn).Publish(t.Context(), message(t, "1")); !errors.Is(err, want) || len(conn.sent) != 1 {
			t.Errorf("%v after %d attempts, want %v after 1", err, len(conn.sent), want)
		}
	}
	for text, wrong := range map[string]consistent.Message{
		"no identity":      {Topic: "in"},
		"name of a topic":  message(t, "1"),
		"response topic":   message(t, "2"),
		"1 to 256 bytes":   message(t, "3").After(time.Hour).WithTimerID(""),
		"no identity, so ": {Topic: "in", UserProperties: consistent.UserProperties{{Name: "source", Value: "s"}, {Name: "id", Value: ""}}},
	} {
		switch text {
		case "name of a topic":
			wrong.Topic = ""
		case "response topic":
			wrong.ResponseTopic = "+"
		}
		conn := &scripted{}
		if err := newPublisher(t, conn).Publish(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), text) || len(conn.sent) > 0 {
			t.Errorf("%v after %d attempts, want %q", err, len(conn.sent), text)
		}
	}
}

// A context that ends says whether the message may have been published.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	ended := errors.New("ended")
	for _, test := range []struct {
		first   error
		unknown bool
	}{{client.ErrNotConnected, false}, {client.ErrUnknownOutcome, true}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		attempts := 0
		conn := connFunc(func() error {
			if attempts++; attempts == 1 {
				return test.first
			}
			cancel(ended)
			return client.ErrNotConnected
		})
		err := newPublisher(t, conn).Publish(ctx, message(t, "1"))
		if !errors.Is(err, ended) || !errors.Is(err, client.ErrNotConnected) || errors.Is(err, client.ErrUnknownOutcome) != test.unknown {
			t.Errorf("after %v: %v", test.first, err)
		}
	}
}

type connFunc func() error

func (f connFunc) Publish(context.Context, ...client.Message) error { return f() }

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]publisher.Option{
		"WithTimeout": publisher.WithTimeout(0), "WithBackoff": publisher.WithBackoff(2, 1), "WithLogger": publisher.WithLogger(nil),
	} {
		if _, err := publisher.New(&scripted{}, opt); !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := publisher.New(nil); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("without a connection: %v", err)
	}
}

// The server is killed and started again while messages are published; the processor finds
// each message once.
func TestThroughRestartsOfTheServer(t *testing.T) {
	t.Parallel()
	server := testserver.Run(t, "--listen", testserver.FreeAddress())
	backoff := client.WithBackoff(time.Millisecond, 20*time.Millisecond)
	session, err := client.DialSession(t.Context(), server.Addr, client.WithClientID("sender"), backoff, client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	conn, err := consistent.Dial(t.Context(), server.Addr, client.WithClientID("processor"), backoff, client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const messages = 120
	all := make(chan struct{})
	finish := sync.OnceFunc(func() { close(all) }) // a message may be handled again when its commit has failed
	processor, err := consistent.New(conn, "count", consistent.WithLogger(slog.New(slog.DiscardHandler)), consistent.WithBackoff(time.Millisecond, 20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	_ = consistent.Handle(processor, "in", func(int) string { return "k" }, func(c *consistent.Context, n, _ int) (int, []consistent.Message, error) {
		if n+1 == messages {
			finish()
		}
		return n + 1, nil, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- processor.Run(ctx) }()
	<-processor.Subscribed()
	p := newPublisher(t, session)
	for i := range messages {
		if i%40 == 20 {
			server.Restart() // after a SIGKILL
		}
		if err := p.Publish(t.Context(), message(t, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatal("not every message was processed")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	state, _, err := conn.Client().Get(t.Context(), "count/k")
	if err != nil || string(state.Bytes) != fmt.Sprint(messages) {
		t.Errorf("processed %s messages, %v; want %d", state.Bytes, err, messages)
	}
}

// A message that is to be delivered later has the time at which it is due, so that a processor does
// not take it for an old one.
func TestTimeOfATimer(t *testing.T) {
	t.Parallel()
	conn := &scripted{}
	due := time.Now().Add(30 * 24 * time.Hour).Truncate(time.Millisecond)
	m := message(t, "1").At(due)
	before := fmt.Sprint(m)
	if err := newPublisher(t, conn).Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	sent, _ := conn.sent[0].UserProperties.Get("time")
	if at, err := time.Parse(time.RFC3339Nano, sent); err != nil || !at.Equal(due) || fmt.Sprint(m) != before {
		t.Errorf("sent with the time %q, want %v; the caller's message: %v", sent, due, m)
	}
}
