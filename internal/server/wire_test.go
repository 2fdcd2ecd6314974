package server

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// wire is a client that sends prepared bytes and reads answers without
// allocating, so that what is counted and timed is the server.
type wire struct {
	tb      testing.TB
	conn    net.Conn
	in      []byte // buffer
	r, w    int    // in[r:w] is unread
	acks    []byte
	publish mqtt.Publish
}

const responseTopic = "clients/bench/services/statestore/_any_/command/invoke/response"

// dialWire connects and subscribes to the response topic. persistent: the
// session outlives the connection, so that responses are kept until acknowledged.
func dialWire(tb testing.TB, s *Server, id string, persistent bool) *wire {
	tb.Helper()
	conn, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		tb.Fatal(err)
	}
	return newWire(tb, conn, id, persistent)
}

// newWire is dialWire over a connection to the server.
func newWire(tb testing.TB, conn net.Conn, id string, persistent bool) *wire {
	tb.Helper()
	tb.Cleanup(func() { conn.Close() })
	w := &wire{tb: tb, conn: conn, in: make([]byte, 1<<20)}
	c := &mqtt.Connect{Version: mqtt.V5, CleanStart: true, ClientID: []byte(id), RequestProblemInfo: true}
	if persistent {
		c.SessionExpiry = 3600
	}
	w.send(mqtt.AppendConnect(nil, c))
	w.expect(mqtt.CONNACK)
	w.send(mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 1, Subscriptions: []mqtt.Subscription{{Filter: []byte(responseTopic + "/" + id), QoS: 1}}}))
	w.expect(mqtt.SUBACK)
	return w
}

func (w *wire) send(b []byte) {
	if _, err := w.conn.Write(b); err != nil {
		w.tb.Fatal(err)
	}
}

// next gives the next packet, as a view.
func (w *wire) next() (header byte, body []byte) {
	for {
		header, body, n, _, err := mqtt.Split(w.in[w.r:w.w], 0)
		if err != nil {
			w.tb.Fatal(err)
		}
		if n > 0 {
			w.r += n
			return header, body
		}
		w.w = copy(w.in, w.in[w.r:w.w])
		w.r = 0
		k, err := w.conn.Read(w.in[w.w:])
		if err != nil {
			w.tb.Fatal(err)
		}
		w.w += k
	}
}

func (w *wire) expect(t mqtt.Type) []byte {
	w.tb.Helper()
	header, body := w.next()
	if got := mqtt.TypeOf(header); got != t {
		w.tb.Fatalf("got %v, want %v", got, t)
	}
	return body
}

// request appends a request to the state store.
func request(dst []byte, client string, id uint16, ts string, args ...string) []byte {
	var list [][]byte
	for _, a := range args {
		list = append(list, []byte(a))
	}
	var props []byte
	if ts != "" {
		props = mqtt.AppendUserProp(props, protocol.TimeProperty, ts)
	}
	return mqtt.AppendPublish(dst, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: id, Topic: []byte(protocol.InvokeTopic), Payload: protocol.AppendCommand(nil, list...),
		Props: mqtt.PublishProps{
			HasResponseTopic: true, ResponseTopic: []byte(responseTopic + "/" + client),
			HasCorrelationData: true, CorrelationData: []byte("0123456789abcdef"), Raw: props,
		},
	})
}

// window sends n prepared requests in one write, reads their PUBACKs and
// responses, and acknowledges the responses with the next window.
func (w *wire) window(requests []byte, n int) (lastPayload []byte) {
	w.acks = append(w.acks, requests...)
	w.send(w.acks)
	w.acks = w.acks[:0]
	for pubacks, responses := 0, 0; pubacks < n || responses < n; {
		header, body := w.next()
		switch mqtt.TypeOf(header) {
		case mqtt.PUBACK:
			pubacks++
		case mqtt.PUBLISH:
			if err := w.publish.DecodeDelivery(mqtt.V5, header, body); err != nil {
				w.tb.Fatal(err)
			}
			w.acks = mqtt.AppendAck(w.acks, mqtt.V5, mqtt.PUBACK, w.publish.PacketID, mqtt.Success, "")
			lastPayload = w.publish.Payload
			responses++
		default:
			w.tb.Fatalf("got %v", mqtt.TypeOf(header))
		}
	}
	return lastPayload
}

