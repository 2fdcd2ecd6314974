package broker

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// exactlyOnce is a client that receives at QoS 2 as the standard has it: it
// remembers packet identifiers from one connection to the next, until their PUBREL.
type exactlyOnce struct {
	mu       sync.Mutex
	received map[uint16]bool
	got      []string
	withDup  []string // of those, what came with DUP
}

func newExactlyOnce() *exactlyOnce { return &exactlyOnce{received: map[uint16]bool{}} }

func (e *exactlyOnce) clone() *exactlyOnce {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &exactlyOnce{received: maps.Clone(e.received), got: slices.Clone(e.got), withDup: slices.Clone(e.withDup)}
}

// finished says how many messages have come, and whether no handshake is under way.
func (e *exactlyOnce) finished() (got int, all bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.got), len(e.received) == 0
}

// run takes part in deliveries until done says so, and a ping has shown that nothing
// more comes.
func (e *exactlyOnce) run(c *mqtttest.Client, done func() bool) {
	pinged := false
	for began := time.Now(); time.Since(began) < mqtttest.Deadline; {
		if !pinged && done() {
			pinged = true
			_ = c.WriteErr(mqtt.AppendPingreq(nil))
		}
		p, err := c.Read(time.Now().Add(10 * time.Millisecond))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil || p.Type == mqtt.PINGRESP {
			return
		}
		switch p.Type {
		case mqtt.PUBLISH:
			id := p.Publish.PacketID
			e.mu.Lock()
			if !e.received[id] {
				e.received[id] = true
				e.got = append(e.got, p.Publish.Payload)
				if p.Publish.Dup {
					e.withDup = append(e.withDup, p.Publish.Payload)
				}
			}
			e.mu.Unlock()
			_ = c.WriteErr(mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBREC, id, mqtt.Success, ""))
		case mqtt.PUBREL:
			e.mu.Lock()
			delete(e.received, p.Ack.PacketID)
			e.mu.Unlock()
			_ = c.WriteErr(mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBCOMP, p.Ack.PacketID, mqtt.Success, ""))
		}
	}
}

// One of two members of a shared subscription empties its backlog at QoS 2 when the
// machine crashes. Both come back: each message has reached exactly one of them,
// once [MQTT-4.8.2-5], and no identifier is left behind that would make one take a
// later message for an earlier one.
func TestCrashWhileAMemberEmptiesTheBacklog(t *testing.T) {
	t.Parallel()
	const count = 300
	fs, limits := newCrashes(), Limits{MaxInflight: 20}
	n := run(t, fs, limits)
	for _, id := range []string{"one", "two"} {
		c := n.connect(mqtttest.Persistent(id))
		c.Subscribe("$share/group/jobs", 2)
		c.Disconnect()
	}
	publisher := n.connect()
	messages := make([]publication, count)
	for i := range messages {
		messages[i] = publication{Topic: "jobs", Payload: fmt.Sprint(i), QoS: 2}
	}
	publisher.PublishAll(messages)

	one := newExactlyOnce()
	var seen []*exactlyOnce
	fs.observe = func() { seen = append(seen, one.clone()) }
	fs.record()
	one.run(n.connect(mqtttest.Persistent("one")), func() bool {
		got, all := one.finished()
		return got == count && all
	})
	left := fs.stop()

	for crash := 0; crash < len(left); crash += max(1, len(left)/25) {
		n := run(t, left[crash], limits)
		one, two := seen[crash], newExactlyOnce()
		before := len(one.got)
		var members sync.WaitGroup
		for id, e := range map[string]*exactlyOnce{"one": one, "two": two} {
			c := n.connect(mqtttest.Persistent(id))
			members.Go(func() {
				e.run(c, func() bool {
					byOne, all := one.finished()
					byTwo, all2 := two.finished()
					return byOne+byTwo >= count && all && all2
				})
			})
		}
		members.Wait()
		times := map[string]int{}
		for _, payload := range append(slices.Clone(one.got), two.got...) {
			times[payload]++
		}
		for i := range count {
			if got := times[fmt.Sprint(i)]; got != 1 {
				t.Fatalf("crash %d of %d, after %d deliveries: message %d was delivered %d times", crash, len(left), before, i, got)
			}
		}
		if len(one.received)+len(two.received) > 0 {
			t.Errorf("crash %d: deliveries were left unfinished: %v, %v", crash, one.received, two.received)
		}
		n.stop()
	}
}

