package request_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/consistent/publisher"
	"github.com/holdfast-mqtt/holdfast/consistent/request"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// counter answers each request with how many there were of its key.
func counter(p *consistent.Processor) {
	_ = consistent.Handle(p, "count/+", func(m string) string { return m }, func(c *consistent.Context, n int, _ string) (int, []consistent.Message, error) {
		if answer, wanted := consistent.Reply(c, n+1); wanted {
			return n + 1, []consistent.Message{answer}, nil
		}
		return n + 1, nil, nil
	})
}

func question(id, key string) consistent.Message {
	m, err := consistent.Event("test", id, "test", key)
	if err != nil {
		log.Fatal(err)
	}
	m.Topic = "count/it"
	return m
}

func Example() {
	broker := consistenttest.NewBroker() // in memory
	p, err := consistent.New(broker.Connect("counter"), "counter")
	if err != nil {
		log.Fatal(err)
	}
	counter(p)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	<-p.Subscribed()

	r, err := request.New(ctx, broker.Connect("shop-1"), "answers/shop-1")
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"1", "2"} {
		answer, err := r.Do(ctx, question(id, "apples"))
		fmt.Println(string(answer.Payload), err)
	}
	r.Close()
	stop()
	<-ended
	// Output:
	// 1 <nil>
	// 2 <nil>
}

// Requests at the same time get the answer of each, over a real server.
func TestEachGetsItsAnswer(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	quiet := client.WithLogger(slog.New(slog.DiscardHandler))
	conn, err := consistent.Dial(t.Context(), addr, client.WithClientID("processor"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, err := consistent.New(conn, "counter", consistent.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	_ = consistent.Handle(p, "echo", func(m string) string { return m }, func(c *consistent.Context, _ int, m string) (int, []consistent.Message, error) {
		answer, _ := consistent.Reply(c, m)
		return 0, []consistent.Message{answer}, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	<-p.Subscribed()
	session, err := client.DialSession(t.Context(), addr, client.WithClientID("requester"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	r, err := request.New(t.Context(), session, "answers/1")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			m := question(fmt.Sprint(i), fmt.Sprint("k", i))
			m.Topic = "echo"
			answer, err := r.Do(t.Context(), m)
			if want := fmt.Sprintf(`"k%d"`, i); err != nil || string(answer.Payload) != want {
				t.Errorf("request %d: %q, %v", i, answer.Payload, err)
			}
		})
	}
	calls.Wait()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Calls with the same request, before its answer, get the same answer; what comes later, or
// for another request, is dropped.
func TestCallsShareAnAnswer(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	r, err := request.New(t.Context(), b.Connect("requester"), "answers/1")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	listener := b.Connect("listener")
	if err := listener.Subscribe(t.Context(), "count/+"); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if answer, err := r.Do(t.Context(), question("1", "k")); err != nil || string(answer.Payload) != "first" {
				t.Errorf("%q, %v", answer.Payload, err)
			}
		})
	}
	asked := 0
	for d, err := range listener.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		d.Ack()
		if asked++; asked == 2 { // both calls wait
			answer := func(correlation, text string) consistent.Message {
				return consistent.Message{Topic: "answers/1", CorrelationData: []byte(correlation), Payload: []byte(text)}
			}
			b.Publish(answer("another", "none"), answer(string(d.CorrelationData), "first"), answer(string(d.CorrelationData), "second"))
			break
		}
	}
	calls.Wait()
	if err := b.Settle(t.Context()); err != nil {
		t.Error(err)
	}
}

// Without a processor there is no answer, and the requests that wait are bounded.
func TestBounds(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	r, err := request.New(t.Context(), b.Connect("requester"), "answers/1")
	if err != nil {
		t.Fatal(err)
	}
	listener := b.Connect("listener")
	if err := listener.Subscribe(t.Context(), "count/+"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(chan error, request.Bound)
	for i := range request.Bound {
		go func() {
			_, err := r.Do(ctx, question(fmt.Sprint(i), "k"))
			errs <- err
		}()
	}
	asked := 0
	for _, err := range listener.Messages(t.Context()) {
		if asked++; err != nil || asked == request.Bound {
			break
		}
	}
	if _, err := r.Do(ctx, question("one more", "k")); !errors.Is(err, request.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	if _, err := r.Do(ctx, question("0", "another payload")); !errors.Is(err, request.ErrOtherRequest) {
		t.Errorf("an ID that waits: %v", err)
	}
	if _, err := r.Do(ctx, consistent.Message{Topic: "count/it"}); !errors.Is(err, publisher.ErrNoIdentity) {
		t.Errorf("no identity: %v", err)
	}
	cancel()
	for range request.Bound {
		if err := <-errs; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("a request that waits: %v", err)
		}
	}
	r.Close()
	if _, err := r.Do(t.Context(), question("late", "k")); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAnswersNeedATopic(t *testing.T) {
	t.Parallel()
	if _, err := request.New(t.Context(), consistenttest.NewBroker().Connect("r"), "answers/#"); !errors.Is(err, client.ErrInvalidOption) {
		t.Error(err)
	}
}
