package broker

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// until waits for what another goroutine is about to do.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) { // and leave the processors to the broker
		if time.Since(began) > mqtttest.Deadline {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// While the disk hangs, a client that asks for more and more answers is not read
// from: answers that wait are bounded, and in the end all of them come.
func TestAnswersThatWaitForTheDiskAreBounded(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	n := run(t, disk, Limits{ReceiveMaximum: 1, MaxInflight: 1})
	client := n.connect(mqtttest.Persistent("c"))
	c := n.connOf("c")
	const bound, count = 1 + 1 + spareAcks, 1000

	disk.Hold()
	for range count {
		client.SendSubscribe(0, mqtttest.Sub{Filter: "a", QoS: 1})
	}
	until(t, "the bound to be reached", func() bool { return c.acks.Pending() > bound })
	disk.Release(nil)

	for range count {
		client.Expect(mqtt.SUBACK)
	}
	if places := c.acks.Cap(); places > 2*bound {
		t.Errorf("there have been %d places for answers, the bound is %d", places, bound)
	}
}

// A client that doesn't take what it asked for is not read from; what it sent to
// others before that is not held up with it.
func TestAStalledPublisherDelaysNoOtherClient(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{OutputBuffer: 40 << 10}) // full in the middle of what one read takes
	other := n.connect()
	other.Subscribe("other", 0)
	socket, err := net.Dial("tcp", n.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	stalled := mqtttest.NewClient(t, socket)
	stalled.Connect()
	stalled.Subscribe("self", 0)

	pair := mqtttest.EncodePublish(mqtt.V5, publication{Topic: "other"})
	pair = append(pair, mqtttest.EncodePublish(mqtt.V5, publication{Topic: "self", Payload: strings.Repeat("x", 1000)})...)
	const pairs = 10 // in one read
	in := &n.broker.Stats().MessagesIn
	for sent := int64(0); in.Load() == sent; {
		stalled.Write(bytes.Repeat(pair, pairs))
		sent += 2 * pairs
		for began := time.Now(); in.Load() < sent && time.Since(began) < time.Second; runtime.Gosched() {
		}
		other.ReceiveN(int(in.Load()-(sent-2*pairs)+1) / 2)
	}
}

// A client that subscribes again and again to retained messages that it doesn't
// take makes the broker remember no more than one replay for each subscription.
func TestReplaysAreBounded(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxSubscriptions: 3})
	publisher := n.connect()
	for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
		for range 4 { // more than a replay keeps in the queue
			name += "/" + name
			publisher.Publish(publication{Topic: "r/" + name, Payload: "x", QoS: 1, Retain: true})
		}
	}
	c := n.connect(mqtttest.Persistent("c"), mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
	for range 100 {
		c.Subscribe("r/#", 1)
		c.Subscribe("r/a/#", 1)
		c.Unsubscribe("r/a/#")
	}
	s := n.broker.Sessions.Lookup("c")
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Replays.Len() > 2*3+1 {
		t.Errorf("the session has %d replays before it", s.Replays.Len())
	}
}

// A client that never acknowledges its first message while the queue behind it
// drops one after the other doesn't make the broker remember all of them.
func TestDroppedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxQueued: 3, QueueFull: limits.DropOldest})
	b := n.broker
	c := n.connect(mqtttest.ClientID("c"), mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
	c.Subscribe("a", 1)
	s := b.Sessions.Lookup("c")
	publish := func(count int) {
		turn := b.NewTurn()
		defer turn.End()
		for range count {
			o := message.Outgoing{Topic: []byte("a"), QoS: 1}
			b.Route(turn, &o)
			o.Done()
		}
	}

	publish(100_000)
	s.Mu.Lock()
	live, ended, places := s.Inflight, s.Ended, len(s.Routed.Front.Slots)
	s.Mu.Unlock()
	if queued := b.Stats().Queued.Load(); queued != 3 || live != 1 || ended || places > 4*queue.MaxGap {
		t.Errorf("%d messages are queued, %d under way, the session has ended: %v, there are %d places; want 3, 1, false, a few", queued, live, ended, places)
	}
}

