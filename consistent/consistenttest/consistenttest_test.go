package consistenttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

type deposit struct {
	Account string
	Amount  int
}

type account struct{ Balance, Deposits int }

func book(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
	s.Balance += d.Amount
	s.Deposits++
	return s, []consistent.Message{
		consistent.JSON("balances/"+d.Account, s.Balance),
		consistent.JSON("receipts/"+d.Account, c.ID()),
	}, nil
}

func accountOf(d deposit) string { return d.Account }

func bank(p *consistent.Processor) {
	_ = consistent.Handle(p, "deposits/+", accountOf, book)
}

func deposits(id string, d deposit) consistent.Message {
	return consistenttest.Event(id, consistent.JSON("deposits/"+d.Account, d))
}

func TestHandlerWithoutBroker(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "bank", bank)
	m := deposits("1", deposit{"ann", 10})
	test.Send(m, m)
	test.Send(deposits("2", deposit{"ann", 5}))
	test.Send(consistent.Message{Topic: "deposits/ann"})
	if got := test.Published("balances/+"); len(got) != 2 || string(got[1].Payload) != "15" {
		t.Errorf("published %v", got)
	}
	var s account
	test.State("bank", "ann", &s)
	if s != (account{15, 2}) {
		t.Errorf("state %+v", s)
	}
	if got := test.DeadLetters(); len(got) != 1 || !strings.Contains(got[0], "no identity") {
		t.Errorf("dead letters %q", got)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	test := consistenttest.Replay(t, "bank", bank, []consistent.Message{deposits("1", deposit{"ann", 10}), deposits("2", deposit{"ann", 1})})
	if got := test.Published("balances/ann"); len(got) != 2 || string(got[1].Payload) != "11" {
		t.Errorf("published %v", got)
	}
}

// failures stands for the test that a handler is to fail.
type failures struct {
	testing.TB
	said []string
}

func (f *failures) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func TestReplayFindsAHandlerThatIsNotDeterministic(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	f := &failures{TB: t}
	consistenttest.Replay(f, "test", func(p *consistent.Processor) {
		_ = consistent.Handle(p, "in", func(int) string { return "k" }, func(_ *consistent.Context, s int, m int) (int, []consistent.Message, error) {
			return s, []consistent.Message{consistent.JSON("out", runs.Add(1))}, nil
		})
	}, []consistent.Message{consistenttest.Event("1", consistent.JSON("in", 1))})
	if len(f.said) != 1 || !strings.Contains(f.said[0], "another payload") {
		t.Errorf("said %q", f.said)
	}
}

// Three instances in a group on a connection with every fault, one of which dies and
// comes back now and then; each message takes effect once, and all publications for it
// are the same.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	const messages, accounts = 1000, 7
	b := consistenttest.NewBroker()
	live := func(name string, seed uint64) (end func()) {
		conn := b.Connect(name)
		p, err := consistent.New(consistenttest.WithFaults(conn, seed, consistenttest.Everything()), "bank",
			consistent.WithShare("g"), consistent.WithBackoff(time.Microsecond, time.Millisecond), consistent.WithDrainTimeout(time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		bank(p)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		<-p.Subscribed()
		return func() {
			_ = conn.Close()
			cancel()
			<-ended
		}
	}
	defer live("a", seed)()
	defer live("b", seed+1)()
	for i := range messages {
		if i%100 == 0 {
			end := live("c", seed+uint64(i))
			defer end()
		}
		m := deposits(fmt.Sprint(i), deposit{fmt.Sprint(i % accounts), 1})
		b.Publish(m)
		if i%10 == 0 {
			b.Publish(m)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	published := make(map[string]string)
	for _, m := range append(b.Published("balances/+"), b.Published("receipts/+")...) {
		id, _ := m.UserProperties.Get("id")
		if before, seen := published[id]; seen && before != fmt.Sprint(m) {
			t.Errorf("published for one message:\n%s\n%s", before, fmt.Sprint(m))
		}
		published[id] = fmt.Sprint(m)
	}
	if len(published) != 2*messages {
		t.Errorf("%d different outputs for %d messages", len(published), messages)
	}
	for a := range accounts {
		want := (messages + accounts - 1 - a) / accounts
		if s, _ := b.State(fmt.Sprintf("bank/%d", a)); string(s) != fmt.Sprintf(`{"Balance":%d,"Deposits":%d}`, want, want) {
			t.Errorf("account %d: %s, want %d", a, s, want)
		}
	}
}

// A duplicate that waits behind another message of its key fails on the state that this
// one leaves, and didn't on its own: it is still a duplicate, and no dead letter.
func TestDuplicateInLineFailsOnTheNextState(t *testing.T) {
	t.Parallel()
	waiting := make(chan struct{})
	test := consistenttest.New(t, "test", func(p *consistent.Processor) {
		_ = consistent.HandleByMessage(p, "in/+", func(m *consistent.Message) string { return m.Topic }, func(_ *consistent.Context, spent bool, m string) (bool, []consistent.Message, error) {
			switch {
			case m == "signal":
				close(waiting)
			case m == "slow":
				<-waiting
			case spent:
				return spent, nil, consistent.Terminal(errors.New("spent already"))
			default:
				return true, []consistent.Message{consistent.JSON("out", m)}, nil
			}
			return spent, nil, nil
		})
	})
	spend := consistenttest.Event("1", consistent.JSON("in/a", "spend"))
	test.Send(spend)
	// Messages are delivered in order: when the signal is handled, the duplicate is in line.
	test.Send(
		consistenttest.Event("2", consistent.JSON("in/a", "slow")), spend,
		consistenttest.Event("3", consistent.JSON("in/b", "signal")),
	)
	if got := test.DeadLetters(); len(got) > 0 {
		t.Errorf("dead letters %q", got)
	}
}
