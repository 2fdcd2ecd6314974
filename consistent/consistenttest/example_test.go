package consistenttest_test

import (
	"testing"

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
