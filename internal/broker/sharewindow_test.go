package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// publishTo publishes messages that are numbered from from to to-1.
func (n *node) publishTo(topic string, from, to, size int) {
	n.t.Helper()
	messages := make([]publication, 0, to-from)
	for i := from; i < to; i++ {
		messages = append(messages, publication{Topic: topic, Payload: numbered(i, size), QoS: byte(1 + i%2)})
	}
	c := n.connect()
	c.PublishAll(messages)
	c.Disconnect()
}

func numbered(i, size int) string { return fmt.Sprint(i, " ", strings.Repeat("x", size)) }

// expectNumbered checks that messages are those from from on, in order.
func expectNumbered(t *testing.T, got []mqtttest.Message, from int) {
	t.Helper()
	for i, m := range got {
		if want := fmt.Sprint(from+i, " "); !strings.HasPrefix(m.Payload, want) {
			t.Fatalf("message %d is %.20q, want %s", i, m.Payload, want)
		}
	}
}

// The backlogs of many shared subscriptions whose members are away come to several
// times the memory for traffic: they are on disk, so that memory is tight for a
// moment at the most, and other clients are served. The members get everything.
func TestBacklogsTakeLittleMemory(t *testing.T) {
	t.Parallel()
	const groups, each, size, limit = 50, 12, 16 << 10, 8 << 20
	pool := memory.NewPool(limit)
	n := runWith(t, vfs.NewMem(), Limits{}, pool)
	bystander := n.connect()
	bystander.Subscribe("echo", 1)
	for i := range groups {
		c := n.connect(mqtttest.Persistent(fmt.Sprint("c", i)))
		c.Subscribe(fmt.Sprint("$share/group/jobs/", i), 1)
		c.Disconnect()
	}
	for i := range groups {
		n.publishTo(fmt.Sprint("jobs/", i), 0, each, size)
		bystander.Publish(publication{Topic: "echo", QoS: 1})
		bystander.Receive()
	}
	until(t, "memory to be no longer tight", func() bool { return !pool.Tight() })
	if stored := n.broker.StoredBytes(); stored < groups*each*size {
		t.Errorf("%d bytes count as stored, want %d at least", stored, groups*each*size)
	}
	for i := range groups {
		c := n.connect(mqtttest.Persistent(fmt.Sprint("c", i)))
		expectNumbered(t, c.ReceiveN(each), 0)
		c.Disconnect()
	}
	until(t, "everything to be credited", func() bool { return pool.UsedBy(memory.Queues) == 0 })
	if relieved := n.broker.Counters.Relieved.Load(); relieved > 0 {
		t.Errorf("%d connections were closed to make room", relieved)
	}
}

// A backlog that is much longer than what is in memory of it comes whole and in
// order: while no member is there, after a restart, and while more arrives.
func TestLongBacklogComesFromDiskInOrder(t *testing.T) {
	t.Parallel()
	const half = 2000
	fs := vfs.NewMem()
	n := run(t, fs, Limits{})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/jobs", 2)
	c.Disconnect()
	n.publishTo("jobs", 0, half, 10)
	g := n.broker.Groups["group/jobs"]
	until(t, "what is on disk to leave memory", func() bool {
		g.Mu.Lock()
		defer g.Mu.Unlock()
		return len(g.Head)+len(g.Tail) <= queue.AwayWindowMessages && g.Middle.Count >= half-queue.AwayWindowMessages
	})
	n.stop()

	n = run(t, fs, Limits{})
	g = n.broker.Groups["group/jobs"]
	if g.Messages != half || g.Middle.Count != half || len(g.Head)+len(g.Tail) > 0 {
		t.Errorf("after a start %d of %d messages are on disk only, want all of %d", g.Middle.Count, g.Messages, half)
	}
	done := make(chan struct{})
	go func() { defer close(done); n.publishTo("jobs", half, 2*half, 10) }()
	c = n.connect(mqtttest.Persistent("c"), mqtttest.ReceiveMaximum(50))
	expectNumbered(t, c.ReceiveN(2*half), 0)
	<-done
	until(t, "nothing to be queued", func() bool {
		c.Ping() // and answer PUBREL
		return n.broker.Stats().Queued.Load() == 0
	})
	until(t, "everything to be credited", func() bool { return n.memory.UsedBy(memory.Queues) == 0 })
}

