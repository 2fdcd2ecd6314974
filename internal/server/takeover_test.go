package server

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Requests whose answers wait for the disk when the client's next connection takes over:
// each response comes on that one, once.
func TestResponsesOutliveATakeover(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	s := startOn(t, disk, func(c *Config) { c.Limits.TakeoverWait = mqtttest.Deadline }) // for a busy machine
	addr := s.Addrs()[0].String()
	const topic = "answers"
	old := mqtttest.Connect(t, addr, mqtttest.Persistent("c"), mqtttest.HoldAcks())
	old.Subscribe(topic, 1)
	requests := [][]string{
		{"KEYNOTIFY", "watched"},
		{"SET", "watched", "1"}, // asked for by the change
		{"SET", "other", "1"},
		{"GET", "other"},
		{"GET", "watched"}, // asked for by the engine
		{"DEL", "other"},
		{"GET", "other"},
		{"NONSENSE"}, // waits for nothing but those before it
		{"STORE", "memo", "v", "VER", "-", "m"},
		{"KEYNOTIFY", "watched", "STOP"},
	}
	want := map[string]bool{}
	disk.Hold()
	defer disk.Release(nil)
	var packets []byte
	for i, args := range requests {
		packets = requestTo(packets, topic, uint16(100+i), fmt.Sprint("request ", i), args...)
		want[fmt.Sprint("request ", i)] = true
	}
	old.Write(packets)
	disk.AwaitSync()

	next := mqtttest.Dial(t, addr)
	next.SendConnect(mqtttest.Persistent("c"))
	old.AwaitDisconnect(mqtt.SessionTakenOver)
	disk.Release(nil)
	if ack := next.Expect(mqtt.CONNACK).Connack; !ack.SessionPresent {
		t.Error("the session is another one")
	}
	for len(want) > 0 {
		m := next.Receive()
		if m.CorrelationData == nil {
			continue // a notification from before
		}
		if !want[*m.CorrelationData] {
			t.Errorf("the response to %q came twice", *m.CorrelationData)
		}
		delete(want, *m.CorrelationData)
	}
	next.Quiet()
}

// requestTo appends a request whose response goes to a topic.
func requestTo(dst []byte, topic string, id uint16, correlation string, args ...string) []byte {
	var list [][]byte
	for _, a := range args {
		list = append(list, []byte(a))
	}
	return mqtt.AppendPublish(dst, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: id, Topic: []byte(protocol.InvokeTopic), Payload: protocol.AppendCommand(nil, list...),
		Props: mqtt.PublishProps{
			HasResponseTopic: true, ResponseTopic: []byte(topic),
			HasCorrelationData: true, CorrelationData: []byte(correlation), Raw: mqtt.AppendUserProp(nil, protocol.TimeProperty, stamp()),
		},
	})
}

// Requests of a client that goes before they are answered: the responses are routed in
// the order of the requests, although some of them wait for the disk.
func TestResponsesOfAClientThatIsGoneKeepTheirOrder(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	s := startOn(t, disk)
	addr := s.Addrs()[0].String()
	const topic = "answers"
	observer := mqtttest.Connect(t, addr)
	observer.Subscribe(topic, 0)
	c := mqtttest.Connect(t, addr, mqtttest.Persistent("c"))
	requests := [][]string{
		{"SET", "key", "1"},
		{"NONSENSE"}, // waits for nothing but the one before it
		{"GET", "key"},
		{"NONSENSE"},
	}
	disk.Hold()
	defer disk.Release(nil)
	var packets []byte
	for i, args := range requests {
		packets = requestTo(packets, topic, uint16(1+i), fmt.Sprint("request ", i), args...)
	}
	c.Write(packets)
	c.Ping() // the requests have been handled
	c.Drop()
	until(t, "the connection to end", func() bool { return s.broker.Levels().Connections == 1 })
	disk.Release(nil)
	for i := range requests {
		if m := observer.Receive(); m.CorrelationData == nil || *m.CorrelationData != fmt.Sprint("request ", i) {
			t.Fatalf("%v came, want the response to request %d", m, i)
		}
	}
}
