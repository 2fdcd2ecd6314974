package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// What follows was seen to go wrong in brokers that are in use. Three traps of
// that kind have their tests elsewhere: an expired session gets nothing
// (TestSessionExpires), no property appears that the publisher did not send
// (TestPropertiesArriveAsPublished, TestNoPropertyAppearsOnTheWire), delayed wills
// respect the session's expiry (TestDelayedWillWhenTheSessionEndsFirst).

// Client and server give packet identifiers each on their own: the same number
// can be under way in both directions (MQTT 5, section 2.2.1).
func TestPacketIdentifiersOfBothSidesAreSeparate(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		id, in, out := "ids"+versionName(v), "ids/in/"+versionName(v), "ids/out/"+versionName(v)
		connect := func() *client {
			return mqtttest.Connect(t, n.Addr, mqtttest.Version(v), mqtttest.Persistent(id), mqtttest.HoldAcks())
		}
		other := mqtttest.Connect(t, n.Addr)
		other.Subscribe(out, 2)

		// Given deliveries to the client that it has not acknowledged.
		c := connect()
		c.Subscribe(in, 2)
		for i, m := range numbered(in, 1, 8) {
			m.QoS = byte(1 + i%2)
			other.Publish(m)
		}
		under := c.ReceiveN(8)

		// When the client publishes under the very same identifiers, at the same and at the other QoS.
		for _, m := range under {
			for qos := byte(1); qos <= 2; qos++ {
				c.Publish(message{Topic: out, QoS: qos, PacketID: m.PacketID})
			}
		}
		if got := collect(other, 16); len(got) != 16 {
			t.Errorf("got %d of 16 publishes", len(got))
		}

		// Then its deliveries are still under way: they come again.
		c.Drop()
		c = connect()
		again := c.ReceiveN(8)
		wantPayloads(t, again, counted(0, 8))
		for i, m := range again {
			if !m.Dup || m.PacketID != under[i].PacketID {
				t.Errorf("got %v, want DUP and identifier %d", m, under[i].PacketID)
			}
		}

		// And a publish of the client's is complete whatever the client acknowledges.
		c.SendPublish(message{Topic: out, QoS: 2, PacketID: again[0].PacketID})
		c.AwaitAck(mqtt.PUBREC, again[0].PacketID)
		for _, m := range again {
			c.Acknowledge(m)
		}
		wantCode(t, "PUBCOMP", c.Release(again[0].PacketID).Code, mqtt.Success)
		c.Quiet()
	})
}

func TestReceiveMaximumHoldsOnResume(t *testing.T) {
	t.Parallel()
	n := start(t)
	for qos := byte(1); qos <= 2; qos++ {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			t.Parallel()
			id := fmt.Sprint("resume", qos)
			connect := func(maximum uint16) *client {
				return mqtttest.Connect(t, n.Addr, mqtttest.Persistent(id), mqtttest.ReceiveMaximum(maximum), mqtttest.HoldAcks())
			}
			// Given a session with ten messages under way and ten in its queue.
			c := connect(10)
			c.Subscribe(id, 2)
			publishAll(mqtttest.Connect(t, n.Addr), numbered(id, qos, 20))
			c.ReceiveN(10)
			c.Drop()

			// When it is resumed with a smaller maximum, that one counts.
			c = connect(3)
			window := c.ReceiveN(3)
			c.Quiet()
			for i := 3; i < 20; i++ {
				c.Acknowledge(window[0])
				window = append(window[1:], c.Receive())
				c.Quiet()
			}
			wantPayloads(t, window, counted(17, 20))
		})
	}
}

func TestRedeliveryKeepsTheOrder(t *testing.T) {
	t.Parallel()
	n := start(t)
	const count = 300
	connect := func() *client { return n.connect(mqtttest.Persistent("order"), mqtttest.HoldAcks()) }
	c := connect()
	c.Subscribe("order", 1)
	publisher := n.connect()
	messages := numbered("order", 1, 2*count)
	publishAll(publisher, messages[:count])

	// Given many messages under way, of which some in the middle are acknowledged.
	sent := c.ReceiveN(count)
	for i := 100; i < 110; i++ {
		c.Acknowledge(sent[i])
	}
	c.Disconnect()
	publishAll(publisher, messages[count:])

	// Then the rest comes first, in its order, with DUP and its identifiers, then the new ones without
	// [MQTT-4.4.0-1] [MQTT-4.6.0-1].
	c = connect()
	got := c.ReceiveN(2*count - 10)
	wantPayloads(t, got, append(counted(0, 100), counted(110, 2*count)...))
	for i, m := range got {
		if again := i < count-10; m.Dup != again {
			t.Fatalf("message %d: got %v, want DUP %v", i, m, again)
		}
	}
	for i, m := range got[:100] {
		if m.PacketID != sent[i].PacketID {
			t.Fatalf("got identifier %d for message %d, want the original %d", m.PacketID, i, sent[i].PacketID)
		}
	}

	// Once more, with nothing acknowledged: the same again.
	c.Drop()
	c = connect()
	wantPayloads(t, c.ReceiveN(2*count-10), append(counted(0, 100), counted(110, 2*count)...))
}

