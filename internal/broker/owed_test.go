package broker

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// The power fails while a new subscription of a durable session is being sent what
// is retained. After the start the rest comes, each message once, and what has been
// published since comes once, too.
func TestPowerLossWhileRetainedMessagesAreOwed(t *testing.T) {
	t.Parallel()
	const count, window, rounds = 3*session.ReplayAhead + 10, 20, 5
	fs := newCrashes()
	n := run(t, fs, Limits{MaxInflight: window})
	retain(n, count)
	publisher := n.connect()

	// Given a subscriber that takes part of what is retained,
	fs.record()
	c := n.connect(mqtttest.Persistent("late"), mqtttest.HoldAcks())
	c.Subscribe("kept/#", 1)
	fs.acked.Store(1) // the subscription is
	var taken []string
	for range rounds {
		for _, m := range c.ReceiveN(window) {
			fs.acked.Add(1)
			taken = append(taken, m.Topic)
			c.Acknowledge(m)
		}
		// while one that it hasn't got yet is replaced.
		publisher.Publish(publication{Topic: fmt.Sprintf("kept/%03d", count-1), Payload: "changed", QoS: 1, Retain: true})
	}
	c.Drop()
	left := fs.stop()

	for crash := 0; crash < len(left); crash += 1 + len(left)/20 {
		acked := int(fs.ackedAt[crash]) - 1
		if acked < 0 {
			continue
		}
		// Then whatever it hadn't taken at the crash comes after it, and nothing twice.
		times := map[string]int{}
		for _, topic := range taken[:acked] {
			times[topic] = 1
		}
		n := run(t, left[crash], Limits{MaxInflight: window})
		for _, m := range drain(n.connect(mqtttest.Persistent("late"))) {
			if m.Payload == "changed" {
				continue // as often as it was published
			}
			if times[m.Topic]++; times[m.Topic] > 1 && !m.Dup {
				t.Errorf("crash %d: %s came twice", crash, m.Topic)
			}
		}
		for i := range count - 1 {
			if topic := fmt.Sprintf("kept/%03d", i); times[topic] == 0 {
				t.Errorf("crash %d of %d, after %d were acknowledged: %s never came", crash, len(left), acked, topic)
			}
		}
		n.stop()
	}
}

// What a subscription is owed waits through a clean restart, too, and is forgotten
// with the subscription. When all has been sent nothing of it is left on disk.
func TestRetainedMessagesOwedSurviveARestart(t *testing.T) {
	t.Parallel()
	const count = 200
	fs := newCrashes()
	n := run(t, fs, Limits{MaxInflight: 10})
	retain(n, count)
	for _, id := range []string{"stays", "leaves"} {
		c := n.connect(mqtttest.Persistent(id), mqtttest.HoldAcks())
		c.Subscribe("kept/#", 1)
		c.ReceiveN(10)
		c.Disconnect()
	}
	n.stop()

	n = run(t, fs, Limits{MaxInflight: 10})
	leaves := n.connect(mqtttest.Persistent("leaves"), mqtttest.HoldAcks())
	leaves.Unsubscribe("kept/#")
	leaves.Disconnect()
	n.stop()

	n = run(t, fs, Limits{MaxInflight: 10})
	if got := drain(n.connect(mqtttest.Persistent("stays"))); len(got) != count {
		t.Errorf("%d messages came, %d are retained", len(got), count)
	}
	if got := drain(n.connect(mqtttest.Persistent("leaves"))); len(got) >= count {
		t.Errorf("all %d messages came although the subscription has ended", len(got))
	}
	inventory, err := rows.Check(n.journal, func(problem string) { t.Error(problem) })
	if err != nil || inventory.Owed != 0 {
		t.Errorf("%d rows say that something is owed, %v", inventory.Owed, err)
	}
}

// A client that takes no retained messages, and subscribes and unsubscribes again and again,
// makes the broker remember no more than what its subscriptions are owed; and those get it.
func TestRepeatedSubscriptionsAreOwedOnce(t *testing.T) {
	t.Parallel()
	const count, rounds = 2 * session.ReplayAhead, 50
	for _, opts := range [][]mqtttest.Option{{mqtttest.ClientID("c")}, {mqtttest.Persistent("c")}} {
		n := run(t, vfs.NewMem(), Limits{MaxInflight: 10})
		retain(n, count)
		c := n.connect(append(opts, mqtttest.HoldAcks())...)
		c.Subscribe("kept/#", 1) // more than there is room for in the queue
		for i := range rounds {
			filter := fmt.Sprintf("kept/%03d", i)
			c.Subscribe("+/+", 1)
			c.Subscribe(filter, 1)
			c.Unsubscribe(filter)
		}
		s := n.broker.Sessions.Lookup("c")
		s.Mu.Lock()
		owed, subscriptions := s.Replays.Len(), len(s.Subs)
		s.Mu.Unlock()
		if owed > 2*subscriptions {
			t.Errorf("%d replays for %d subscriptions", owed, subscriptions)
		}
		times, twice := map[string]int{}, 0
		for twice < count {
			m := c.Receive()
			c.Acknowledge(m)
			if times[m.Topic]++; times[m.Topic] == 2 {
				twice++
			}
		}
		until(t, "all that was owed to be forgotten", func() bool {
			inventory, err := rows.Check(n.journal, func(string) {})
			return err == nil && inventory.Owed == 0
		})
		n.stop()
	}
}

// The will of a client whose session ends with its connection is on disk: after a
// crash, which has ended all sessions of that kind, it is published.
func TestPowerLossPublishesWills(t *testing.T) {
	t.Parallel()
	fs := newCrashes()
	n := run(t, fs, Limits{})
	c := n.connect(mqtttest.Persistent("watcher"))
	c.Subscribe("gone/#", 1)
	will := func(id string) mqtttest.Option {
		return mqtttest.Will(publication{Topic: "gone/" + id, Payload: id, QoS: 1, Retain: true}, 0)
	}
	// Given clients that are connected, that have left with a word, and that have come again.
	n.connect(mqtttest.ClientID("a"), will("a"))
	n.connect(mqtttest.ClientID("b"), will("b")).Disconnect()
	n.connect(mqtttest.ClientID("c"), will("c")).Disconnect()
	// A DISCONNECT isn't acknowledged. What is acknowledged after it is on disk behind it.
	n.connect(mqtttest.ClientID("c")).Publish(publication{Topic: "fence", Payload: "x", QoS: 1, Retain: true})
	// When the power fails, then the wills of the former are published, once.
	crashed := fs.clone()
	for range 2 {
		n = run(t, crashed, Limits{})
		watcher := n.connect()
		watcher.Subscribe("gone/#", 1)
		for len(drain(watcher)) == 0 { // the will follows upon the start
		}
		n.stop()
	}
	n = run(t, crashed, Limits{})
	if got := mqtttest.Payloads(drain(n.connect(mqtttest.Persistent("watcher")))); len(got) != 1 || got[0] != "a" {
		t.Errorf("got the wills %q, want a's", got)
	}
	n.stop()
}

// retain has n messages retained, on kept/000, kept/001 and so on.
func retain(n *node, count int) {
	n.t.Helper()
	publisher := n.connect()
	for i := range count {
		topic := fmt.Sprintf("kept/%03d", i)
		publisher.Publish(publication{Topic: topic, Payload: topic, QoS: 1, Retain: true})
	}
	publisher.Disconnect()
}

// drain takes and acknowledges all that comes.
func drain(c *mqtttest.Client) (got []publication) {
	for {
		more := c.Collect()
		if len(more) == 0 {
			return got
		}
		got = append(got, more...)
	}
}
