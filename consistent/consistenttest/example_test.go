package consistenttest_test

import (
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

func ExampleReplay() {
	_ = func(t *testing.T) { // a test of yours
		test := consistenttest.Replay(t, "bank", func(p *consistent.Processor) {
			_ = consistent.Handle(p, "deposits/+", accountOf, book)
		}, []consistent.Message{
			consistenttest.Event("1", consistent.JSON("deposits/ann", deposit{"ann", 10})),
			consistenttest.Event("2", consistent.JSON("deposits/ann", deposit{"ann", 5})),
		})
		var ann account
		test.State("bank", "ann", &ann)
		if ann.Balance != 15 {
			t.Errorf("the balance is %d", ann.Balance)
		}
	}
}

// A program crashes behind its commit, and another version of it publishes what was committed.
func ExampleInstance_CrashAtCommit() {
	_ = func(t *testing.T) { // a test of yours
		test := consistenttest.New(t, "bank", bank)
		test.Instance().CrashAtCommit()
		test.Broker.Publish(consistenttest.Event("1", consistent.JSON("deposits/ann", deposit{"ann", 10})))
		<-test.Instance().Ended()
		test.Start("processor", bankOf(2)) // under the same name, so it gets the message
		test.Send()
		if got := test.Published("balances/ann"); len(got) != 1 || string(got[0].Payload) != "10" {
			t.Errorf("published %v", got)
		}
	}
}

// A saga ends when its time is over.
func ExampleBroker_Advance() {
	_ = func(t *testing.T) { // a test of yours
		test := consistenttest.New(t, "saga", func(p *consistent.Processor) {
			_ = consistent.Handle(p, "orders", func(id string) string { return id }, func(c *consistent.Context, n int, _ string) (int, []consistent.Message, error) {
				c.ExpireIn(time.Hour)
				return n + 1, nil, nil
			})
		})
		test.Send(consistenttest.Event("1", consistent.JSON("orders", "4711")))
		test.Broker.Advance(time.Hour + time.Millisecond)
		if _, found := test.Broker.State("saga/4711"); found {
			t.Error("the state is still there")
		}
	}
}