// small is a connection whose receiving side takes little while the test doesn't
// read. It is more than a segment on the loopback, though: below that the
// kernel sends only five times a second.
func small(t *testing.T, n *node, opts ...mqtttest.Option) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", n.Addr, mqtttest.Deadline)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(128 << 10); err != nil {
		t.Fatal(err)
	}
	c := mqtttest.NewClient(t, conn)
	c.Connect(opts...)
	return c
}

// large is a payload that begins with its number; 4 KiB each, so that a few
// thousand are more than the kernel holds for one connection.
func large(i int) string { return fmt.Sprintf("%d %s", i, strings.Repeat("x", 4<<10)) }

func number(t *testing.T, m message) (i int) {
	t.Helper()
	if _, err := fmt.Sscan(m.Payload, &i); err != nil {
		t.Fatalf("got %v", m)
	}
	return i
}

// flood publishes n large messages at QoS 1, from one client that waits for the
// acknowledgements: a stalled subscriber does not affect it.
func flood(c *client, topic string, n int) {
	messages := make([]message, n)
	for i := range messages {
		messages[i] = message{Topic: topic, Payload: large(i), QoS: 1}
	}
	c.PublishAll(messages)
}

func TestPausedSubscriberGetsEverything(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]mqtttest.Option{
		"session ends with its connection": {mqtttest.ClientID("paused")},
		"session outlives its connection":  {mqtttest.Persistent("paused")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			const count = 2500
			paused, other := small(t, n, opts...), mqtttest.Connect(t, n.Addr)
			paused.Subscribe("flood", 1)
			other.Subscribe("other", 1)

			// When a subscriber doesn't read while ten megabytes come, publishers go on and others get theirs.
			publisher := mqtttest.Connect(t, n.Addr)
			flood(publisher, "flood", count)
			publisher.Publish(message{Topic: "other", QoS: 1})
			other.Receive()

			// Then it gets everything when it reads again, in order.
			for i := range count {
				if got := number(t, paused.Receive()); got != i {
					t.Fatalf("got message %d, want %d", got, i)
				}
			}
			paused.Quiet()
		})
	}
}

func TestPausedSubscriberBeyondItsBound(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 500 })
	paused, other := small(t, n, mqtttest.Persistent("paused")), n.connect()
	paused.Subscribe("flood", 1)
	other.Subscribe("flood", 0)
	publisher := n.connect()
	flood(publisher, "flood", 2500)

	// Then what it gets has no hole: its beginning, and then the connection ends.
	deadline := time.Now().Add(mqtttest.Deadline)
	next := 0
	for {
		p, err := paused.Read(deadline)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("want the connection closed after %d messages, got %v", next, err)
		}
		switch p.Type {
		case mqtt.PUBLISH:
			if got := number(t, *p.Publish); got != next {
				t.Fatalf("got message %d, want %d", got, next)
			}
			next++
		case mqtt.DISCONNECT:
			wantCode(t, "DISCONNECT", p.Disconnect.Code, mqtt.QuotaExceeded)
		default:
			t.Fatalf("got %v", p)
		}
	}
	if next > 500 {
		t.Errorf("got %d messages without having acknowledged one, the bound is 500", next)
	}

	// And its session is gone, which it learns of.
	c := n.connect(mqtttest.Persistent("paused"))
	wantPresent(t, c, false)
	c.Quiet()
}

// QoS 0 has no queue: what the output can't take is dropped. The connection
// lives on, and what does come is in order.
func TestPausedSubscriberAtQoS0(t *testing.T) {
	t.Parallel()
	n := start(t)
	paused := small(t, n)
	paused.Subscribe("flood", 0)
	const count = 2500
	publisher := n.connect()
	flood(publisher, "flood", count)

	last := -1
	for _, m := range paused.Collect() {
		if got := number(t, m); got <= last {
			t.Fatalf("got message %d after %d", got, last)
		} else {
			last = got
		}
	}
	publisher.Publish(message{Topic: "flood", Payload: "now", QoS: 1})
	if got := paused.Receive().Payload; got != "now" {
		t.Errorf("got %q, want what was published after the pause", got)
	}
}

// wantSoon fails if something that must not wait for a stalled peer has taken longer than a
// busy machine explains.
func wantSoon(t *testing.T, what string, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > mqtttest.Deadline/2 {
		t.Errorf("%s took %v", what, took)
	}
}

