package broker

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// deaf connects a client whose socket takes little, and that reads nothing unless
// the test does.
func (n *node) deaf(opts ...mqtttest.Option) *mqtttest.Client {
	n.t.Helper()
	socket, err := net.Dial("tcp", n.addr)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := socket.(*net.TCPConn).SetReadBuffer(256 << 10); err != nil {
		n.t.Fatal(err)
	}
	c := mqtttest.NewClient(n.t, socket)
	c.Connect(opts...)
	return c
}

// A payload that many subscribers don't read is in memory once, and each gets it
// whole when it does read.
func TestPayloadIsInMemoryOnceForAllSubscribers(t *testing.T) {
	t.Parallel()
	const subscribers, size = 8, 4 << 20
	for qos := range byte(3) {
		n := run(t, vfs.NewMem(), Limits{MaxPacketSize: 2 * size})
		all := make([]*mqtttest.Client, subscribers)
		for i := range all {
			all[i] = n.deaf()
			all[i].Subscribe("big", qos)
		}
		payload := strings.Repeat("0123456789abcdef", size/16)
		n.connect().Publish(publication{Topic: "big", QoS: qos, Payload: payload})
		charged := func() int64 { return n.memory.UsedBy(memory.Output) + n.memory.UsedBy(memory.Queues) }
		until(t, "the message to wait", func() bool { return charged() > size })
		if used := charged(); used > size+subscribers*1000 {
			t.Errorf("QoS %d: %d bytes are charged for one message of %d", qos, used, size)
		}
		for i, c := range all {
			if m := c.Expect(mqtt.PUBLISH).Publish; m.Payload != payload {
				t.Fatalf("QoS %d: subscriber %d got %d bytes, or other ones", qos, i, len(m.Payload))
			}
		}
		n.allCredited()
	}
}

// Retained messages that clients have not taken yet are charged also when others have
// replaced them, or when they were deleted: in outputs, in queues and in the backlogs of
// shared subscriptions.
func TestReplacedRetainedMessagesAreCharged(t *testing.T) {
	t.Parallel()
	const subscribers, size = 4, 4 << 20
	n := run(t, vfs.NewMem(), Limits{MaxPacketSize: 2 * size})
	all := make([]*mqtttest.Client, subscribers)
	for i := range all {
		all[i] = n.deaf(mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
		all[i].Subscribe(fmt.Sprint("big/", i), byte(i%3))
	}
	queued := n.connect(mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
	queued.Subscribe("small", 1)
	shared := n.connect(mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks())
	shared.Subscribe("$share/g/shared", 1)

	publisher := n.connect()
	const replaced, small = 40, 200
	for i := range replaced {
		publisher.Publish(publication{Topic: "small", Payload: strings.Repeat(fmt.Sprint(i%10), small), QoS: 1, Retain: true})
		publisher.Publish(publication{Topic: "shared", Payload: strings.Repeat(fmt.Sprint(i%10), small*10), QoS: 1, Retain: true})
	}
	for i := range all {
		topic := fmt.Sprint("big/", i)
		publisher.Publish(publication{Topic: topic, Payload: strings.Repeat(fmt.Sprint(i), size), QoS: 1, Retain: true})
		publisher.Publish(publication{Topic: topic, QoS: 1, Retain: true}) // deleted
	}
	if used := n.memory.UsedBy(memory.Retained); used > 10_000 {
		t.Errorf("%d bytes are charged for what is retained", used)
	}
	const held = subscribers*size + (replaced-2)*small*11
	charged := func() int64 { return n.memory.UsedBy(memory.Output) + n.memory.UsedBy(memory.Queues) }
	if used := charged(); used < held {
		t.Errorf("%d bytes are charged for what clients have not taken, want at least %d", used, held)
	}
	for _, c := range append(all, queued, shared) {
		c.Drop()
	}
	until(t, "everything to be credited", func() bool { return charged() == 0 })
}

// All clients' packets that never become whole take no more than their share of memory
// together, and a client with a small packet is served as before.
func TestUnfinishedPacketsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 32 << 20
	n := runWith(t, vfs.NewMem(), Limits{}, memory.NewPool(limit))
	bystander := n.connect()
	bystander.Subscribe("echo", 1)

	head := mqtttest.EncodePublish(mqtt.V5, publication{Topic: "big", Payload: strings.Repeat("x", 4<<20)})
	for range 12 { // 48 MiB in all
		c := n.connect()
		go func() { _ = c.WriteErr(head[:len(head)-1]) }()
	}
	until(t, "the packets to reach their bound", func() bool {
		if used := n.memory.UsedBy(memory.Input); used > limit/2 {
			t.Fatalf("unfinished packets take %d bytes of %d", used, limit)
		}
		return n.memory.Refused() > 0
	})
	bystander.Publish(publication{Topic: "echo", QoS: 1, Payload: "x"})
	bystander.Expect(mqtt.PUBLISH)
}

// A CONNECT is small, and those that don't end have a share of their own, so that
// another client is still let in.
func TestUnfinishedConnectsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 16 << 20
	n := runWith(t, vfs.NewMem(), Limits{}, memory.NewPool(limit))

	large := n.raw()
	large.Write([]byte{0x10, 0x80, 0x80, 0x05}) // 80 KiB
	large.ExpectClosed()

	unfinished := append([]byte{0x10, 0x80, 0x80, 0x03}, make([]byte, 40<<10)...) // 48 KiB
	var held []*mqtttest.Client
	for n.memory.Refused() == 0 {
		c := n.raw()
		_ = c.WriteErr(unfinished)
		held = append(held, c)
		if used := n.memory.Used(); used > limit/16 {
			t.Fatalf("unfinished CONNECTs take %d bytes of %d", used, limit)
		}
		if len(held) > 1000 {
			t.Fatal("no CONNECT was refused")
		}
	}
	n.connect().Ping()
}

