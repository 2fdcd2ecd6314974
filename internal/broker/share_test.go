package broker

import (
	"fmt"
	"testing"

	"holdfast/internal/mqtttest"
)

type message = mqtttest.Message

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
			publisher.Publish(message{Topic: "shared", Payload: fmt.Sprint(i), QoS: 1})
		}
		// The queue that holds them besides goes first.
		n.connect(mqtttest.ClientID("away")).Disconnect()

		fs.record()
		leaving.Drop()
		n.connect(mqtttest.ClientID("leaving")).Disconnect()
		publisher.Publish(message{Topic: "shared", Payload: "last", QoS: 1})
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

	turn := b.turn()
	o := outgoing{topic: []byte("shared"), payload: []byte("x"), propsReady: true, qos: 2}
	b.route(turn, &o)
	o.done()
	if len(turn.saves) != 1 || turn.saves[0].session != b.lookup("member") {
		t.Fatal("the connected member was not chosen")
	}
	ending := b.turn()
	b.endSession(ending, b.lookup("member"))
	ending.end()
	batch := b.commit(turn, nil)
	turn.end()
	b.waitDurable(batch)

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
	publisher.Publish(message{Topic: "shared", Payload: "0", QoS: 2})
	publisher.Publish(message{Topic: "shared", Payload: "1", QoS: 2})
	g := b.groups["group/shared"]
	if g.messages != 2 {
		t.Fatalf("%d messages wait for a member, want 2", g.messages)
	}
	g.dispatching = true // by us, below
	member := n.connect(mqtttest.Persistent("member"))
	member.Subscribe("$share/group/shared", 2)

	turn := b.turn()
	seq, m := g.first()
	o := m.routed()
	if !g.offer(turn, &o) || len(turn.saves) != 1 || turn.saves[0].session != b.lookup("member") {
		t.Fatal("the connected member was not chosen")
	}
	ending := b.turn()
	b.endSession(ending, b.lookup("member"))
	ending.end()
	sv := &turn.saves[0] // what commit does first
	a := b.journal.Begin()
	a.Set(queueKey(sv.sid, sv.seq), appendQueueRow(nil, &sv.it, 0, 0, b.wall()))
	a.Delete(queueKey(g.gid, seq))
	b.waitDurable(a.End(nil))

	n = run(t, fs.stop()[0], Limits{})
	other = n.connect(mqtttest.Persistent("other"))
	if got := mqtttest.Payloads(other.ReceiveN(2)); fmt.Sprint(got) != "[0 1]" {
		t.Errorf("got %v", got)
	}
	if more := other.Collect(); len(more) > 0 {
		t.Errorf("got %v again", more)
	}
	o.done()
	turn.saves = nil
	turn.end()
}

// The row of a message that has just gone from a backlog may be deleted after
// another message has come to the front: it must not have the same number.
func TestBacklogNumbersAreNotGivenTwice(t *testing.T) {
	t.Parallel()
	n := run(t, newCrashes(), Limits{})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/shared", 1)
	g := n.broker.groups["group/shared"]
	turn := n.broker.turn()
	defer turn.end()
	seen := map[uint64]bool{}
	for i := range 10 {
		m := newMessage(8)
		if i%2 == 0 {
			g.add(turn, m)
		} else {
			g.requeue(turn, m)
		}
		g.mu.Lock()
		seq := g.head[0].seq
		g.mu.Unlock()
		if seen[seq] {
			t.Fatalf("message %d has the number %d of another", i, seq)
		}
		seen[seq] = true
		g.pop(turn, seq)
	}
}

// While a message from the backlog is given to a member, another member hands one
// back, which comes before it: the first is gone from the backlog all the same, and
// nobody gets it again.
func TestMessageGivenWhileAnotherIsHandedBack(t *testing.T) {
	t.Parallel()
	n := run(t, newCrashes(), Limits{})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/shared", 2)
	c.Disconnect()
	n.connect().Publish(message{Topic: "shared", Payload: "given", QoS: 2})
	g := n.broker.groups["group/shared"]
	turn := n.broker.turn()
	defer turn.end()

	seq, given := g.first()
	given.release()
	g.requeue(turn, newMessage(8))
	g.pop(turn, seq)

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.find(seq) != nil || g.messages != 1 {
		t.Errorf("%d messages wait, want the one that was handed back", g.messages)
	}
}

// A will that was read from disk is in pooled memory; stored as a retained
// message it is copied, and nothing may go on reading the original.
func TestKeptMessageDoesNotReadWhatItWasCopiedFrom(t *testing.T) {
	t.Parallel()
	m := newMessage(16)
	m.buf, m.topicEnd, m.propsEnd = append(m.buf, "topicpropspayload"...), 5, 10
	m.keep() // so that it is not in the pool while this test writes to it
	o := m.routed()
	kept := o.kept()
	m.buf = append(m.buf[:0], "#################"...) // as the pool's next user would
	if string(o.topic) != "topic" || string(o.props) != "props" || string(o.payload) != "payload" {
		t.Errorf("got %q, %q, %q", o.topic, o.props, o.payload)
	}
	if string(kept.buf) != "topicpropspayload" {
		t.Errorf("kept %q", kept.buf)
	}
}