// While memory is tight, a member takes some messages and leaves without having
// acknowledged them: they come before what is on disk, for another member.
func TestHandedBackMessagesComeFirstFromDisk(t *testing.T) {
	t.Parallel()
	const count = 600
	pool := memory.NewPool(64 << 20)
	n := runWith(t, vfs.NewMem(), Limits{}, pool)
	other := n.connect(mqtttest.Persistent("other"))
	other.Subscribe("$share/group/jobs", 1)
	other.Disconnect()
	n.publishTo("jobs", 0, count, 10)

	pool.Charge(memory.Input, pool.Limit()/8*3)
	leaving := n.connect(mqtttest.ClientID("leaving"), mqtttest.ReceiveMaximum(3), mqtttest.HoldAcks())
	leaving.Subscribe("$share/group/jobs", 1)
	expectNumbered(t, leaving.ReceiveN(3), 0)
	leaving.Drop()
	g := n.broker.Groups["group/jobs"]
	until(t, "what was handed back to be on disk only", func() bool {
		g.Mu.Lock()
		defer g.Mu.Unlock()
		return g.Messages == count && g.HeadMessages == 0 && len(g.Head) >= 3 && len(g.Tail) == 0
	})
	other = n.connect(mqtttest.Persistent("other"))
	expectNumbered(t, other.ReceiveN(count), 0)
	pool.Credit(memory.Input, pool.Limit()/8*3)
	if more := other.Collect(); len(more) > 0 {
		t.Errorf("got %d messages more", len(more))
	}
}

// A backlog is bounded by its bytes on disk, like a session's queue.
func TestBacklogIsBoundedByItsBytesOnDisk(t *testing.T) {
	t.Parallel()
	const count, size = 20, 1000
	for _, policy := range []limits.QueueFull{limits.Reject, limits.DropOldest, limits.EndSession} {
		payload := strings.Repeat("x", size-len("jobs"))
		n := run(t, vfs.NewMem(), Limits{MaxQueuedBytes: count * (size + queue.RowOverhead), QueueFull: policy})
		c := n.connect(mqtttest.Persistent("c"))
		c.Subscribe("$share/group/jobs", 1)
		c.Disconnect()
		publisher := n.connect()
		publish := func(i int) mqtt.ReasonCode {
			first := string(rune('a' + i))
			publisher.SendPublish(publication{Topic: "jobs", QoS: 1, Payload: first + payload[1:]})
			return publisher.Expect(mqtt.PUBACK).Ack.Code
		}
		for i := range count {
			if code := publish(i); code.Failed() {
				t.Fatalf("%s: message %d: %v", policy, i, code)
			}
		}
		first, present, left := "a", true, count
		code := publish(count)
		switch policy {
		case limits.Reject:
			if code != mqtt.QuotaExceeded {
				t.Errorf("%s: a message beyond the bound: %v", policy, code)
			}
		case limits.DropOldest:
			first = "b"
		case limits.EndSession:
			present, left = false, 0
		}
		c = n.connect(mqtttest.Persistent("c"))
		if c.Connack.SessionPresent != present {
			t.Errorf("%s: Session Present is %v", policy, c.Connack.SessionPresent)
		}
		got := c.Collect()
		if len(got) != left || left > 0 && got[0].Payload[:1] != first {
			t.Errorf("%s: %d messages are left, want %d from %s on", policy, len(got), left, first)
		}
	}
}

