package broker

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

type publication = mqtttest.Message

// A member of a shared subscription has messages that it was not sent, some of
// them in other queues too, when its session ends. Whenever the machine crashes
// from then on, the broker starts, and the other member has each of them.
func TestSharedMessagesOutliveTheirMembersSessionAtAnyCrash(t *testing.T) {
	t.Parallel()
	for round := range 5 {
		fs := newCrashes()
		n := run(t, fs, Limits{})
		away := n.connect(mqtttest.Persistent("away"))
		away.Subscribe("shared", 1)
		away.Disconnect()
		leaving := n.connect(mqtttest.Persistent("leaving"), mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
		leaving.Subscribe("$share/group/shared", 1)
		other := n.connect(mqtttest.Persistent("other"))
		other.Subscribe("$share/group/shared", 1)
		other.Disconnect()
		const count = 10
		publisher := n.connect()
		for i := range count {
			publisher.Publish(publication{Topic: "shared", Payload: fmt.Sprint(i), QoS: 1})
		}
		// The queue that holds them besides goes first.
		n.connect(mqtttest.ClientID("away")).Disconnect()

		fs.record()
		leaving.Drop()
		n.connect(mqtttest.ClientID("leaving")).Disconnect()
		publisher.Publish(publication{Topic: "shared", Payload: "last", QoS: 1})
		left := fs.stop()

		for i, fs := range left {
			n := run(t, fs, Limits{})
			back := n.connect(mqtttest.Persistent("leaving")) // its session may not have ended yet
			other := n.connect(mqtttest.Persistent("other"))
			got := map[string]bool{}
			for _, m := range append(other.Collect(), back.Collect()...) {
				got[m.Payload] = true
			}
			for j := range count {
				if !got[fmt.Sprint(j)] {
					t.Errorf("round %d, crash %d of %d: message %d is lost", round, i, len(left), j)
				}
			}
			n.stop()
		}
	}
}

// Routing has put a message into a member's queue and is about to journal it
// when the member's session ends: it goes to the group, and is on disk before
// the publisher hears that it is.
func TestSharedMessageOfASessionThatEndsBeforeItIsSaved(t *testing.T) {
	t.Parallel()
	fs := newCrashes()
	n := run(t, fs, Limits{})
	b := n.broker
	other := n.connect(mqtttest.Persistent("other"))
	other.Subscribe("$share/group/shared", 2)
	other.Disconnect()
	member := n.connect(mqtttest.Persistent("member"))
	member.Subscribe("$share/group/shared", 2)

	turn := b.NewTurn()
	o := message.Outgoing{Topic: []byte("shared"), Payload: []byte("x"), QoS: 2}
	b.Route(turn, &o)
	o.Done()
	if len(turn.Saves) != 1 || turn.Saves[0].Session != b.Sessions.Lookup("member") {
		t.Fatal("the connected member was not chosen")
	}
	ending := b.NewTurn()
	b.EndOverflowed(ending, b.Sessions.Lookup("member"))
	ending.End()
	batch := b.Commit(turn, nil)
	turn.End()
	b.WaitDurable(batch)

	n = run(t, fs.stop()[0], Limits{})
	other = n.connect(mqtttest.Persistent("other"))
	if got := other.Receive(); got.Payload != "x" {
		t.Errorf("got %v", got)
	}
	if queued := b.Stats().Queued.Load(); queued != 1 {
		t.Errorf("%d messages count as queued, want the one in the backlog", queued)
	}
}

// A message goes from the backlog to a member whose session ends before that is journaled.
// The machine crashes right after that batch, before the one that takes it back: the
// other member gets it.
func TestBacklogMessageOfASessionThatEndsBeforeItIsSaved(t *testing.T) {
	t.Parallel()
	fs := newCrashes()
	n := run(t, fs, Limits{})
	b := n.broker
	other := n.connect(mqtttest.Persistent("other"))
	other.Subscribe("$share/group/shared", 2)
	other.Disconnect()
	publisher := n.connect()
	publisher.Publish(publication{Topic: "shared", Payload: "0", QoS: 2})
	publisher.Publish(publication{Topic: "shared", Payload: "1", QoS: 2})
	g := b.Groups["group/shared"]
	if g.Messages != 2 {
		t.Fatalf("%d messages wait for a member, want 2", g.Messages)
	}
	g.Dispatching = true // by us, below
	member := n.connect(mqtttest.Persistent("member"))
	member.Subscribe("$share/group/shared", 2)

	turn := b.NewTurn()
	seq, m := g.First()
	o := m.Outgoing()
	if !g.Offer(turn, &o) || len(turn.Saves) != 1 || turn.Saves[0].Session != b.Sessions.Lookup("member") {
		t.Fatal("the connected member was not chosen")
	}
	ending := b.NewTurn()
	b.EndOverflowed(ending, b.Sessions.Lookup("member"))
	ending.End()
	sv := &turn.Saves[0] // what commit does first
	a := b.Journal.Begin()
	a.Set(rows.QueueKey(sv.SID, sv.Seq), sv.Slot.AppendRow(nil, 0, 0, b.Wall()))
	a.Delete(rows.QueueKey(g.SID, seq))
	b.WaitDurable(a.End(nil))

	n = run(t, fs.stop()[0], Limits{})
	other = n.connect(mqtttest.Persistent("other"))
	if got := mqtttest.Payloads(other.ReceiveN(2)); fmt.Sprint(got) != "[0 1]" {
		t.Errorf("got %v", got)
	}
	if more := other.Collect(); len(more) > 0 {
		t.Errorf("got %v again", more)
	}
	o.Done()
	turn.Saves = nil
	turn.End()
}

// The row of a message that has just gone from a backlog may be deleted after
// another message has come to the front: it must not have the same number.
func TestBacklogNumbersAreNotGivenTwice(t *testing.T) {
	t.Parallel()
	n := run(t, newCrashes(), Limits{})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/shared", 1)
	g := n.broker.Groups["group/shared"]
	turn := n.broker.NewTurn()
	defer turn.End()
	seen := map[uint64]bool{}
	for i := range 10 {
		m := message.New(8)
		if i%2 == 0 {
			g.Add(turn, m)
		} else {
			g.Requeue(turn, m)
		}
		g.Mu.Lock()
		seq := g.Head[0].Seq
		g.Mu.Unlock()
		if seen[seq] {
			t.Fatalf("message %d has the number %d of another", i, seq)
		}
		seen[seq] = true
		g.Pop(turn, seq)
	}
}

// While a message from the backlog is given to a member, another member hands one
// back, which comes before it: the first is gone from the backlog all the same, and
// no member gets it again.
func TestMessageGivenWhileAnotherIsHandedBack(t *testing.T) {
	t.Parallel()
	n := run(t, newCrashes(), Limits{})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/shared", 2)
	c.Disconnect()
	n.connect().Publish(publication{Topic: "shared", Payload: "given", QoS: 2})
	g := n.broker.Groups["group/shared"]
	turn := n.broker.NewTurn()
	defer turn.End()

	seq, given := g.First()
	given.Release()
	g.Requeue(turn, message.New(8))
	g.Pop(turn, seq)

	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.Find(seq) != nil || g.Messages != 1 {
		t.Errorf("%d messages wait, want the one that was handed back", g.Messages)
	}
}

// What a member has not acknowledged stays in its queue when its membership ends, without
// the filter, which is not charged any more; and the session gets it again.
func TestUnacknowledgedMessagesKeepNoFilter(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	n := run(t, fs, Limits{})
	c := n.connect(mqtttest.Persistent("member"), mqtttest.HoldAcks())
	c.Subscribe("$share/group/shared", 2)
	publisher := n.connect()
	for qos := byte(1); qos <= 2; qos++ {
		publisher.Publish(publication{Topic: "shared", Payload: fmt.Sprint("at QoS ", qos), QoS: qos})
		c.Receive()
	}
	c.Unsubscribe("$share/group/shared")
	s := n.broker.Sessions.Lookup("member")
	held := 0
	s.Mu.Lock()
	s.Routed.Each(func(it *queue.Slot) {
		held++
		if filter := it.Share.Filter(); filter != "" {
			t.Errorf("a message that is not acknowledged keeps the filter %q", filter)
		}
	})
	s.Mu.Unlock()
	if held != 2 {
		t.Errorf("%d messages are held, want both", held)
	}
	c.Disconnect()
	n.stop()

	n = run(t, fs, Limits{})
	c = n.connect(mqtttest.Persistent("member"))
	if got := mqtttest.Payloads(c.ReceiveN(2)); fmt.Sprint(got) != "[at QoS 1 at QoS 2]" {
		t.Errorf("got %q again", got)
	}
}
