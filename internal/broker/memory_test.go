package broker

import (
	"net"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
	"holdfast/internal/mqtttest"
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
		n.connect().Publish(message{Topic: "big", QoS: qos, Payload: payload})
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

// Packets that never become whole don't take more than their share, whoever sends
// them, and a client with a small packet doesn't notice.
func TestUnfinishedPacketsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 32 << 20
	n := runWith(t, vfs.NewMem(), Limits{}, memory.NewPool(limit))
	bystander := n.connect()
	bystander.Subscribe("echo", 1)

	head := mqtttest.EncodePublish(mqtt.V5, message{Topic: "big", Payload: strings.Repeat("x", 4<<20)})
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
	bystander.Publish(message{Topic: "echo", QoS: 1, Payload: "x"})
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
		publisher.Publish(message{Topic: "a", QoS: 1, Payload: strings.Repeat(string(rune('a'+i%26)), size)})
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
		bystander.Publish(message{Topic: "some", Payload: strings.Repeat("s", 1000)})
	}

	for i := range hogs { // each with a message of its own
		id := string(rune('a' + i))
		hog := n.deaf()
		hog.Subscribe(id, 1)
		publisher.Publish(message{Topic: id, QoS: 1, Payload: strings.Repeat("x", size)})
		bystander.Publish(message{Topic: "echo", QoS: 1, Payload: "x"})
		bystander.Receive()
	}
	until(t, "memory to be below its bound", func() bool { return !n.memory.Over() })
	if n.broker.stats.Relieved.Load() == 0 {
		t.Error("no connection was closed although what clients don't take passes the bound")
	}
	for range 40 {
		if m := holder.Expect(mqtt.PUBLISH).Publish; m.Topic != "some" {
			t.Fatalf("the connection that holds little got %v", m)
		}
	}
	bystander.Ping()
}

// While the memory of a connection that was closed is coming back, no other is closed
// in its place.
func TestReliefWaitsForWhatItHasClosed(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	n := run(t, vfs.NewMem(), Limits{MaxPacketSize: 2 * size})
	publisher := n.connect()
	for _, id := range []string{"ends", "other"} {
		n.deaf(mqtttest.ClientID(id)).Subscribe(id, 1)
		publisher.Publish(message{Topic: id, QoS: 1, Payload: strings.Repeat("x", size)})
		until(t, "the message to wait", func() bool { return n.conn(id).holds() > leastRelief })
	}
	r := relief{b: n.broker, quiet: map[*Conn]int{}, closed: map[*Conn]closedHolder{n.conn("ends"): {bytes: size}}}
	if r.closeHeaviest(size, true) {
		t.Fatal("another connection was closed although enough memory is coming back")
	}
	if other := n.conn("other"); !r.closeHeaviest(size+1, true) || !other.stopping.Load() {
		t.Error("not the other connection was closed although too little memory is coming back")
	}
}

// A packet is still coming in as long as bytes of it come, or the reader doesn't take
// them; after a pause it counts like any other.
func TestReliefSparesPacketsThatAreComingIn(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	c := n.connect(mqtttest.ClientID("c"))
	conn := n.conn("c")
	packet := mqtttest.EncodePublish(mqtt.V5, message{Topic: "big", Payload: strings.Repeat("x", 10_000)})
	r := relief{b: n.broker, quiet: map[*Conn]int{}}
	c.Write(packet[:2000]) // the reader gets it in one piece, and waits for the rest
	until(t, "a part to be read", func() bool { return conn.tr.HeldInput() > 0 })
	for look := range reliefQuiet + 1 {
		if got, want := r.grows(conn), look < reliefQuiet; got != want {
			t.Errorf("look %d: it counts as coming in: %v", look, got)
		}
	}
	conn.reads.Store(uint32(readerWorks))
	if !r.grows(conn) {
		t.Error("it does not count as coming in although the reader is at work")
	}
}

// An address that has as many sessions as it may loses the one that is away longest
// and empty when it wants another; a session that holds acknowledged messages stays.
func TestSessionsOfAnAddressAreBounded(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxSessionsPerHost: 3})
	holds := n.connect(mqtttest.Persistent("holds"))
	holds.Subscribe("queue", 1)
	holds.Disconnect()
	publisher := n.connect()
	publisher.Publish(message{Topic: "queue", QoS: 1, Payload: "acknowledged"})
	publisher.Disconnect()
	until(t, "the publisher's session to end", func() bool { return n.broker.Levels().Sessions == 1 })
	n.connect(mqtttest.Persistent("empty")).Disconnect()
	connected := n.connect(mqtttest.Persistent("connected"))

	newcomer := n.connect(mqtttest.Persistent("newcomer"))
	if n.broker.lookup("empty") != nil || n.broker.lookup("holds") == nil || n.broker.lookup("connected") == nil {
		t.Fatal("another session than the one that was away and empty has ended")
	}
	if got := n.broker.stats.SessionsDisplaced.Load(); got == 0 {
		t.Error("no session counts as displaced")
	}
	mqtttest.Refused(t, n.addr, mqtt.QuotaExceeded, mqtttest.Persistent("refused"))
	connected.Ping()
	newcomer.Ping()
}

// The total bound takes from the address that has most, and comes back when its
// sessions are gone.
func TestTotalOfSessionsTakesFromTheAddressThatHasMost(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxSessions: 3})
	for i, id := range []string{"a", "b", "c"} {
		n.connect(mqtttest.Persistent(id)).Disconnect()
		s := n.broker.lookup(id)
		until(t, "the client to be away", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.conn == nil && s.detaching == nil {
				s.away = int64(1000 + i) // two may have left in the same millisecond
				return true
			}
			return false
		})
	}
	n.broker.moveTo(n.broker.lookup("c"), "192.0.2.1")
	n.connect(mqtttest.Persistent("d")).Ping()
	if n.broker.lookup("a") != nil || n.broker.lookup("b") == nil || n.broker.lookup("c") == nil {
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
		publisher.Publish(message{Topic: string(rune('a'+i)) + long})
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