// raw is a connection that has not sent its CONNECT.
func (n *node) raw() *mqtttest.Client {
	n.t.Helper()
	return mqtttest.Dial(n.t, n.addr)
}

// A subscriber at QoS 0 that reads late gets the payload as it was published, also
// when another subscription had a message made of it before.
func TestLatePayloadIsNotWhatWasReadMeanwhile(t *testing.T) {
	t.Parallel()
	const size = 300_000
	n := run(t, vfs.NewMem(), Limits{OutputBuffer: 64 << 20})
	high, low := n.connect(), n.deaf()
	high.Subscribe("a", 1)
	low.Subscribe("+", 0)
	publisher := n.connect()
	const count = 40
	for i := range count {
		publisher.Publish(publication{Topic: "a", QoS: 1, Payload: strings.Repeat(string(rune('a'+i%26)), size)})
		high.Receive()
	}
	for i := range count {
		want := strings.Repeat(string(rune('a'+i%26)), size)
		if m := low.Expect(mqtt.PUBLISH).Publish; m.Payload != want {
			t.Fatalf("message %d begins with %.20q and has %d bytes; want %.20q", i, m.Payload, len(m.Payload), want)
		}
	}
}

// At the bound the connections that hold most are closed, not one that holds
// little; the bystander is served all the while.
func TestReliefClosesTheConnectionsThatHoldMost(t *testing.T) {
	t.Parallel()
	const limit, hogs, size = 64 << 20, 8, 8 << 20
	n := runWith(t, vfs.NewMem(), Limits{MaxPacketSize: 2 * size}, memory.NewPool(limit))
	publisher, bystander := n.connect(), n.connect()
	bystander.Subscribe("echo", 1)
	holder := n.deaf() // holds something, but less than the others
	holder.Subscribe("some", 0)
	for range 40 {
		bystander.Publish(publication{Topic: "some", Payload: strings.Repeat("s", 1000)})
	}

	for i := range hogs { // each with a message of its own
		id := string(rune('a' + i))
		hog := n.deaf()
		hog.Subscribe(id, 1)
		publisher.Publish(publication{Topic: id, QoS: 1, Payload: strings.Repeat("x", size)})
		bystander.Publish(publication{Topic: "echo", QoS: 1, Payload: "x"})
		bystander.Receive()
	}
	until(t, "memory to be below its bound", func() bool { return !n.memory.Over() })
	if n.broker.Counters.Relieved.Load() == 0 {
		t.Error("no connection was closed although what clients don't take passes the bound")
	}
	for range 40 {
		if m := holder.Expect(mqtt.PUBLISH).Publish; m.Topic != "some" {
			t.Fatalf("the connection that holds little got %v", m)
		}
	}
	bystander.Ping()
}

