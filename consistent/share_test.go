package consistent_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// Where the topic names the key and the group has the strategy hash-topic, each instance gets its
// part of the keys: none changes a state of another one, each state is loaded once, and the keys of
// an instance that leaves go to the others.
func TestEachInstanceGetsItsPartOfTheKeys(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) {
		c.Limits.SharedStrategies = map[string]limits.Strategy{"bank": limits.HashTopic}
	}).Addr
	counted := [2]*counts{{}, {}}
	var conns [2]*consistent.Connection
	var stops [2]func()
	for i, m := range counted {
		conns[i] = dial(t, addr, client.WithClientID(fmt.Sprint("instance-", i)))
		stops[i] = run(t, atOnce(t, conns[i], consistent.WithShare("bank"), consistent.WithMetrics(m), consistent.WithTimeout(patience)))
	}
	o := observe(t, addr, "balances/+")
	round := 0
	play := func() {
		var batch []consistent.Message
		for i := range accounts {
			batch = append(batch, message(fmt.Sprint(round, "/", i), deposit{accountNo(i), 1}))
		}
		round++
		o.publish(t, batch...)
		for range accounts {
			o.next(t)
		}
	}
	for range 5 {
		play()
	}
	mine, others := counted[0].get(consistent.CountLoaded), counted[1].get(consistent.CountLoaded)
	if mine+others != accounts {
		t.Errorf("%d and %d states were loaded, want each of %d once", mine, others, accounts)
	}
	stops[0]()
	if err := conns[0].Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range 2 {
		play()
	}
	if got := counted[1].get(consistent.CountLoaded); got != accounts {
		t.Errorf("the instance that stays has loaded %d states, want the %d that it had, and the %d of the other one", got, others, mine)
	}
	for i, m := range counted {
		if n := m.get(consistent.CountConflict); n > 0 {
			t.Errorf("instance %d had %d conflicts", i, n)
		}
	}
	expectBalances(t, conns[1], round, 0)
}
