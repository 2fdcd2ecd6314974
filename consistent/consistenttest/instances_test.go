package consistenttest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// Two instances and the one of New get every message, and each takes effect once; one of them
// is killed and started again meanwhile.
func TestSeveralInstances(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "bank", bank)
	test.Start("second", bank).Kill()
	test.Start("second", bank)
	shared := test.Start("third", bank, consistent.WithShare("tellers"))
	for i := range 100 {
		test.Send(deposits(fmt.Sprint(i), deposit{"ann", 1}))
	}
	shared.Stop()
	test.Instance().Stop()
	var s account
	test.State("bank", "ann", &s)
	if s != (account{100, 100}) {
		t.Errorf("state %+v", s)
	}
}

// bankOf is the bank of another version: it charges 1 for each deposit, but not when it replays
// one that a former version has processed.
func bankOf(version uint32) func(*consistent.Processor) {
	return func(p *consistent.Processor) {
		_ = consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
			s.Deposits++
			s.Balance += d.Amount
			if c.Version() >= 2 {
				s.Balance--
			}
			return s, []consistent.Message{consistent.JSON("balances/"+d.Account, s.Balance)}, nil
		}, consistent.WithVersion(version))
	}
}

// A version of the program crashes between commit and publishing; the next one takes over, and
// a rollback to the former one follows. Each output is published as it was committed.
func TestUpgradeAndRollback(t *testing.T) {
	t.Parallel()
	for name, path := range map[string][]consistent.Option{"by transactions": nil, "by replays": {consistent.Replay()}} {
		t.Run(name, func(t *testing.T) { upgradeAndRollback(t, path) })
	}
}

func upgradeAndRollback(t *testing.T, path []consistent.Option) {
	test := consistenttest.New(t, "bank", bankOf(1), path...)
	for i, next := range []uint32{2, 1, 2} {
		in := test.Instance()
		if i > 0 {
			in = test.Start("processor", bankOf([]uint32{2, 1}[i-1]), path...)
		}
		in.CrashAtCommit()
		test.Broker.Publish(deposits(fmt.Sprint(i), deposit{"ann", 10}))
		<-in.Ended()
		after := test.Start("processor", bankOf(next), path...)
		test.Send() // what the crashed one had
		after.Stop()
	}
	var balances []string
	for _, m := range test.Published("balances/ann") {
		balances = append(balances, string(m.Payload))
	}
	if got := strings.Join(balances, " "); got != "10 19 29" {
		t.Errorf("balances %s, want 10 (version 1), 19 (version 2), 29 (version 1 again)", got)
	}
	if got := test.DeadLetters(); len(got) > 0 {
		t.Errorf("dead letters %q", got)
	}
}

// A state expires when the test says that its time is over.
func TestTimeMoves(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "saga", func(p *consistent.Processor) {
		_ = consistent.Handle(p, "in", func(string) string { return "k" }, func(c *consistent.Context, n int, _ string) (int, []consistent.Message, error) {
			c.ExpireIn(time.Hour)
			return n + 1, []consistent.Message{consistent.JSON("out", c.Now())}, nil
		})
	})
	begin := test.Broker.Now()
	for i, step := range []struct {
		wait time.Duration
		want int
	}{{0, 1}, {59 * time.Minute, 2}, {time.Hour + time.Millisecond, 1}} {
		test.Broker.Advance(step.wait)
		begin = begin.Add(step.wait)
		test.Send(consistenttest.Event(fmt.Sprint(i), consistent.JSON("in", "x")))
		var n int
		test.State("saga", "k", &n)
		out := test.Published("out")
		if want := begin.UTC().Format(`"` + time.RFC3339Nano + `"`); n != step.want || string(out[i].Payload) != want {
			t.Errorf("after %v the state is %d, want %d; the time was %s, want %s", step.wait, n, step.want, out[i].Payload, want)
		}
	}
	test.Broker.Advance(time.Hour + time.Millisecond)
	if s, found := test.Broker.State("saga/k"); found {
		t.Errorf("the state is %s, and its time is over", s)
	}
}

// A duplicate that comes after its message was forgotten is a new message, unless its time
// says how old it is.
func TestKeepRunsOut(t *testing.T) {
	t.Parallel()
	const keep = 48 * time.Hour
	test := consistenttest.New(t, "bank", bank, consistent.WithKeep(keep))
	timeless := deposits("1", deposit{"ann", 10})
	dated := consistenttest.SentAt(test.Broker.Now(), deposits("2", deposit{"ann", 10}))
	test.Send(timeless, dated)
	test.Broker.Advance(keep)
	test.Send(timeless, dated)
	var s account
	test.State("bank", "ann", &s)
	if s.Deposits != 2 {
		t.Errorf("%d deposits while messages are remembered, want 2", s.Deposits)
	}
	test.Broker.Advance(10 * time.Minute) // and the skew of 5 minutes
	test.Send(timeless, dated)
	test.State("bank", "ann", &s)
	if got := test.DeadLetters(); s.Deposits != 3 || len(got) != 1 || !strings.Contains(got[0], consistent.ErrTooOld.Error()) {
		t.Errorf("%d deposits, want 3; dead letters %q, want the one that says its time", s.Deposits, got)
	}
}

// A broker that remembers messages for too short a time is refused.
func TestRememberAtMost(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	b.RememberAtMost(time.Hour)
	p, err := consistent.New(b.Connect("p"), "bank", consistent.WithKeep(2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	bank(p)
	if err := p.Run(t.Context()); !errors.Is(err, consistent.ErrKeepTooShort) {
		t.Errorf("Run: %v", err)
	}
}

// An instance whose clock is behind takes messages for messages of the future.
func TestClocks(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "bank", bank)
	test.Instance().Stop()
	m := consistenttest.SentAt(test.Broker.Now(), deposits("1", deposit{"ann", 10}))
	behind := test.Start("processor", bank, test.ClockAhead(-10*time.Minute))
	test.Send(m)
	if got := test.DeadLetters(); len(got) != 1 || !strings.Contains(got[0], consistent.ErrTimeAhead.Error()) {
		t.Errorf("dead letters %q", got)
	}
	behind.Stop()
	test.Start("processor", bank, test.ClockAhead(4*time.Minute))
	test.Send(m)
	var s account
	test.State("bank", "ann", &s)
	if s.Deposits != 1 {
		t.Errorf("%d deposits, want 1", s.Deposits)
	}
}
