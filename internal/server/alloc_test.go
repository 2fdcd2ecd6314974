//go:build !race

package server

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// allocatesNothing runs a test of a server without permissions, of one whose clients have
// quotas, and of one with a policy.
func allocatesNothing(t *testing.T, test func(t *testing.T, s *Server)) {
	test(t, start(t))
	t.Run("with quotas", func(t *testing.T) {
		test(t, start(t, func(c *Config) { c.May = limited{} }))
	})
	t.Run("under a policy", func(t *testing.T) {
		p, err := policy.Parse("policy.yaml", []byte(`rules: [{
  brokerResources: [{method: Connect}, {method: Publish, topics: ["#"]}, {method: Subscribe, topics: ["#"]}],
  stateStoreResources: [{method: ReadWrite, keyType: Pattern, keys: ["*"]}]}]`))
		if err != nil {
			t.Fatal(err)
		}
		test(t, start(t, func(c *Config) { c.May = policy.NewGuard(p) }))
	})
}

// A GET of a key that is on disk costs no allocation, from the socket and back,
// whether or not responses must be kept until the client has them.
func TestGetAllocatesNothing(t *testing.T) { allocatesNothing(t, getAllocatesNothing) }

func getAllocatesNothing(t *testing.T, s *Server) {
	for _, persistent := range []bool{false, true} {
		w := dialWire(t, s, fmt.Sprint("client-", persistent), persistent)
		id := fmt.Sprint("client-", persistent)
		value := string(bytes.Repeat([]byte("v"), 64))
		w.window(request(nil, id, 1, stamp(), "SET", "key", value), 1)
		get := request(nil, id, 1, "", "GET", "key")
		var got []byte
		if n := testing.AllocsPerRun(2000, func() { got = w.window(get, 1) }); n != 0 {
			t.Errorf("persistent session %v: %v allocations for a GET, want 0", persistent, n)
		}
		if want := "$64\r\n" + value + "\r\n"; string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A SET of a key that exists costs no allocation, however many come together, and
// neither does their commit, but now and then.
func TestSetAllocatesNothing(t *testing.T) { allocatesNothing(t, setAllocatesNothing) }

func setAllocatesNothing(t *testing.T, s *Server) {
	w := dialWire(t, s, "client", false)
	set := func(inflight int) float64 {
		var requests []byte
		for i := range inflight {
			requests = request(requests, "client", uint16(i+1), stamp(), "SET", fmt.Sprint("key-", i), "value")
		}
		return testing.AllocsPerRun(500, func() { w.window(requests, inflight) }) / float64(inflight)
	}
	alone, together := set(1), set(64)
	if alone > 0.5 || together > 0.1 { // the log's and Pebble's, now and then
		t.Errorf("%.1f allocations for a SET that is alone, %.2f for one of 64, want 0", alone, together)
	}
}

// Over TLS a GET and a SET cost no allocation but those of crypto/tls itself. It makes one
// of 24 bytes for each read of the connection below that it begins (atLeastReader). A bare
// loop, which reads a request and writes an answer of the same sizes through crypto/tls as
// it is, has two, one at each end. Holdfast has a third one: before its reader waits for
// the socket, outside of crypto/tls, a read has found nothing.
func TestTLSAllocatesWhatCryptoTLSDoes(t *testing.T) {
	a := certstest.New(t)
	files, client := a.Server("server"), a.Trust()
	s := start(t, func(c *Config) { c.Listen, c.TLS = []string{"mqtts://127.0.0.1:0"}, files })
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := client.Clone()
		config.MaxVersion = version
		conn, err := tls.Dial("tcp", s.Addrs()[0].String(), config)
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(t, conn, "client", false)
		value := string(bytes.Repeat([]byte("v"), 64))
		set := request(nil, "client", 1, stamp(), "SET", "key", value)
		get := request(nil, "client", 1, "", "GET", "key")
		w.window(set, 1)
		w.window(get, 1)
		bare := bareTLS(t, files, config, len(get)+len(w.acks), 200)
		ofBare := testing.AllocsPerRun(2000, bare)
		ofGet := testing.AllocsPerRun(2000, func() { w.window(get, 1) })
		ofSet := testing.AllocsPerRun(500, func() { w.window(set, 1) })
		t.Logf("%s: allocations of a bare loop %v, of a GET %v, of a SET %v", tls.VersionName(version), ofBare, ofGet, ofSet)
		if ofGet > ofBare+1 || ofSet > ofBare+1.5 { // the log's and Pebble's, now and then
			t.Errorf("%s: %v allocations for a GET and %v for a SET, want no more than one above the %v of a bare loop", tls.VersionName(version), ofGet, ofSet, ofBare)
		}
		w.conn.Close()
	}
}

// bareTLS gives a function that sends a request through crypto/tls to a loop that answers
// each, and reads the answer.
func bareTLS(t *testing.T, files certs.Files, client *tls.Config, request, answer int) func() {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, DynamicRecordSizingDisabled: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in, out := make([]byte, request), make([]byte, answer)
		for {
			if _, err := io.ReadFull(c, in); err != nil {
				return
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	out, in := make([]byte, request), make([]byte, answer)
	return func() {
		if _, err := c.Write(out); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, in); err != nil {
			t.Fatal(err)
		}
	}
}

// A publish costs no allocation, however many get it, while they take it.
func TestPublishAllocatesNothing(t *testing.T) { allocatesNothing(t, publishAllocatesNothing) }

func publishAllocatesNothing(t *testing.T, s *Server) {
	for qos := range byte(2) {
		topic := []byte(fmt.Sprint("alloc/", qos))
		publisher := dialWire(t, s, fmt.Sprint("publisher-", qos), false)
		subscribers := make([]*wire, 20)
		for i := range subscribers {
			subscribers[i] = dialWire(t, s, fmt.Sprint("subscriber-", qos, "-", i), false)
			subscribers[i].subscribe(topic, qos)
		}
		p := &mqtt.Publish{QoS: qos, Topic: topic, Payload: bytes.Repeat([]byte("v"), 64)}
		if qos > 0 {
			p.PacketID = 1
		}
		packet := mqtt.AppendPublish(nil, mqtt.V5, p)
		n := testing.AllocsPerRun(500, func() {
			publisher.send(packet)
			if qos > 0 {
				publisher.expect(mqtt.PUBACK)
			}
			for _, w := range subscribers {
				w.takeDelivery()
			}
		})
		if n != 0 {
			t.Errorf("QoS %d: %v allocations for a publish to %d subscribers, want 0", qos, n, len(subscribers))
		}
	}
}

// A change costs its own allocations, its watchers none.
func TestNotifyAllocatesNothing(t *testing.T) {
	s := start(t)
	writer := dialWire(t, s, "writer", false)
	value := string(bytes.Repeat([]byte("v"), 64))
	change := func(key string, watchers []*wire) float64 {
		set := request(nil, "writer", 1, stamp(), "SET", key, value)
		return testing.AllocsPerRun(500, func() {
			writer.window(set, 1)
			for _, w := range watchers {
				w.takeDelivery()
			}
		})
	}
	watchers := make([]*wire, 20)
	for i := range watchers {
		id := fmt.Sprint("watcher-", i)
		watchers[i] = dialWire(t, s, id, false)
		watchers[i].subscribe(protocol.AppendNotifyTopic(nil, id, []byte("watched")), 1)
		watchers[i].window(request(nil, id, 1, "", "KEYNOTIFY", "watched"), 1)
	}

	unwatched, watched := change("unwatched", nil), change("watched", watchers)
	if watched > unwatched+2 { // the event itself
		t.Errorf("%v allocations for a change of a key with %d watchers, %v without", watched, len(watchers), unwatched)
	}
}
