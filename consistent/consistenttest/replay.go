package consistenttest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/consistent"
)

// Replay sends messages to the handlers that register registers with a processor of that
// name, and has each of them
// processed twice on the state-based path ([consistent.Replay]): the first time publishing fails after the message is committed, and
// the outputs are kept; the second time is the replay, as after a crash. Where the two
// differ the test fails, with both. It returns a [Test] to look at the outcome.
//
// The messages may be made by hand ([Event]), or recorded: every [Test.Published] will do.
func Replay(t testing.TB, name string, register func(*consistent.Processor), messages []consistent.Message, opts ...consistent.Option) *Test {
	t.Helper()
	test := &Test{Broker: NewBroker(), t: t, name: name}
	conn := test.Broker.Connect("processor")
	test.first = test.start(conn, &replaying{Conn: conn, t: t, first: make(map[string][]consistent.Message)}, register, append([]consistent.Option{consistent.Replay()}, opts...))
	for _, m := range messages {
		test.Send(m)
	}
	for _, reason := range test.DeadLetters() {
		t.Errorf("a message was not processed: %s", reason)
	}
	return test
}

// replaying lets the first publishing of every message fail.
type replaying struct {
	*Conn
	t testing.TB

	mu    sync.Mutex
	first map[string][]consistent.Message // under mu: what was to be published, by the first output's ID; nil: an order of a timer, by its mark
}

// Transact sets and cancels timers, not before the second time either.
func (c *replaying) Transact(ctx context.Context, r consistent.TxnRequest) (consistent.TxnResult, error) {
	c.mu.Lock()
	order := "timer " + r.Key + " " + string(r.State)
	_, again := c.first[order]
	c.first[order] = nil
	c.mu.Unlock()
	if !again {
		return consistent.TxnResult{}, errReplay
	}
	return c.Conn.Transact(ctx, r)
}

var errReplay = errors.New("publishing fails the first time, so that the message is replayed")

func (c *replaying) Publish(ctx context.Context, messages ...consistent.Message) error {
	id, _ := messages[0].UserProperties.Get("id")
	if _, dead := messages[0].UserProperties.Get(consistent.DeadLetterReason); dead {
		return c.Conn.Publish(ctx, messages...)
	}
	c.mu.Lock()
	first, again := c.first[id]
	c.first[id] = messages
	c.mu.Unlock()
	if !again {
		return errReplay
	}
	for i := range messages {
		if i >= len(first) || show(first[i]) != show(messages[i]) {
			c.t.Errorf("output %d differs:\nfirst %s\nthen  %s", i+1, show(first[min(i, len(first)-1)]), show(messages[i]))
		}
	}
	return c.Conn.Publish(ctx, messages...)
}