// A member that has chosen reject for its session has publishes refused when the backlog is full, also
// after a restart. When it has left, or has chosen otherwise, the server's setting counts again.
func TestBacklogRejectsIfAMemberHasChosenSo(t *testing.T) {
	t.Parallel()
	const bound = 5
	choose := func(policy limits.QueueFull) mqtttest.Option {
		return mqtttest.Raw(func(c *mqtt.Connect) {
			c.Raw = mqtt.AppendUserProp(nil, limits.QueueFullProperty, string(policy))
		})
	}
	for name, change := range map[string]func(n *node){
		"no other choice": nil,
		"it has left": func(n *node) {
			c := n.connect(mqtttest.Persistent("chooses"), choose(limits.Reject))
			c.Unsubscribe("$share/group/jobs")
			c.Disconnect()
		},
		"its session has ended": func(n *node) {
			n.connect(mqtttest.ClientID("chooses")).Disconnect()
		},
		"it has chosen otherwise": func(n *node) {
			n.connect(mqtttest.Persistent("chooses"), choose(limits.EndSession)).Disconnect()
		},
	} {
		fs := vfs.NewMem()
		l := Limits{MaxQueued: bound}
		n := run(t, fs, l)
		for id, opts := range map[string][]mqtttest.Option{"chooses": {choose(limits.Reject)}, "other": nil} {
			c := n.connect(append(opts, mqtttest.Persistent(id))...)
			c.Subscribe("$share/group/jobs", 1)
			c.Disconnect()
		}
		n.publishTo("jobs", 0, bound, 10)
		publish := func() mqtt.ReasonCode {
			publisher := n.connect()
			defer publisher.Disconnect()
			publisher.SendPublish(publication{Topic: "jobs", QoS: 1, Payload: "more"})
			return publisher.Expect(mqtt.PUBACK).Ack.Code
		}
		if code := publish(); code != mqtt.QuotaExceeded {
			t.Errorf("%s: a message beyond the bound: %v, want %v", name, code, mqtt.QuotaExceeded)
		}
		n.stop()
		n = run(t, fs, l)
		if code := publish(); code != mqtt.QuotaExceeded {
			t.Errorf("%s: a message beyond the bound after a restart: %v, want %v", name, code, mqtt.QuotaExceeded)
		}
		left := bound
		if change != nil {
			change(n)
			for range bound + 1 { // the member may have taken what was there
				if code := publish(); code.Failed() {
					t.Errorf("%s: the server's setting does not count: %v", name, code)
				}
			}
			left = 0
		}
		c := n.connect(mqtttest.Persistent("other"))
		if got := c.Collect(); len(got) != left || c.Connack.SessionPresent != (left > 0) {
			t.Errorf("%s: the other member gets %d messages (Session Present %v), want %d", name, len(got), c.Connack.SessionPresent, left)
		}
		n.stop()
	}
}

// With drop-oldest the oldest goes, also where all of the backlog is on disk only.
func TestOldestOfABacklogOnDiskIsDropped(t *testing.T) {
	t.Parallel()
	const bound, more = 100, 30
	fs := vfs.NewMem()
	l := Limits{MaxQueued: bound, QueueFull: limits.DropOldest}
	n := run(t, fs, l)
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/jobs", 1)
	c.Disconnect()
	n.publishTo("jobs", 0, bound, 10)
	n.stop()
	n = run(t, fs, l)
	n.publishTo("jobs", bound, bound+more, 10)
	until(t, "the oldest to go", func() bool { return n.broker.Stats().Queued.Load() == bound })
	expectNumbered(t, n.connect(mqtttest.Persistent("c")).ReceiveN(bound), more)
}

