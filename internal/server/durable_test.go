package server

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// Commands that have to wait for the disk are answered when it has synced, in the
// order in which they came, whatever they wait for: a batch that others of the
// connection wait for, one of an earlier command, a deletion. What needn't wait
// isn't answered before them.
func TestAnswersThatWaitForTheDiskKeepTheirOrder(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	r := mqtttest.Connect(t, startOn(t, disk).Addrs()[0].String(), mqtttest.ClientID("r"))
	r.Subscribe(responseTopic+"/r", 1)
	sent := uint16(0)
	send := func(args ...string) {
		sent++
		r.Write(request(nil, "r", sent, stamp(), args...))
	}
	want := func(id uint16, payload string) {
		t.Helper()
		if ack := r.Expect(mqtt.PUBACK).Ack; ack.PacketID != id {
			t.Errorf("PUBACK of request %d, want that of %d", ack.PacketID, id)
		}
		if got := r.Receive(); got.Payload != payload {
			t.Errorf("request %d: %q, want %q", id, got.Payload, payload)
		}
	}
	send("SET", "durable", "x")
	want(1, "+OK\r\n")

	disk.Hold()
	const rounds = 3
	for i := range rounds {
		send("SET", "a", fmt.Sprint(i))
		send("SET", "b", fmt.Sprint(i), "NX")
		send("GET", "durable")
		send("GET", "a")
		send("DEL", "b")
	}
	r.Ping() // whose answer would come after theirs
	disk.AwaitSync()
	disk.Release(nil)

	for i := range rounds {
		for k, payload := range []string{"+OK\r\n", "+OK\r\n", "$1\r\nx\r\n", fmt.Sprintf("$1\r\n%d\r\n", i), ":1\r\n"} {
			want(uint16(2+5*i+k), payload)
		}
	}
	r.Quiet()
}
