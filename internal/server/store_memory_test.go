package server

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// deaf connects a client whose socket takes little, and that reads nothing unless the
// test does.
func deaf(t *testing.T, s *Server, opts ...mqtttest.Option) (*mqtttest.Client, *net.TCPConn) {
	t.Helper()
	socket, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	tcp := socket.(*net.TCPConn)
	if err := tcp.SetReadBuffer(256 << 10); err != nil {
		t.Fatal(err)
	}
	c := mqtttest.NewClient(t, socket)
	c.Connect(opts...)
	return c, tcp
}

// until waits for what happens on its own.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); {
		if time.Since(began) > mqtttest.Deadline {
			t.Fatalf("waited too long for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func storeRequest(i int, args ...string) mqtttest.Message {
	words := make([][]byte, len(args))
	for i, a := range args {
		words[i] = []byte(a)
	}
	return mqtttest.Message{
		Topic: protocol.InvokeTopic, QoS: 1, Payload: string(protocol.AppendCommand(nil, words...)),
		ResponseTopic: new("responses"), CorrelationData: new(fmt.Sprint(i)),
		User: [][2]string{{protocol.TimeProperty, fmt.Sprintf("%d:0:test", time.Now().UnixMilli())}},
	}
}

// A large value that many watchers are told, and don't read, is in memory once.
func TestLargeNotificationIsInMemoryOnce(t *testing.T) {
	t.Parallel()
	const watchers, size = 4, 12 << 20 // three times what Linux takes for a client that does not read
	s := start(t, func(c *Config) { c.MaxMemory = 1 << 30; c.Limits.MaxPacketSize = 2 * size })
	all := make([]*mqtttest.Client, watchers)
	for i := range all {
		all[i], _ = deaf(t, s)
		all[i].Offer(storeRequest(i, "KEYNOTIFY", "k"))
	}
	value := strings.Repeat("0123456789abcdef", size/16)
	mqtttest.Connect(t, s.Addrs()[0].String()).Offer(storeRequest(0, "SET", "k", value))
	until(t, "the notifications to wait", func() bool { return s.memory.UsedBy(memory.Output) > size })
	if used := s.memory.UsedBy(memory.Output) + s.memory.UsedBy(memory.Replies); used > size+watchers*1000 {
		t.Errorf("%d bytes are charged for notifications of one value of %d", used, size)
	}
	for i, c := range all {
		if m := c.Expect(mqtt.PUBLISH).Publish; m.Payload != string(protocol.AppendCommand(nil, []byte("NOTIFY"), []byte("SET"), []byte("VALUE"), []byte(value))) {
			t.Fatalf("watcher %d was told %d bytes, or other ones", i, len(m.Payload))
		}
	}
}

// countReads are Permissions to do everything.
type countReads struct {
	access.AllowAll
	n atomic.Int64
}

func (c *countReads) MayRead(*access.Identity, []byte) bool { c.n.Add(1); return true }

// Requests that only read are not begun any more once their connection is gone.
func TestReadsOfAConnectionThatIsGoneAreDropped(t *testing.T) {
	t.Parallel()
	const requests = 200
	var reads countReads
	s := start(t, func(c *Config) { c.MaxMemory = 1 << 30; c.May = &reads })
	mqtttest.Connect(t, s.Addrs()[0].String()).Offer(storeRequest(0, "SET", "k", strings.Repeat("v", 4<<20)))
	c, socket := deaf(t, s)
	c.Subscribe("responses", 0)
	var packets []byte
	for i := range requests {
		m := storeRequest(i, "GET", "k")
		m.PacketID = uint16(i + 1)
		packets = append(packets, mqtttest.EncodePublish(mqtt.V5, m)...)
	}
	c.Write(packets)
	until(t, "the reader to be held up by answers", func() bool { return s.memory.UsedBy(memory.Output) > 4<<20 })
	if err := socket.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	socket.Close()
	until(t, "the connection to be gone", func() bool { return s.broker.Levels().Connections == 1 })
	if n := reads.n.Load(); n > requests/4 {
		t.Errorf("%d of %d requests were executed, most of them for a client that is gone", n, requests)
	}
}
