package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// A request whose user property traceparent says so has a span, with that as its parent, and
// one without it has none.
func TestSpansOfRequests(t *testing.T) {
	t.Parallel()
	type span struct {
		TraceID string `json:"traceId"`
		Parent  string `json:"parentSpanId"`
		Name    string
	}
	type request struct {
		ResourceSpans []struct{ ScopeSpans []struct{ Spans []span } }
	}
	spans := make(chan span, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var q request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
			return
		}
		for _, s := range q.ResourceSpans[0].ScopeSpans[0].Spans {
			spans <- s
		}
	}))
	t.Cleanup(collector.Close)
	s := start(t, func(c *Config) { c.Spans.Endpoint = collector.URL })
	w := dialWire(t, s, "client", false)
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	do := func(flags string, words ...string) {
		var args [][]byte
		for _, word := range words {
			args = append(args, []byte(word))
		}
		props := mqtt.AppendUserProp(nil, protocol.TimeProperty, stamp())
		if flags != "" {
			props = mqtt.AppendUserProp(props, "traceparent", "00-"+trace+"-"+parent+"-"+flags)
		}
		w.window(mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{
			QoS: 1, PacketID: 1, Topic: []byte(protocol.InvokeTopic), Payload: protocol.AppendCommand(nil, args...),
			Props: mqtt.PublishProps{
				HasResponseTopic: true, ResponseTopic: []byte(responseTopic + "/client"),
				HasCorrelationData: true, CorrelationData: []byte("0123456789abcdef"), Raw: props,
			},
		}), 1)
	}
	do("", "SET", "key", "unseen")
	do("00", "DEL", "key")
	do("01", "SET", "key", "value")
	do("01", "GET", "key")
	do("01", "SCAN", "*")
	do("01", "NONSENSE")
	do("01", "TXN", "SET", "key", "value")
	want := map[string]bool{"SET": true, "GET": true, "SCAN": true, "request": true, "TXN": true}
	for len(want) > 0 {
		select {
		case got := <-spans:
			if !want[got.Name] || got.TraceID != trace || got.Parent != parent {
				t.Errorf("the span %+v", got)
			}
			delete(want, got.Name)
		case <-time.After(mqtttest.Deadline):
			t.Fatalf("no span of %v", want)
		}
	}
}