// A packet counts as coming in after bytes of it have come, and while the reader doesn't
// take them.
func TestUnfinishedPacketsProgress(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	c := n.connect(mqtttest.ClientID("c"))
	conn := (*holder)(n.connOf("c"))
	packet := mqtttest.EncodePublish(mqtt.V5, publication{Topic: "big", Payload: strings.Repeat("x", 10_000)})
	conn.Progressed()
	c.Write(packet[:2000]) // the reader gets it in one piece, and waits for the rest
	until(t, "the reader to wait for the rest", func() bool {
		return conn.unfinished.Load() != 0 && readerState(conn.readerState.Load()) == readerListens && conn.Unfinished() > 0
	})
	if first, second := conn.Progressed(), conn.Progressed(); !first || second {
		t.Errorf("the packet has progressed: %v, and once more without another byte: %v", first, second)
	}
	conn.readerState.Store(uint32(readerWorks))
	if !conn.Progressed() {
		t.Error("it has not progressed although the reader is at work")
	}
}

// An address that has as many sessions as it may loses the one that is away longest
// and empty when it wants another; a session that holds acknowledged messages stays.
func TestSessionsOfAnAddressAreBounded(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxSessionsPerPrincipal: 3})
	holds := n.connect(mqtttest.Persistent("holds"))
	holds.Subscribe("queue", 1)
	holds.Disconnect()
	publisher := n.connect()
	publisher.Publish(publication{Topic: "queue", QoS: 1, Payload: "acknowledged"})
	publisher.Disconnect()
	until(t, "the publisher's session to end", func() bool { return n.broker.Levels().Sessions == 1 })
	n.connect(mqtttest.Persistent("empty")).Disconnect()
	connected := n.connect(mqtttest.Persistent("connected"))

	newcomer := n.connect(mqtttest.Persistent("newcomer"))
	if n.broker.Sessions.Lookup("empty") != nil || n.broker.Sessions.Lookup("holds") == nil || n.broker.Sessions.Lookup("connected") == nil {
		t.Fatal("another session than the one that was away and empty has ended")
	}
	if got := n.broker.Counters.SessionsDisplaced.Load(); got == 0 {
		t.Error("no session counts as displaced")
	}
	mqtttest.Refused(t, n.addr, mqtt.QuotaExceeded, mqtttest.Persistent("refused"))
	connected.Ping()
	newcomer.Ping()
}

// Clients that come at the same time to a server that is full each get the place of
// another session, and no more sessions end than new ones begin.
func TestEachNewSessionTakesOnePlace(t *testing.T) {
	t.Parallel()
	const bound, newcomers = 300, 40
	n := run(t, vfs.NewMem(), Limits{MaxSessionsPerPrincipal: bound})
	for i := range bound {
		n.connect(mqtttest.Persistent(fmt.Sprintf("away-%d", i))).Disconnect()
	}
	for i := range bound {
		s := n.broker.Sessions.Lookup(fmt.Sprintf("away-%d", i))
		until(t, "the client to be away", func() bool {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			return s.Peer == nil && s.Detaching == nil
		})
	}
	var clients [newcomers]*mqtttest.Client
	for i := range clients {
		clients[i] = mqtttest.Dial(t, n.addr)
		clients[i].SendConnect(mqtttest.Persistent(fmt.Sprintf("new-%d", i)))
	}
	for _, c := range clients {
		c.Expect(mqtt.CONNACK)
		c.Ping()
	}
	if got := n.broker.Counters.SessionsDisplaced.Load(); got != newcomers {
		t.Errorf("%d sessions ended for %d new ones", got, newcomers)
	}
	if got := n.broker.Levels().Sessions; got != bound {
		t.Errorf("there are %d sessions, want %d", got, bound)
	}
}

