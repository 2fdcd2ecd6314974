package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

const patience = time.Minute

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// counter is a processor whose handler refuses messages until it is mended.
type counter struct {
	conn   *consistent.Connection
	sender *client.Session
	mended atomic.Bool
}

func start(t *testing.T, opts ...consistent.Option) *counter {
	t.Helper()
	addr := testserver.Start(t).Addr
	c := &counter{}
	var err error
	if c.conn, err = consistent.Dial(t.Context(), addr, client.WithClientID("counter")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close() })
	if c.sender, err = client.DialSession(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.sender.Close() })
	opts = append([]consistent.Option{consistent.WithLogger(slog.New(slog.DiscardHandler)), consistent.WithNamespace("plant")}, opts...)
	p, err := consistent.New(c.conn, "counter", opts...)
	if err != nil {
		t.Fatal(err)
	}
	_ = consistent.Handle(p, "in", func(string) string { return "k" }, func(_ *consistent.Context, s int, _ string) (int, []consistent.Message, error) {
		if !c.mended.Load() {
			return s, nil, consistent.Terminal(errors.New("not mended"))
		}
		return s + 1, nil, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-p.Subscribed()
	return c
}

func (c *counter) send(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := c.sender.Publish(t.Context(), consistenttest.Event(id, consistent.JSON("in", "message "+id))); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *counter) list(t *testing.T, processor string) (letters []deadletter.Letter) {
	t.Helper()
	for l, err := range deadletter.List(t.Context(), c.conn.Client(), processor) {
		if err != nil {
			t.Fatal(err)
		}
		letters = append(letters, l)
	}
	return letters
}

// Dead letters without a subscriber are in the store; once the handler is mended they are
// processed.
func TestDeadLettersAreKeptAndReplayed(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.send(t, "1", "2", "3")
	eventually(t, "three letters are kept", func() bool { return len(c.list(t, "plant/counter")) == 3 })
	letters := c.list(t, "")
	for _, l := range letters {
		id, _ := l.Message.UserProperties.Get("id")
		if l.Code != deadletter.Terminal || l.Reason != "not mended" || l.Handler != "counter" || l.Key != "k" || l.Message.Topic != "in" ||
			l.MessageID != "event:4:test"+id || string(l.Message.Payload) != fmt.Sprintf("%q", "message "+id) || l.Processor != "plant/counter" {
			t.Errorf("%+v", l)
		}
		got, err := deadletter.Get(t.Context(), c.conn.Client(), l.Processor, l.ID)
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, l)
		}
	}
	if got := c.list(t, "counter"); len(got) != 0 {
		t.Errorf("of a processor without the namespace: %v", got)
	}
	if err := deadletter.Drop(t.Context(), c.conn.Client(), &letters[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := deadletter.Get(t.Context(), c.conn.Client(), letters[0].Processor, letters[0].ID); !errors.Is(err, deadletter.ErrNotFound) {
		t.Errorf("a letter that was dropped: %v", err)
	}
	// Replayed before the handler is mended, the message is a dead letter again.
	if err := deadletter.Replay(t.Context(), c.conn.Client(), c.sender, &letters[1]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is a dead letter again", func() bool {
		l, err := deadletter.Get(t.Context(), c.conn.Client(), letters[1].Processor, letters[1].ID)
		return err == nil && l.Version != letters[1].Version
	})
	c.mended.Store(true)
	for _, l := range c.list(t, "plant/counter") {
		if err := deadletter.Replay(t.Context(), c.conn.Client(), c.sender, &l); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are processed", func() bool {
		v, _, err := c.conn.Client().Get(t.Context(), "/plant/counter/k")
		return err == nil && string(v.Bytes) == "2"
	})
	if left := c.list(t, ""); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

// A letter more than is allowed is published only.
func TestKeptDeadLettersAreBounded(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]consistent.Option{
		"by number": consistent.WithKeptDeadLetters(2, 1<<20, time.Hour),
		"by bytes":  consistent.WithKeptDeadLetters(100, 700, time.Hour),
		"to none":   consistent.WithKeptDeadLetters(0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			metrics := &counts{}
			c := start(t, option, consistent.WithMetrics(metrics), consistent.WithConcurrency(1))
			c.send(t, "1", "2", "3", "4")
			eventually(t, "all are dead letters", func() bool { return metrics.letters.Load() == 4 })
			switch letters := c.list(t, ""); name {
			case "to none":
				if len(letters) != 0 || metrics.unkept.Load() != 0 {
					t.Errorf("%d are kept, %d are counted as not kept", len(letters), metrics.unkept.Load())
				}
			default: // a letter has more than 233 and fewer than 350 bytes
				if len(letters) != 2 || metrics.unkept.Load() != 2 {
					t.Errorf("%d are kept, %d are counted as not kept", len(letters), metrics.unkept.Load())
				}
			}
		})
	}
}

type counts struct{ letters, unkept atomic.Int64 }

func (m *counts) Count(_, _ string, c consistent.Counter) {
	switch c {
	case consistent.CountDeadLetter:
		m.letters.Add(1)
	case consistent.CountUnkept:
		m.unkept.Add(1)
	}
}

func (*counts) Observe(string, string, consistent.Step, time.Duration) {}

// A letter without its payload says how much is missing, and is not replayed.
func TestLetterWithoutPayload(t *testing.T) {
	t.Parallel()
	l := deadletter.Letter{Processor: "p", Handler: "h", Code: deadletter.Panicked, Time: time.Unix(1, 0).UTC(),
		Message: client.Message{Topic: "in", Payload: []byte("\x00\xff"), CorrelationData: []byte{1}, UserProperties: client.UserProperties{{Name: "a", Value: "b"}}}}
	l.ID = l.MakeID()
	for _, whole := range []bool{true, false} {
		value, err := l.Encode(whole)
		if err != nil {
			t.Fatal(err)
		}
		got, err := deadletter.Decode("p", l.ID, value)
		if err != nil || got.Message.Topic != "in" || len(got.Message.Payload) != map[bool]int{true: 2}[whole] || got.Omitted != map[bool]int{false: 2}[whole] {
			t.Errorf("%+v, %v", got, err)
		}
		if whole {
			continue
		}
		if err := deadletter.Replay(t.Context(), nil, nil, &got); err == nil || !strings.Contains(err.Error(), "2 bytes") {
			t.Errorf("Replay: %v", err)
		}
	}
	for _, bad := range []string{"", "[]", `{"format":2}`} {
		if _, err := deadletter.Decode("p", "id", []byte(bad)); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}