func TestTakeoverOfAStalledConnection(t *testing.T) {
	t.Parallel()
	n := start(t)
	for name, stall := range map[string]func(t *testing.T, c *client){
		"a subscriber that doesn't read": func(t *testing.T, c *client) {
			c.Subscribe("flood/subscriber", 1)
			flood(mqtttest.Connect(t, n.Addr), "flood/subscriber", 2500)
		},
		"a client that doesn't read its answers": fillUp,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := name
			stalled := small(t, n, mqtttest.Persistent(id))
			stall(t, stalled)

			// When another connection takes the session over.
			began := time.Now()
			c := mqtttest.Connect(t, n.Addr, mqtttest.Persistent(id))
			wantSoon(t, "the takeover", began)
			wantPresent(t, c, true)
			c.Subscribe("mine/"+id, 1)
			c.Disconnect()

			// And a third one a clean start.
			began = time.Now()
			mqtttest.Connect(t, n.Addr, mqtttest.ClientID(id)).Quiet()
			wantSoon(t, "the clean start", began)
		})
	}
}

// fillUp sends until the server doesn't take any more: it has stopped reading,
// since this client doesn't take its answers.
func fillUp(t *testing.T, c *client) {
	t.Helper()
	burst := bytes.Repeat(mqtt.AppendPingreq(nil), 8<<10)
	for range 2000 {
		switch err := c.WriteFor(burst, 300*time.Millisecond); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return
		case err != nil:
			t.Fatal(err)
		}
	}
	t.Fatal("the server takes requests without end from a client that takes no answers")
}

func TestShutdownWithAStalledConnection(t *testing.T) {
	t.Parallel()
	n := start(t)
	subscriber, publisher := small(t, n), small(t, n)
	subscriber.Subscribe("flood", 1)
	flood(n.connect(), "flood", 2500)
	fillUp(t, publisher)
	began := time.Now()
	n.Stop()
	wantSoon(t, "the shutdown", began)
}

func TestSimultaneousConnectsLeaveOneAlive(t *testing.T) {
	t.Parallel()
	n := start(t)
	publisher := n.connect()
	for round := range 60 {
		id := fmt.Sprint("twin", round%7) // some sessions are there, some are not
		topic := fmt.Sprint("twin/", round)

		// When two clients send the same CONNECT at the same time.
		twins := []*client{n.dial(), n.dial()}
		opts := []mqtttest.Option{mqtttest.Persistent(id)}
		if round%3 == 0 {
			opts = []mqtttest.Option{mqtttest.ClientID(id)}
		}
		for _, c := range twins {
			c.SendConnect(opts...)
		}

		// Then one is closed, and only one: it says 0x8E if it was connected at all.
		closed := make(chan int, 2)
		for i, c := range twins {
			go func() {
				for {
					p, err := c.Read(time.Now().Add(mqtttest.Deadline))
					if err != nil {
						closed <- i
						return
					}
					ok := p.Type == mqtt.CONNACK && p.Connack.Code == mqtt.Success ||
						p.Type == mqtt.DISCONNECT && p.Disconnect.Code == mqtt.SessionTakenOver ||
						p.Type == mqtt.SUBACK || p.Type == mqtt.PUBLISH
					if !ok {
						t.Errorf("round %d: got %v", round, p)
					}
					if p.Type == mqtt.PUBLISH {
						closed <- i + 2
						return
					}
				}
			}()
		}
		loser := <-closed
		if loser > 1 {
			t.Fatalf("round %d: got a message that was not published", round)
		}
		survivor := 1 - loser

		// The other one lives: it subscribes and gets a message, once.
		twins[survivor].SendSubscribe(0, sub{Filter: topic, QoS: 0})
		for publisher.Offer(message{Topic: topic, QoS: 1}).Code == mqtt.NoMatchingSubscribers {
		}
		if got := <-closed; got != survivor+2 {
			t.Fatalf("round %d: neither connection is alive", round)
		}
		twins[survivor].Drop()
	}
}

// A client's Receive Maximum is a window that moves, not a number of messages
// after which nothing comes.
func TestSmallReceiveMaximumDoesNotHang(t *testing.T) {
	t.Parallel()
	n := start(t)
	for _, maximum := range []uint16{1, 32} {
		for qos := byte(1); qos <= 2; qos++ {
			topic := fmt.Sprint("window/", maximum, "/", qos)
			c := n.connect(mqtttest.ReceiveMaximum(maximum))
			c.Subscribe(topic, qos)
			publisher := n.connect(mqtttest.ReceiveMaximum(maximum))
			publishAll(publisher, numbered(topic, qos, 200))
			wantPayloads(t, c.ReceiveN(200), counted(0, 200))

			// The same while both directions are busy on one connection.
			both := n.connect(mqtttest.ReceiveMaximum(maximum))
			both.Subscribe("both/"+topic, qos)
			publishAll(both, numbered("both/"+topic, qos, 200))
			wantPayloads(t, both.ReceiveN(200), counted(0, 200))
		}
	}
}
