package conformance

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

const notUnderWay = "no message with this packet identifier is under way"

// A transaction acknowledges the message that it has processed: it does not come again.
func TestTransactionSettles(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"after a reconnection": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			c := n.connect(mqtttest.Persistent("worker"), mqtttest.HoldAcks())
			r := requests(t, c)
			c.Subscribe("in", 1)
			from := n.connect()
			for _, payload := range []string{"first", "second"} {
				from.Publish(message{Topic: "in", Payload: payload, QoS: 1})
			}
			first, second := c.Receive(), c.Receive()
			if got := r.txn(fmt.Sprintf("SETTLE %d SET k 1", second.PacketID)); !done(got) {
				t.Fatalf("got %q", got)
			}
			if got := r.txn(fmt.Sprintf("SETTLE %d SET k 2", second.PacketID)); got != operationFailure(1, notUnderWay) {
				t.Errorf("once more: %q", got)
			}
			c.Drop()
			if restart {
				n.Restart()
			}
			again := n.connect(mqtttest.Persistent("worker"), mqtttest.Resume())
			if m := again.Receive(); m.Payload != first.Payload {
				t.Errorf("got %q again, want only what was not settled", m.Payload)
			}
			again.Disconnect()
		})
	}
}

// Only a message at QoS 1 can be settled that its client has received on this connection and
// not acknowledged. One that cannot refuses the whole.
func TestTransactionSettlesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.HoldAcks())
	r := requests(t, c)
	c.Subscribe("in", 2)
	from := n.connect()
	for qos := range byte(3) {
		from.Publish(message{Topic: "in", Payload: fmt.Sprint(qos), QoS: qos})
	}
	received := map[string]message{}
	for _, m := range c.ReceiveN(3) {
		received[m.Payload] = m
	}
	other := n.requester()
	first, exactlyOnce := received["1"].PacketID, received["2"].PacketID
	for _, tc := range []struct {
		by   *requester
		text string
		op   int
	}{
		{r, fmt.Sprintf("SET k 1 SETTLE %d", exactlyOnce), 2},
		{r, "SETTLE 0 SET k 1", 1},
		{r, "SETTLE 40000 SET k 1", 1}, // the identifier of a response
		{r, fmt.Sprintf("SETTLE %d SET k 1 PUBLISH in no SETTLE 31000", first), 4},
		{other, fmt.Sprintf("SETTLE %d SET k 1", first), 1},
	} {
		if got := tc.by.txn(tc.text); got != operationFailure(tc.op, notUnderWay) {
			t.Errorf("TXN %s: %q", tc.text, got)
		}
	}
	r.want(nilBlob, "GET", "k")
	// What fails, or is done already, settles nothing.
	if got := r.txn("ONCE k m"); !done(got) {
		t.Errorf("got %q", got)
	}
	for _, text := range []string{"IF k EXISTS SETTLE %d", "ONCE k m SETTLE %d"} {
		if got := r.txn(fmt.Sprintf(text, first)); done(got) {
			t.Errorf("TXN %s: %q", text, got)
		}
	}
	c.SendAck(mqtt.PUBACK, first, mqtt.Success)
	if got := r.txn(fmt.Sprintf("SETTLE %d", first)); got != operationFailure(1, notUnderWay) {
		t.Errorf("after its PUBACK: %q", got)
	}
}

// A message that was settled leaves its place in the client's Receive Maximum to the next,
// which comes behind the reply.
func TestTransactionThatSettlesMakesRoom(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]mqtttest.Option{
		"a session that ends with its connection": nil,
		"a session on disk":                       {mqtttest.Persistent("worker")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			c := n.connect(append(opts, mqtttest.HoldAcks(), mqtttest.ReceiveMaximum(2))...)
			r := requests(t, c)
			const messages = 60
			c.Subscribe("$share/g/in", 1)
			publishAll(n.connect(), numbered("in", 1, messages))
			for i := range messages {
				m := c.Receive()
				if m.Payload != fmt.Sprint(i) {
					t.Fatalf("got %v, want message %d", m, i)
				}
				got := r.do("TXN", "SETTLE", fmt.Sprint(m.PacketID), "SET", "last", m.Payload)
				if !done(got.Payload) {
					t.Fatalf("message %d: %q", i, got.Payload)
				}
				c.Acknowledge(got) // which gives its place back to the messages
			}
			c.Quiet()
			if got := r.txn("IF last VALUE " + fmt.Sprint(messages-1)); !done(got) {
				t.Errorf("at the end: %q", got)
			}
		})
	}
}

// A message of a shared subscription that was settled goes to no other member.
func TestTransactionSettlesForAGroup(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.HoldAcks())
	r := requests(t, c)
	c.Subscribe("$share/g/in", 1)
	publishAll(n.connect(), numbered("in", 1, 2))
	first := c.Receive()
	c.Receive()
	other := n.connect()
	other.Subscribe("$share/g/in", 1)
	if got := r.txn(fmt.Sprintf("SETTLE %d", first.PacketID)); !done(got) {
		t.Fatalf("got %q", got)
	}
	c.Drop()
	if m := other.Receive(); m.Payload != "1" {
		t.Errorf("the other member got %v, want what was not settled", m)
	}
	other.Quiet()
}
