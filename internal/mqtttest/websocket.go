package mqtttest

import (
	"context"
	"testing"

	"github.com/coder/websocket"
)

// DialWebSocket opens a WebSocket to ws://addr/mqtt with the subprotocol mqtt
// [MQTT-6.0.0-3] and sends nothing.
func DialWebSocket(tb testing.TB, addr string) *Client {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Deadline)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+addr+"/mqtt", &websocket.DialOptions{Subprotocols: []string{"mqtt"}})
	if err != nil {
		tb.Fatalf("dial the broker by WebSocket: %v", err)
	}
	ws.SetReadLimit(maxPacket)
	// Not the test's own context: it is cancelled before the cleanup that
	// closes the connection runs.
	return NewClient(tb, websocket.NetConn(context.Background(), ws, websocket.MessageBinary))
}