// A member of a shared subscription has completed a window of messages at QoS 2 and been
// sent the next one when the machine crashes before the end of the first is on disk. What it
// was sent goes to no other member [MQTT-4.8.2-5], although all of it lies beyond its Receive
// Maximum, counted from the first message that the disk has.
func TestCrashBeforeTheEndOfAWindowIsOnDisk(t *testing.T) {
	t.Parallel()
	const window = 5
	const count = 4 * window
	fs := newCrashes()
	disk := journaltest.NewDisk(fs)
	n := run(t, disk, Limits{})
	two := n.connect(mqtttest.Persistent("two"))
	two.Subscribe("$share/group/jobs", 2)
	two.Disconnect()
	one := n.connect(mqtttest.Persistent("one"), mqtttest.ReceiveMaximum(window), mqtttest.HoldAcks())
	one.Subscribe("$share/group/jobs", 2)
	publisher := n.connect()
	for i := range count {
		publisher.Publish(publication{Topic: "jobs", Payload: fmt.Sprint(i), QoS: 2})
	}
	first := newExactlyOnce()
	receive := func() []publication {
		all := one.ReceiveN(window)
		for _, m := range all {
			first.got = append(first.got, m.Payload)
		}
		return all
	}
	completed := receive()
	for _, m := range completed {
		one.SendAck(mqtt.PUBREC, m.PacketID, mqtt.Success)
		one.AwaitAck(mqtt.PUBREL, m.PacketID)
	}
	n.broker.WaitDurable(n.journal.Last())
	disk.Hold()
	for _, m := range completed {
		one.SendAck(mqtt.PUBCOMP, m.PacketID, mqtt.Success)
	}
	for _, m := range receive() {
		first.received[m.PacketID] = true
	}
	left := fs.clone()
	disk.Release(nil)

	n = run(t, left, Limits{})
	second := newExactlyOnce()
	two = n.connect(mqtttest.Persistent("two"))
	second.run(two, func() bool { return true }) // gets what is for any member, while it is alone
	one = n.connect(mqtttest.Persistent("one"))
	all := func() bool {
		byOne, done := first.finished()
		byTwo, done2 := second.finished()
		return byOne+byTwo >= count && done && done2
	}
	var members sync.WaitGroup
	members.Go(func() { first.run(one, all) })
	members.Go(func() { second.run(two, all) })
	members.Wait()
	times := map[string]int{}
	for _, payload := range append(slices.Clone(first.got), second.got...) {
		times[payload]++
	}
	for i := range count {
		if got := times[fmt.Sprint(i)]; got != 1 {
			t.Errorf("message %d was delivered %d times; one member got %q, the other %q", i, got, first.got, second.got)
		}
	}
	if len(first.received)+len(second.received) > 0 {
		t.Errorf("deliveries were left unfinished: %v, %v", first.received, second.received)
	}
}

// A message that was sent before a crash comes again with DUP [MQTT-3.3.1-1],
// however far the window had moved on before that was on disk.
func TestWhatWasSentBeforeACrashComesAgainWithDup(t *testing.T) {
	t.Parallel()
	const count = 300
	fs, limits := newCrashes(), Limits{MaxInflight: 10}
	n := run(t, fs, limits)
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("news", 1)
	c.Disconnect()
	publisher := n.connect()
	for i := range count {
		publisher.SendPublish(publication{Topic: "news", Payload: fmt.Sprint(i), QoS: 1})
	}
	publisher.Ping()
	until(t, "all messages to be queued", func() bool { return n.broker.Stats().Queued.Load() == count })
	n.broker.WaitDurable(n.journal.Last())

	c = n.connect(mqtttest.Persistent("c"))
	disk := fs.clone() // what is acknowledged from here on is not on disk
	c.ReceiveN(count)

	n = run(t, disk, limits)
	c = n.connect(mqtttest.Persistent("c"))
	for i, m := range c.ReceiveN(count) {
		if m.Payload != fmt.Sprint(i) || !m.Dup {
			t.Fatalf("message %d is %v, want it with DUP", i, m)
		}
	}
}

