package conformance

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

func TestWebSocket(t *testing.T) {
	t.Parallel()
	n := start(t)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		topic := "web/" + versionName(v)
		web := mqtttest.DialWebSocket(t, n.WebSocket)
		web.Connect(mqtttest.Version(v), mqtttest.ClientID(topic))
		tcp := mqtttest.Connect(t, n.Addr, mqtttest.Version(v))
		web.Subscribe(topic, 2)
		tcp.Subscribe(topic, 2)
		for qos := byte(0); qos <= 2; qos++ {
			m := message{Topic: topic, Payload: strings.Repeat("x", 300_000), QoS: qos}
			web.Publish(m)
			wantContent(t, tcp.Receive(), m)
			wantContent(t, web.Receive(), m)
			tcp.Publish(m)
			wantContent(t, tcp.Receive(), m)
			wantContent(t, web.Receive(), m)
		}
		// A takeover crosses over.
		successor := mqtttest.Connect(t, n.Addr, mqtttest.Version(v), mqtttest.ClientID(topic))
		web.ExpectDisconnect(mqtt.SessionTakenOver)
		successor.Quiet()
	})
}

func TestWebSocketFramesAreAStream(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := mqtttest.DialWebSocket(t, n.WebSocket)
	packets := c.EncodeConnect()
	packets = append(packets, mqtt.AppendPingreq(nil)...)
	for i := range packets { // one frame for each byte [MQTT-6.0.0-2]
		c.Write(packets[i : i+1])
	}
	c.Expect(mqtt.CONNACK)
	c.Expect(mqtt.PINGRESP)
}

func TestWebSocketWithoutSubprotocol(t *testing.T) {
	t.Parallel()
	n := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), mqtttest.Deadline)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+n.WebSocket+"/mqtt", nil)
	if err != nil {
		return // refused by the handshake
	}
	defer ws.CloseNow()
	// Or closed after it [MQTT-6.0.0-3].
	if _, _, err := ws.Read(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the connection closed", err)
	}
}

func TestWebSocketTextFrame(t *testing.T) {
	t.Parallel()
	n := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), mqtttest.Deadline)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+n.WebSocket+"/mqtt", &websocket.DialOptions{Subprotocols: []string{"mqtt"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := ws.Write(ctx, websocket.MessageText, []byte("hello")); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, _, err := ws.Read(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) { // [MQTT-6.0.0-1]
		t.Errorf("got %v, want the connection closed", err)
	}
}
