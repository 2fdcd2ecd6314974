package consistent_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// memory is a connection to a broker in memory, with faults: each function, if there is
// one, stands in place of the real thing.
type memory struct {
	*consistenttest.Conn
	store   func(r consistent.StoreRequest, carryOut func() (client.StoreResult, error)) (client.StoreResult, error)
	done    func(r consistent.DoneRequest, carryOut func() (bool, error)) (bool, error)
	publish func(ms []consistent.Message, carryOut func() error) error
}

func (m *memory) Store(ctx context.Context, r consistent.StoreRequest) (client.StoreResult, error) {
	carryOut := func() (client.StoreResult, error) { return m.Conn.Store(ctx, r) }
	if m.store != nil && r.MessageID != "keep" { // by which the processor asks what is granted
		return m.store(r, carryOut)
	}
	return carryOut()
}

func (m *memory) Done(ctx context.Context, r consistent.DoneRequest) (bool, error) {
	carryOut := func() (bool, error) { return m.Conn.Done(ctx, r) }
	if m.done != nil {
		return m.done(r, carryOut)
	}
	return carryOut()
}

// TransactsTogether implements consistent.TogetherConn: STOREs and DONEs that a fault is to stand
// before come one by one.
func (m *memory) TransactsTogether() bool { return m.store == nil && m.done == nil }

func (m *memory) Publish(ctx context.Context, ms ...consistent.Message) error {
	carryOut := func() error { return m.Conn.Publish(ctx, ms...) }
	if m.publish != nil {
		return m.publish(ms, carryOut)
	}
	return carryOut()
}

func settle(t testing.TB, b *consistenttest.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Settle(ctx); err != nil {
		t.Fatal(err)
	}
}

// wantDeadLetters checks how many dead letters there are, and what their reasons contain.
func wantDeadLetters(t testing.TB, b *consistenttest.Broker, reasons ...string) {
	t.Helper()
	var got []string
	for _, m := range b.Published("#") {
		if reason, ok := m.UserProperties.Get(consistent.DeadLetterReason); ok {
			got = append(got, reason)
		}
	}
	for i, want := range reasons {
		if i >= len(got) || !strings.Contains(got[i], want) {
			t.Errorf("dead letters %q, want %q", got, reasons)
			return
		}
	}
	if len(got) != len(reasons) {
		t.Errorf("dead letters %q, want %q", got, reasons)
	}
}

func wantState(t testing.TB, b *consistenttest.Broker, key, want string) {
	t.Helper()
	if got, _ := b.State(key); string(got) != want {
		t.Errorf("state of %s: %s, want %s", key, got, want)
	}
}

// Requesters count their requests from 1, each for itself: Correlation Data is unique to one
// Response Topic.
func TestRequestsOfSeveralRequesters(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	run(t, bank(t, b.Connect("p")))
	for i := range 5 {
		m := consistent.JSON("deposits/ann", deposit{"ann", 10})
		m.ResponseTopic, m.CorrelationData = fmt.Sprint("replies/", i), []byte("1")
		b.Publish(m, m)
	}
	settle(t, b)
	wantState(t, b, "bank/ann", `{"Balance":50,"Deposits":5}`)
	wantDeadLetters(t, b)
	anonymous := consistent.JSON("deposits/ann", deposit{"ann", 10})
	anonymous.CorrelationData = []byte("1")
	b.Publish(anonymous)
	settle(t, b)
	wantDeadLetters(t, b, consistent.ErrNoIdentity.Error())
}

