package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// keptFor is a message to be retained that expires after so many seconds.
func keptFor(topic string, seconds uint32) publication {
	return publication{Topic: topic, Payload: topic, QoS: 1, Retain: true, Expiry: &seconds}
}

func (n *node) retained() int { return n.broker.Levels().Retained }

// Messages that have expired don't keep new ones out, although there is no subscriber
// that would come across them.
func TestExpiredRetainedMessagesMakeRoom(t *testing.T) {
	t.Parallel()
	const bound = 10
	n := run(t, vfs.NewMem(), Limits{MaxRetained: bound, MaxClientRetained: bound})
	c := n.connect(mqtttest.ClientID("c"))
	until(t, "the clock to run", func() bool { return n.broker.Now() > 0 }) // nothing expires in its first millisecond
	c.Publish(keptFor("stays", 1000))
	c.Publish(publication{Topic: "stays for ever", Payload: "x", QoS: 1, Retain: true})
	for i := range 3 * bound { // each of them is over as soon as it is there
		if ack := c.Offer(keptFor(fmt.Sprint("short/", i), 0)); ack.Code.Failed() {
			t.Fatalf("message %d: %v %s", i, ack.Code, ack.ReasonString)
		}
	}
	until(t, "what has expired to go", func() bool { return n.retained() == 2 })
	for i := range bound - 2 {
		if ack := c.Offer(keptFor(fmt.Sprint("long/", i), 1000)); ack.Code.Failed() {
			t.Fatalf("message %d of those that last: %v %s", i, ack.Code, ack.ReasonString)
		}
	}
	if ack := c.Offer(keptFor("one more", 1000)); ack.Code != mqtt.QuotaExceeded {
		t.Errorf("beyond the bound with nothing expired: %v, want %v", ack.Code, mqtt.QuotaExceeded)
	}
}

// Whatever is stored, replaced and deleted: what is over at a time goes, and nothing else.
func TestOnlyWhatHasExpiredIsRemoved(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	c := n.connect()
	random := rand.New(rand.NewPCG(1, 2))
	deadlines := map[string]uint32{} // in seconds from the beginning, about; 0: never
	for range 600 {
		topic := fmt.Sprint("topic/", random.IntN(150))
		switch random.IntN(6) {
		case 0:
			c.Publish(publication{Topic: topic, QoS: 1, Retain: true})
			delete(deadlines, topic)
		case 1:
			c.Publish(publication{Topic: topic, Payload: topic, QoS: 1, Retain: true})
			deadlines[topic] = 0
		default:
			seconds := 1000 * (1 + random.Uint32N(20))
			c.Publish(keptFor(topic, seconds))
			deadlines[topic] = seconds
		}
	}
	began := n.broker.Now()
	for at := uint32(500); at <= 20_500; at += 1000 { // halfway between two deadlines
		for n.broker.Retained.Expire(began+int64(at)*1000, 7) {
			continue
		}
		for topic, deadline := range deadlines {
			if deadline != 0 && deadline < at {
				delete(deadlines, topic)
			} else if _, found := n.broker.Retained.Get([]byte(topic)); !found {
				t.Fatalf("%s is gone at second %d; it lasts to second %d", topic, at, deadline)
			}
		}
		if n.retained() != len(deadlines) {
			t.Fatalf("%d messages are retained at second %d, want %d", n.retained(), at, len(deadlines))
		}
	}
}

// What has expired goes from the disk, too, also if it was stored before a restart.
func TestExpiredRetainedMessagesLeaveTheDisk(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	n := run(t, fs, Limits{})
	c := n.connect()
	c.Publish(keptFor("long", 100_000))
	for i := range 20 {
		c.Publish(keptFor(fmt.Sprint("short/", i), 1000))
	}
	n.stop()

	const hour = 3_600_000
	later := func(ms int64) func() int64 { return func() int64 { return time.Now().UnixMilli() + ms } }
	start := func(ms int64) {
		n = run(t, fs, Limits{}, func(_ *journal.Options, o *Options) { o.WallMs = later(ms) })
	}
	start(0)
	if n.retained() != 21 {
		t.Fatalf("%d messages after a restart, want 21", n.retained())
	}
	for n.broker.Retained.Expire(n.broker.Now()+hour, 3) {
		continue
	}
	n.stop()
	start(0) // with the clock as it was: nothing that is there has expired
	if n.retained() != 1 {
		t.Errorf("%d messages after another restart, want the one that lasts", n.retained())
	}
	n.stop()
	start(100 * hour)
	until(t, "what has expired while the server was stopped to go", func() bool { return n.retained() == 0 })
}

// A connection whose client takes its output again is fed by a flusher, which others
// need, too: it must not walk through retained messages.
func TestDrainedOutputLeavesRetainedMessagesToOthers(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	const count = 3 * session.ReplayAhead
	publisher := n.connect()
	for i := range count {
		publisher.Publish(publication{Topic: fmt.Sprintf("kept/%03d", i), Payload: "x", QoS: 1, Retain: true})
	}

	// Given a session that is owed many retained messages,
	c := n.connect(mqtttest.ClientID("c"))
	c.Subscribe("other", 1)
	conn := n.connOf("c")
	s := conn.session
	owe := func() {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		sub := *s.Subs["other"]
		sub.Filter = "kept/#"
		r := n.broker.NewReplay(&sub)
		s.AddReplays(r)
	}
	stripe := n.broker.Retained.LockOf([]byte("kept/000"))
	for name, feed := range map[string]func(){
		"a drained output": conn.drained,
		"the committer": func() {
			t := n.broker.LockDeferred()
			t.Feed = append(t.Feed, s)
			n.broker.UnlockDeferred()
			n.broker.FlushDeferred()
		},
	} {
		// while the first of them can't be read,
		stripe.Lock()
		owe()
		done := make(chan struct{})
		go func() { feed(); close(done) }()
		// the goroutine that feeds it goes on at once,
		select {
		case <-done:
		case <-time.After(mqtttest.Deadline):
			t.Errorf("%s walks through retained messages", name)
		}
		// and they come nevertheless.
		stripe.Unlock()
		c.ReceiveN(count)
	}
}
