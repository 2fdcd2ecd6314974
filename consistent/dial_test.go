package consistent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/backlog"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// logBook is a log that a test reads.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer // under mu
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBook) option() consistent.Option {
	return consistent.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// count is how many lines contain a text.
func (l *logBook) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// A process without a name of its own would not find its messages again.
func TestDialNeedsAClientID(t *testing.T) {
	t.Parallel()
	c, err := consistent.Dial(t.Context(), testserver.Start(t).Addr, client.WithLogger(slog.New(slog.DiscardHandler)))
	if c != nil || !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), "WithClientID") {
		t.Errorf("Dial: %v", err)
	}
}

// The queue of a processor that is away is full. Publishers are refused; what was
// acknowledged to them is processed.
func TestNothingIsLostWhenTheQueueIsFull(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.Limits = broker.Limits{MaxQueued: 20} }).Addr
	id := client.WithClientID("instance")
	c := dial(t, addr, id)
	stop := run(t, bank(t, c))
	stop()
	_ = c.Close()
	o := observe(t, addr)
	sent := 0
	for {
		err := o.session.Publish(t.Context(), message(fmt.Sprint(sent), deposit{"ann", 1}))
		if err == nil {
			if sent++; sent > 10_000 {
				t.Fatal("the queue has no end")
			}
			continue
		}
		var refused *client.RejectedError
		if !errors.As(err, &refused) || refused.Code != client.ReasonQuotaExceeded {
			t.Fatalf("Publish: %v", err)
		}
		break
	}
	if sent == 0 {
		t.Fatal("nothing could be sent")
	}
	c = dial(t, addr, id)
	run(t, bank(t, c))
	want := fmt.Sprintf(`{"Balance":%d,"Deposits":%d}`, sent, sent)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s, _ := state(t, c, "bank/ann")
		if s == want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("state %s, want %s", s, want)
		}
	}
}

// A processor that has as many messages as the server sends says once that it holds the
// server up, and again only after it has caught up.
func TestBackpressureIsSaid(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	log := &logBook{}
	counted := &metrics{counts: make(map[string]int)}
	goOn := make(chan struct{})
	p := newProcessor(t, b.Connect("p"), "slow", log.option(), consistent.WithMetrics(counted))
	_ = consistent.Handle(p, "in", sameKey[int], func(*consistent.Context, int, int) (int, []consistent.Message, error) {
		<-goOn
		return 0, nil, nil
	})
	run(t, p)
	for i := range backlog.Most - 1 {
		b.Publish(consistenttest.Event(fmt.Sprint(i), consistent.JSON("in", i)))
	}
	said := func() int {
		counted.mu.Lock()
		defer counted.mu.Unlock()
		return counted.counts["slow/ backpressure"]
	}
	if said() != 0 {
		t.Error("said of one message less")
	}
	for i := range 10 {
		b.Publish(consistenttest.Event(fmt.Sprint("more", i), consistent.JSON("in", i)))
	}
	for deadline := time.Now().Add(patience); said() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not said")
		}
	}
	close(goOn)
	settle(t, b)
	if n := log.count("as many messages as the server sends"); said() != 1 || n != 1 {
		t.Errorf("counted %d times, logged %d times, want once", said(), n)
	}
}

// More messages wait for a processor than the server sends without an acknowledgement. It gets the
// responses to its first requests all the same, says that it holds the server up, and processes all.
func TestMoreMessagesWaitThanTheServerSends(t *testing.T) {
	t.Parallel()
	for path, opts := range map[string][]consistent.Option{"state-based": {consistent.Replay()}, "transactions": nil} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			addr := testserver.Start(t).Addr
			id := client.WithClientID("instance")
			away := dial(t, addr, id)
			if err := away.Subscribe(t.Context(), "in"); err != nil {
				t.Fatal(err)
			}
			_ = away.Close()
			const messages = backlog.Most + 100
			sent := make([]consistent.Message, 0, messages)
			for i := range messages {
				sent = append(sent, consistenttest.Event(fmt.Sprint(i), consistent.JSON("in", i)))
			}
			o := observe(t, addr, "out")
			o.publish(t, sent...)

			counted := &counts{}
			begun, goOn := make(chan struct{}, messages), make(chan struct{})
			// A response that did not come would be awaited for as long as the test has patience.
			p := transactional(t, dial(t, addr, id), "slow", append(opts, consistent.WithMetrics(counted), consistent.WithTimeout(2*patience))...)
			_ = consistent.Handle(p, "in", func(i int) string { return fmt.Sprint(i) }, func(_ *consistent.Context, _, i int) (int, []consistent.Message, error) {
				begun <- struct{}{}
				<-goOn
				return i, []consistent.Message{consistent.JSON("out", i)}, nil
			})
			run(t, p)
			<-begun
			counted.reach(t, consistent.CountBackpressure, 1)
			close(goOn)
			for range messages {
				o.next(t)
			}
			counted.reach(t, consistent.CountProcessed, messages)
		})
	}
}

// An instance whose clock is 90 s ahead, more than the server takes, works all the same, says
// so, and gives its handlers the right time.
func TestInstanceWhoseClockIsAhead(t *testing.T) {
	t.Parallel()
	for path, opts := range map[string][]consistent.Option{"state-based": {consistent.Replay()}, "transactions": nil} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			instanceWhoseClockIsAhead(t, opts...)
		})
	}
}

func instanceWhoseClockIsAhead(t *testing.T, opts ...consistent.Option) {
	t.Helper()
	addr := testserver.Start(t).Addr
	clock := hlc.NewClock("fast", hlc.WithWall(func() uint64 { return uint64(time.Now().Add(90 * time.Second).UnixMilli()) }))
	c := dial(t, addr, client.WithClock(clock))
	log := &logBook{}
	p := transactional(t, c, "h", append(opts, log.option())...)
	_ = consistent.Handle(p, "in", sameKey[int], func(c *consistent.Context, _, _ int) (int, []consistent.Message, error) {
		return 0, []consistent.Message{consistent.JSON("out", c.Now())}, nil
	})
	run(t, p)
	o := observe(t, addr, "out")
	o.publish(t, consistenttest.Event("1", consistent.JSON("in", 1)))
	var now time.Time
	if err := now.UnmarshalJSON(o.next(t).Payload); err != nil {
		t.Fatal(err)
	}
	if ahead := c.ClockAhead(); ahead < 80*time.Second || log.count("clock is ahead of the server's") != 1 {
		t.Errorf("the clock is said to be %v ahead, and that %d times in the log", ahead, log.count("clock is ahead"))
	}
	// Here the machine's clock is right, so the handler's time is as far behind it.
	if time.Since(now) < 80*time.Second {
		t.Errorf("the handler's time is %v, which was not corrected", now)
	}
}

// A session that is kept for a shorter time than messages are remembered.
func TestShortSessionIsSaid(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	for expiry, want := range map[time.Duration]int{time.Hour: 1, 0: 0} {
		opts := []client.Option{}
		if expiry != 0 {
			opts = append(opts, client.WithSessionExpiry(expiry))
		}
		log := &logBook{}
		ctx, cancel := context.WithCancel(t.Context())
		p := bank(t, dial(t, addr, opts...), log.option())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		<-p.Subscribed()
		cancel()
		if err := <-done; err != nil || log.count("keeps the session") != want {
			t.Errorf("session of %v: Run: %v, said %d times, want %d", expiry, err, log.count("keeps the session"), want)
		}
	}
}