// A message of the backlog that is missing on disk ends the sessions of the members,
// which learn of it by Session Present 0.
func TestBacklogWithAHoleEndsItsMembersSessions(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	n := run(t, fs, Limits{})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/jobs", 1)
	c.Disconnect()
	n.publishTo("jobs", 0, 100, 10)
	n.stop()
	n = run(t, fs, Limits{})
	g := n.broker.Groups["group/jobs"]
	a := n.journal.Begin()
	a.Delete(rows.QueueKey(g.SID, g.Middle.From+50))
	n.broker.WaitDurable(a.End(nil))

	c = n.connect(mqtttest.Persistent("c"))
	c.AwaitDisconnect(mqtt.QuotaExceeded)
	if c = n.connect(mqtttest.Persistent("c")); c.Connack.SessionPresent {
		t.Error("the session went on in spite of the hole")
	}
}

// An error of the disk closes the connections of the members. The backlog stays, and
// comes whole when the disk can be read again.
func TestBacklogOutlivesAnErrorOfTheDisk(t *testing.T) {
	t.Parallel()
	const count = 100
	disk := journaltest.NewDisk(vfs.NewMem())
	n := run(t, disk, Limits{})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("$share/group/jobs", 1)
	c.Disconnect()
	n.publishTo("jobs", 0, count, 10)
	n.stop()
	n = run(t, disk, Limits{})
	if err := n.journal.Flush(); err != nil {
		t.Fatal(err)
	}
	n.stop()

	n = run(t, disk, Limits{})
	disk.FailReads(errors.New("the disk can't be read"))
	n.connect(mqtttest.Persistent("c")).AwaitDisconnect(mqtt.UnspecifiedError)
	disk.FailReads(nil)
	c = n.connect(mqtttest.Persistent("c"))
	if !c.Connack.SessionPresent {
		t.Error("the session has ended")
	}
	expectNumbered(t, c.ReceiveN(count), 0)
}

// Members come, take some messages and go, while more arrive, memory is tight at
// times, and the broker starts anew: each message reaches one of them, once.
func TestBacklogReachesMembersOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 0))
		fs, limits, pool := vfs.NewMem(), Limits{MaxInflight: 20}, memory.NewPool(64<<20)
		n := runWith(t, fs, limits, pool)
		ids := []string{"one", "two"}
		members := map[string]*exactlyOnce{}
		for _, id := range ids {
			members[id] = newExactlyOnce()
			c := n.connect(mqtttest.Persistent(id))
			c.Subscribe("$share/group/jobs", 2)
			c.Disconnect()
		}
		count := 0
		for range 12 {
			other := pool.Limit() / 8 * 3 * int64(random.IntN(2))
			pool.Charge(memory.Input, other)
			messages := make([]publication, random.IntN(300))
			for i := range messages {
				messages[i] = publication{Topic: "jobs", Payload: fmt.Sprint(count + i), QoS: 2}
			}
			count += len(messages)
			taken := random.IntN(100)
			id := ids[random.IntN(2)]
			c, e := n.connect(mqtttest.Persistent(id)), members[id]
			before, _ := e.finished()
			var member sync.WaitGroup
			member.Go(func() {
				e.run(c, func() bool { got, _ := e.finished(); return got >= min(before+taken, count-200) })
				c.Drop()
			})
			n.connect().PublishAll(messages)
			member.Wait()
			pool.Credit(memory.Input, other)
			if random.IntN(4) == 0 {
				n.stop()
				pool = memory.NewPool(pool.Limit()) // of another process
				n = runWith(t, fs, limits, pool)
			}
		}

		one, two := members["one"], members["two"]
		var last sync.WaitGroup
		for id, e := range members {
			c := n.connect(mqtttest.Persistent(id))
			last.Go(func() {
				e.run(c, func() bool {
					byOne, all := one.finished()
					byTwo, all2 := two.finished()
					return byOne+byTwo >= count && all && all2
				})
			})
		}
		last.Wait()
		times := map[string]int{}
		for _, payload := range append(slices.Clone(one.got), two.got...) {
			times[payload]++
		}
		for i := range count {
			if got := times[fmt.Sprint(i)]; got != 1 {
				t.Fatalf("seed %d: message %d of %d was delivered %d times", seed, i, count, got)
			}
		}
		n.stop()
	}
}
