package broker

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/mqtt"
)

var pingreq = mqtt.AppendPingreq(nil)

func TestAReaderWhoseClientNeverWaitsTakesTurns(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	patient, greedy := n.connect(), n.connect()
	for range 2 * paceBurst {
		patient.Ping()
	}
	if entered := n.broker.gate.Entered(); entered != 0 {
		t.Fatalf("the reader of a client that waits for each answer entered the gate %d times", entered)
	}
	const pings = 20 * paceBurst
	go greedy.Write(bytes.Repeat(pingreq, pings))
	for range pings {
		greedy.Expect(mqtt.PINGRESP)
	}
	if n.broker.gate.Entered() == 0 {
		t.Fatalf("the reader of a client that sent %d packets at once never entered the gate", pings)
	}
	if paced := n.broker.Stats().PacketsPaced.Load(); paced == 0 || paced > pings {
		t.Fatalf("%d packets were counted as handled in turn, of %d", paced, pings)
	}
	patient.Ping()
}

func TestAReplayOfManyRetainedMessagesTakesTurns(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	for i := range 20 * replayAhead {
		n.broker.PublishSys(string(rune('a'+i%26))+"/"+string(rune('0'+i/26)), "a figure")
	}
	c := n.connect()
	c.Subscribe("$SYS/#", 0)
	for range 20 * replayAhead {
		c.Expect(mqtt.PUBLISH)
	}
	if n.broker.gate.Entered() == 0 {
		t.Fatalf("a replay of %d messages was done in one go", 20*replayAhead)
	}
}
