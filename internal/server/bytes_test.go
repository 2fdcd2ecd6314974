//go:build !race

package server

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// size reads a packet of a type and gives its length in bytes.
func (w *wire) size(want mqtt.Type) int {
	w.tb.Helper()
	header, body := w.next()
	if got := mqtt.TypeOf(header); got != want {
		w.tb.Fatalf("got %v, want %v", got, want)
	}
	n := 2 // the first byte and the first of the length
	for length := len(body); length >= 128; length /= 128 {
		n++
	}
	return n + len(body)
}

// What the server sends is what the protocol asks for, to the byte, and nothing
// more: for a key of 7 bytes and a value of 64.
func TestBytesOnTheWire(t *testing.T) {
	s := start(t)
	value := strings.Repeat("v", 64)
	client, watcher := dialWire(t, s, "client", false), dialWire(t, s, "watcher", false)
	watcher.subscribe(protocol.AppendNotifyTopic(nil, "watcher", []byte("watched")), 1)
	watcher.subscribe([]byte("topic/0"), 0)
	watcher.subscribe([]byte("topic/1"), 1)
	watcher.window(request(nil, "watcher", 1, "", "KEYNOTIFY", "watched"), 1)
	check := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d bytes, want %d", what, got, want)
		}
	}

	client.send(request(nil, "client", 1, stamp(), "SET", "watched", value))
	check("PUBACK", client.size(mqtt.PUBACK), 4)
	check("response to SET", client.size(mqtt.PUBLISH), 197)
	check("NOTIFY", watcher.size(mqtt.PUBLISH), 321)
	client.send(request(nil, "client", 1, "", "GET", "watched"))
	check("PUBACK", client.size(mqtt.PUBACK), 4)
	check("response to GET", client.size(mqtt.PUBLISH), 197+66) // the value for +OK

	// A routed message is as long as it came: 2 of header, 2 + 7 of topic, a
	// packet identifier at QoS 1, a byte for no properties, the payload.
	for qos, want := range []int{76, 78} {
		p := &mqtt.Publish{QoS: byte(qos), PacketID: uint16(qos), Topic: []byte{'t', 'o', 'p', 'i', 'c', '/', byte('0' + qos)}, Payload: []byte(value)}
		client.send(mqtt.AppendPublish(nil, mqtt.V5, p))
		check("a routed message", watcher.size(mqtt.PUBLISH), want)
	}
}

// countingFS counts what is written to the journal's log, but for the zeros ahead of it.
type countingFS struct {
	vfs.FS
	written atomic.Int64
}

func (fs *countingFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, c, o...)
	if err != nil || !strings.HasSuffix(name, ".journal") {
		return f, err
	}
	return &countingFile{f, fs}, nil
}

type countingFile struct {
	vfs.File
	fs *countingFS
}

func (f *countingFile) WriteAt(p []byte, at int64) (int, error) {
	if strings.Trim(string(p), "\x00") != "" {
		f.fs.written.Add(int64(len(p)))
	}
	return f.File.WriteAt(p, at)
}

// What a durable request puts into the log, each alone in its batch: its row,
// and what is around a batch. Where the subscriber is there, the row is
// deleted again when it has acknowledged. Bounds with a tenth to spare: an
// encoding may gain a byte, but nothing may be written twice.
func TestBytesInTheJournal(t *testing.T) {
	fs := &countingFS{FS: vfs.Default}
	s := start(t, func(c *Config) { c.FS = fs })
	value := strings.Repeat("v", 64)
	client := dialWire(t, s, "client", false)
	online, offline := dialWire(t, s, "online", true), dialWire(t, s, "offline", true)
	online.subscribe([]byte("online"), 1)
	offline.subscribe([]byte("offline"), 1)
	offline.send([]byte{0xE0, 0}) // DISCONNECT
	if _, err := offline.conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection is still there")
	}
	publish := func(topic string) {
		client.send(mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{QoS: 1, PacketID: 1, Topic: []byte(topic), Payload: []byte(value)}))
		client.expect(mqtt.PUBACK)
	}
	for _, c := range []struct {
		what  string
		do    func()
		bytes int64 // at most
	}{
		{"SET", func() { client.window(request(nil, "client", 1, stamp(), "SET", "a key", value), 1) }, 170},
		{"GET", func() { client.window(request(nil, "client", 1, "", "GET", "a key"), 1) }, 0},
		{"publish to a persistent subscriber that is there", func() { publish("online"); online.takeDelivery() }, 200},
		{"publish to a persistent subscriber that is away", func() { publish("offline") }, 145},
	} {
		const n = 100
		c.do()
		before := fs.written.Load()
		for range n {
			c.do()
		}
		got := (fs.written.Load() - before) / n
		t.Logf("%s: %d bytes", c.what, got)
		if got > c.bytes {
			t.Errorf("%s: %d bytes in the journal's log, want at most %d", c.what, got, c.bytes)
		}
	}
}