// Expired messages go before a queue counts as full: those in memory at once, those
// on disk only by a goroutine, which a message more may wait for.
func TestExpiredMessagesMakeRoom(t *testing.T) {
	t.Parallel()
	const bound = 100
	n := run(t, vfs.NewMem(), Limits{MaxQueued: bound})
	b := n.broker
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("news", 1)
	c.Disconnect()
	publish := func(payload string, expiresAt int64) {
		turn := b.NewTurn()
		defer turn.End()
		o := message.Outgoing{Topic: []byte("news"), Payload: []byte(payload), QoS: 1, ExpiresAt: expiresAt}
		defer o.Done()
		_, batch, code := b.Publish(turn, &o, &message.PublishRows{})
		if code.Failed() {
			t.Errorf("message %s was refused: %v", payload, code)
		}
		b.WaitDurable(batch)
	}
	soon := b.Now() + 300
	for range bound {
		publish("old", soon)
	}
	until(t, "the messages to expire", func() bool { return b.Now() > soon })
	publish("0", 0)
	until(t, "expired messages to go", func() bool { return b.Stats().Queued.Load() < bound/2 })
	for i := 1; i < bound/2; i++ {
		publish(fmt.Sprint(i), 0)
	}
	got := n.connect(mqtttest.Persistent("c")).ReceiveN(bound / 2)
	for i, m := range got {
		if m.Payload != fmt.Sprint(i) {
			t.Fatalf("message %d is %v", i, m)
		}
	}
}

// Where publishes are rejected when a queue is full, those that race for its last places fill
// it and are refused, or wait in it: none takes a place that is not there, and no session
// ends for it.
func TestPublishesRaceForTheLastPlaces(t *testing.T) {
	t.Parallel()
	const bound, publishers, sessions = 5, 8, 60
	for _, share := range []string{"", "$share/g/"} {
		n := run(t, vfs.NewMem(), Limits{MaxQueued: bound, QueueFull: limits.Reject})
		b := n.broker
		for i := range sessions {
			c := n.connect(mqtttest.Persistent(fmt.Sprint("c", i)))
			c.Subscribe(fmt.Sprint(share, "news/", i), 1)
			c.Disconnect()
			c.AwaitEnd()
		}
		var accepted [sessions]atomic.Int64
		var running sync.WaitGroup
		begin := make(chan struct{})
		for range publishers {
			running.Go(func() {
				turn := b.NewTurn()
				defer turn.End()
				<-begin
				for i := range sessions {
					for range bound {
						o := message.Outgoing{Topic: fmt.Append(nil, "news/", i), Payload: []byte("m"), QoS: 1}
						if _, _, code := b.Publish(turn, &o, &message.PublishRows{}); !code.Failed() {
							accepted[i].Add(1)
						}
						o.Done()
					}
					turn.Flush()
				}
			})
		}
		close(begin)
		running.Wait()
		if queued := b.Stats().Queued.Load(); queued != bound*sessions {
			t.Errorf("%q: %d messages are queued, want %d", share, queued, bound*sessions)
		}
		for i := range sessions {
			if got := accepted[i].Load(); got != bound {
				t.Errorf("%q: %d publishes to session %d were accepted, want %d", share, got, i, bound)
			}
			if b.Sessions.Lookup(fmt.Sprint("c", i)) == nil {
				t.Errorf("%q: session %d has ended", share, i)
			}
		}
	}
}

// A start with a lower bound finds queues that hold many times as much. They keep it: with
// DropOldest the next message drops the oldest ones, with Reject it is refused.
func TestAStartWithALowerBoundOfQueues(t *testing.T) {
	t.Parallel()
	for policy, left := range map[limits.QueueFull]int64{limits.DropOldest: 3, limits.Reject: 51} {
		fs := vfs.NewMem()
		l := Limits{QueueFull: policy}
		n := run(t, fs, l)
		c := n.connect(mqtttest.Persistent("c"))
		c.Subscribe("news", 1)
		c.Disconnect()
		c.AwaitEnd()
		from := n.connect()
		for range 50 {
			from.Publish(mqtttest.Message{Topic: "news", Payload: "x", QoS: 1})
		}
		n.stop()
		l.MaxQueued = 3
		n = run(t, fs, l)
		if code := n.connect().Offer(mqtttest.Message{Topic: "news", Payload: "x", QoS: 1}).Code; code.Failed() != (policy == limits.Reject) {
			t.Errorf("%s: one more message: %v", policy, code)
		}
		turn := n.broker.NewTurn()
		o := message.Outgoing{Topic: []byte("news"), QoS: 1}
		n.broker.Route(turn, &o) // nothing asks before it whether the queue is full
		o.Done()
		turn.End()
		until(t, "what is beyond the bound to go", func() bool { return n.broker.Stats().Queued.Load() == left })
		if n.broker.Sessions.Lookup("c") == nil {
			t.Errorf("%s: the session has ended", policy)
		}
	}
}