// A sender gives two messages one ID. The second becomes a dead letter, whether the first
// is being processed, stored or confirmed.
func TestAnotherPayloadWithTheSameID(t *testing.T) {
	t.Parallel()
	first, second := message("1", deposit{"ann", 10}), message("1", deposit{"ann", 99})
	t.Run("confirmed", func(t *testing.T) {
		t.Parallel()
		b := consistenttest.NewBroker()
		confirmed := make(chan struct{})
		c := &memory{Conn: b.Connect("p")}
		c.done = func(r consistent.DoneRequest, carryOut func() (bool, error)) (bool, error) {
			defer close(confirmed)
			return carryOut()
		}
		run(t, bank(t, c))
		b.Publish(first)
		<-confirmed
		settle(t, b)
		b.Publish(first, second)
		settle(t, b)
		wantDeadLetters(t, b, consistent.ErrIdentityReused.Error())
		wantState(t, b, "bank/ann", `{"Balance":10,"Deposits":1}`)
	})
	t.Run("stored", func(t *testing.T) {
		t.Parallel()
		b := consistenttest.NewBroker()
		c := &memory{Conn: b.Connect("p")}
		c.done = func(consistent.DoneRequest, func() (bool, error)) (bool, error) { return false, errInjected }
		run(t, bank(t, c))
		b.Publish(first)
		settle(t, b)
		b.Publish(second, first)
		settle(t, b)
		wantDeadLetters(t, b, consistent.ErrIdentityReused.Error())
		wantState(t, b, "bank/ann", `{"Balance":10,"Deposits":1}`)
	})
	t.Run("in one bound", func(t *testing.T) {
		t.Parallel()
		b := consistenttest.NewBroker()
		begun, goOn := make(chan struct{}), make(chan struct{})
		c := &memory{Conn: b.Connect("p")}
		c.store = func(_ consistent.StoreRequest, carryOut func() (client.StoreResult, error)) (client.StoreResult, error) {
			select {
			case begun <- struct{}{}:
				<-goOn
			case <-goOn:
			}
			return carryOut()
		}
		run(t, bank(t, c))
		b.Publish(first)
		<-begun
		b.Publish(second, first)
		close(goOn)
		settle(t, b)
		wantDeadLetters(t, b, consistent.ErrIdentityReused.Error())
		wantState(t, b, "bank/ann", `{"Balance":10,"Deposits":1}`)
	})
}

// A handler passes its message on, twice. Each copy has an identity of its own, so no
// consumer takes one for a duplicate of the other; a replay makes the same.
func TestMessagePassedOnTwice(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	c := &memory{Conn: b.Connect("p")}
	var tries atomic.Int64
	c.publish = func(ms []consistent.Message, carryOut func() error) error {
		if err := carryOut(); err != nil || tries.Add(1) == 1 {
			return errInjected
		}
		return nil
	}
	p := newProcessor(t, c, "splitter", quickly)
	_ = consistent.HandleByMessage(p, "in", func(m *consistent.Message) string { return m.Topic }, func(c *consistent.Context, _ int, _ deposit) (int, []consistent.Message, error) {
		one, two := *c.Message(), *c.Message()
		one.Topic, two.Topic = "deposits/one", "deposits/one"
		return 0, []consistent.Message{one, two}, nil
	})
	run(t, p)
	run(t, bank(t, b.Connect("bank")))
	m := message("1", deposit{"ann", 10})
	m.Topic = "in"
	b.Publish(m)
	settle(t, b)
	wantState(t, b, "bank/ann", `{"Balance":20,"Deposits":2}`)
	copies := b.Published("deposits/one")
	if len(copies) != 4 || fmt.Sprint(copies[:2]) != fmt.Sprint(copies[2:]) {
		t.Errorf("published %v, want two messages twice", copies)
	}
}

// The same value under another name of its Go type makes the same message.
func TestEventTypeIsNotTheNameOfAGoType(t *testing.T) {
	t.Parallel()
	type former struct{ Balance int }
	type renamed struct{ Balance int }
	if a, b := consistent.JSON("t", former{1}), consistent.JSON("t", renamed{1}); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("%v is not %v", a, b)
	}
	if got, _ := consistent.JSON("t", opened{}).UserProperties.Get("type"); got != "com.example.opened" {
		t.Errorf("an EventTyper's type is %q", got)
	}
}

type opened struct{}

func (opened) EventType() string { return "com.example.opened" }

// Two applications have a handler of the same name.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	for _, name := range []string{"", "north", "south"} {
		run(t, bank(t, b.Connect("p"+name), consistent.WithNamespace(name)))
	}
	b.Publish(message("1", deposit{"ann", 10}), consistent.Message{Topic: "deposits/x"})
	settle(t, b)
	ids := make(map[string]bool)
	for _, m := range b.Published("balances/ann") {
		id, _ := m.UserProperties.Get("id")
		source, _ := m.UserProperties.Get("source")
		ids[id] = true
		ids[source] = true
	}
	for _, want := range []string{"bank", "north/bank", "south/bank"} {
		if !ids[want] || len(ids) != 6 {
			t.Errorf("identities and sources %v; want %s, and six in all", ids, want)
		}
	}
	for _, key := range []string{"bank/ann", "/north/bank/ann", "/south/bank/ann"} {
		wantState(t, b, key, `{"Balance":10,"Deposits":1}`)
	}
	for _, topic := range []string{"dead-letters/bank", "dead-letters/north/bank", "dead-letters/south/bank"} {
		if n := len(b.Published(topic)); n != 1 {
			t.Errorf("%d dead letters on %s, want 1", n, topic)
		}
	}
}