// A delivery that its client doesn't acknowledge keeps its packet identifier while
// those of the queue come around, on other connections and after a restart, and the
// message that would have had it keeps the one that it got instead.
func TestIdentifiersStayThroughARestart(t *testing.T) {
	t.Parallel()
	const count = queue.RoutedSpan + 10
	fs := vfs.NewMem()
	n := run(t, fs, Limits{})
	c := n.connect(mqtttest.Persistent("c"), mqtttest.HoldAcks())
	c.Subscribe("news", 1)
	publisher := n.connect()
	kept := map[string]uint16{}
	for from := 0; from < count; from += 500 {
		batch := make([]publication, 0, 500)
		for i := from; i < min(from+500, count); i++ {
			batch = append(batch, publication{Topic: "news", Payload: fmt.Sprint(i), QoS: 1})
		}
		publisher.PublishAll(batch)
		for _, m := range c.ReceiveN(len(batch)) {
			if m.Payload == "3" || m.Payload == fmt.Sprint(3+queue.RoutedSpan) {
				kept[m.Payload] = m.PacketID
			} else {
				c.Acknowledge(m)
			}
		}
	}
	if len(kept) != 2 || kept["3"] == kept[fmt.Sprint(3+queue.RoutedSpan)] {
		t.Fatalf("under way are %v", kept)
	}
	c.Ping()
	for restarts := range 2 {
		c.Drop()
		if restarts > 0 {
			n.stop()
			n = run(t, fs, Limits{})
		}
		c = n.connect(mqtttest.Persistent("c"), mqtttest.HoldAcks())
		for _, payload := range []string{"3", fmt.Sprint(3 + queue.RoutedSpan)} {
			if m := c.Receive(); m.Payload != payload || m.PacketID != kept[payload] || !m.Dup {
				t.Errorf("got %v, want message %s again with identifier %d", m, payload, kept[payload])
			}
		}
		c.Quiet()
	}
}

// A queue that is much longer than what is in memory of it comes whole and in
// order: while its client is away, while it takes messages and more arrive, and
// after a restart.
func TestLongQueueComesFromDiskInOrder(t *testing.T) {
	t.Parallel()
	const half = 3000
	fs := vfs.NewMem()
	n := run(t, fs, Limits{MaxInflight: 100})
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("news", 2)
	c.Disconnect()
	publish := func(from int) {
		messages := make([]publication, half)
		for i := range messages {
			messages[i] = publication{Topic: "news", Payload: fmt.Sprint(from + i), QoS: byte(1 + i%2)}
		}
		n.connect().PublishAll(messages)
	}
	publish(0)
	s := n.broker.Sessions.Lookup("c")
	s.Mu.Lock()
	if q := &s.Routed; q.Waiting() > half/2 || q.Middle.Count < half/2 {
		t.Errorf("%d messages are in memory, %d on disk only", q.Waiting(), q.Middle.Count)
	}
	s.Mu.Unlock()
	n.stop()
	n = run(t, fs, Limits{MaxInflight: 100})
	c = n.connect(mqtttest.Persistent("c"))
	done := make(chan struct{})
	go func() { defer close(done); publish(half) }()
	for i, m := range c.ReceiveN(2 * half) {
		if m.Payload != fmt.Sprint(i) {
			t.Fatalf("message %d is %v", i, m)
		}
	}
	<-done
	until(t, "nothing to be queued", func() bool {
		c.Ping() // and answer PUBREL
		return n.broker.Stats().Queued.Load() == 0
	})
}