// subscribe subscribes to one filter more.
func (w *wire) subscribe(filter []byte, qos byte) {
	w.tb.Helper()
	w.send(mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 2, Subscriptions: []mqtt.Subscription{{Filter: filter, QoS: qos}}}))
	w.expect(mqtt.SUBACK)
}

// takeDelivery reads one PUBLISH, and acknowledges it at QoS 1.
func (w *wire) takeDelivery() {
	w.tb.Helper()
	header, body := w.next()
	if got := mqtt.TypeOf(header); got != mqtt.PUBLISH {
		w.tb.Fatalf("got %v, want PUBLISH", got)
	}
	if err := w.publish.DecodeDelivery(mqtt.V5, header, body); err != nil {
		w.tb.Fatal(err)
	}
	if w.publish.QoS == 0 {
		return
	}
	w.acks = mqtt.AppendAck(w.acks, mqtt.V5, mqtt.PUBACK, w.publish.PacketID, mqtt.Success, "")
	w.send(w.acks)
	w.acks = w.acks[:0]
}

func stamp() string { return hlc.NewClock("bench").Now().String() }

// benchmarkRequests runs clients × inflight requests at once.
func benchmarkRequests(b *testing.B, clients, inflight int, verb string, change ...func(*Config)) {
	s := start(b, change...)
	value := string(bytes.Repeat([]byte("v"), 64))
	wires := make([]*wire, clients)
	windows := make([][]byte, clients)
	for i := range wires {
		id := fmt.Sprint("client-", i)
		wires[i] = dialWire(b, s, id, false)
		wires[i].window(request(nil, id, 1, stamp(), "SET", id, value), 1)
		for k := range inflight {
			if verb == "SET" {
				windows[i] = request(windows[i], id, uint16(k+1), stamp(), "SET", id, value)
			} else {
				windows[i] = request(windows[i], id, uint16(k+1), "", "GET", id)
			}
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	done := make(chan struct{})
	rounds := b.N/(clients*inflight) + 1
	for i, w := range wires {
		go func() {
			for range rounds {
				w.window(windows[i], inflight)
			}
			done <- struct{}{}
		}()
	}
	for range wires {
		<-done
	}
	b.ReportMetric(float64(rounds*clients*inflight)/b.Elapsed().Seconds(), "requests/s")
}

func BenchmarkGet(b *testing.B) {
	for _, c := range []struct{ clients, inflight int }{{1, 1}, {50, 1}, {50, 16}} {
		b.Run(fmt.Sprintf("%dx%d", c.clients, c.inflight), func(b *testing.B) { benchmarkRequests(b, c.clients, c.inflight, "GET") })
	}
}

// A policy that allows each client just its keys and topics. Compare with BenchmarkGet.
func BenchmarkGetUnderAPolicy(b *testing.B) {
	file := filepath.Join(b.TempDir(), "policy.yaml")
	content := `rules:
- brokerResources:
  - method: Connect
  - {method: Publish, topics: ["` + protocol.InvokeTopic + `"]}
  - {method: Subscribe, topics: ["` + responseTopic + `/{principal.clientId}"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: ["{principal.clientId}"]}
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		b.Fatal(err)
	}
	b.Run("50x16", func(b *testing.B) {
		benchmarkRequests(b, 50, 16, "GET", func(c *Config) { c.Policy = file })
	})
}

func BenchmarkSet(b *testing.B) {
	for _, c := range []struct{ clients, inflight int }{{1, 1}, {50, 1}, {50, 16}} {
		b.Run(fmt.Sprintf("%dx%d", c.clients, c.inflight), func(b *testing.B) { benchmarkRequests(b, c.clients, c.inflight, "SET") })
	}
}