// The total bound takes from the address that has most, and comes back when its
// sessions are gone.
func TestTotalOfSessionsTakesFromTheAddressThatHasMost(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxSessions: 3})
	far := n.serveAlso(func(l net.Listener) net.Listener { return farListener{l} })
	for i, from := range []string{n.addr, n.addr, far} {
		id := string(rune('a' + i))
		mqtttest.Connect(t, from, mqtttest.Persistent(id)).Disconnect()
		s := n.broker.Sessions.Lookup(id)
		until(t, "the client to be away", func() bool {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			return s.Peer == nil && s.Detaching == nil
		})
	}
	n.connect(mqtttest.Persistent("d")).Ping()
	if n.broker.Sessions.Lookup("a") != nil || n.broker.Sessions.Lookup("b") == nil || n.broker.Sessions.Lookup("c") == nil {
		t.Error("not the longest away of the address with most sessions has ended")
	}
}

// Filters are bounded by their bytes, and come back with the session.
func TestFiltersAreBoundedByTheirBytes(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxFilterBytes: 100_000})
	c := n.connect(mqtttest.ClientID("c"))
	long := strings.Repeat("f", 49_990)
	subscribe := func(filter string) mqtt.ReasonCode {
		c.SendSubscribe(0, mqtttest.Sub{Filter: filter, QoS: 1})
		return c.Expect(mqtt.SUBACK).Suback.Codes[0]
	}
	for i, want := range []mqtt.ReasonCode{1, 1, mqtt.QuotaExceeded} {
		if code := subscribe(string(rune('a'+i)) + long); code != want {
			t.Errorf("filter %d of 50 kB: %v, want %v", i, code, want)
		}
	}
	if used := n.memory.UsedBy(memory.Subscriptions); used < 100_000 {
		t.Errorf("%d bytes are charged for subscriptions", used)
	}
	c.Unsubscribe("a" + long)
	if code := subscribe("short"); code != 1 {
		t.Errorf("after an UNSUBSCRIBE: %v", code)
	}
	c.Disconnect()
	until(t, "the filters to be credited", func() bool { return n.memory.UsedBy(memory.Subscriptions) == 0 })
}

// Topic aliases are bounded by the bytes of their topics, both ways.
func TestAliasesAreBoundedByTheirBytes(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxAliasBytes: 1000})
	long := strings.Repeat("t", 590)
	reader := n.connect(mqtttest.TopicAliasMaximum(10))
	reader.Subscribe("#", 0)
	publisher := n.connect()
	for i := range 4 {
		publisher.Publish(publication{Topic: string(rune('a'+i)) + long})
		if m := reader.Receive(); m.Topic != string(rune('a'+i))+long {
			t.Fatalf("got a message to %.20q", m.Topic)
		}
	}
	if used := n.memory.UsedBy(memory.Subscriptions); used > 1000+2000 {
		t.Errorf("%d bytes are charged for aliases", used)
	}
	alias := func(i int) []byte {
		p := mqtt.Publish{Topic: []byte(string(rune('a'+i)) + long)}
		p.Props.TopicAlias, p.Props.HasTopicAlias = uint16(i+1), true
		return mqtt.AppendPublish(nil, mqtt.V5, &p)
	}
	publisher.Write(alias(0))
	publisher.Write(alias(1))
	publisher.ExpectDisconnect(mqtt.QuotaExceeded)
}
