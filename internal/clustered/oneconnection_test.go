package clustered_test

import (
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// CONNECTs with one client ID that come over all nodes at the same time reach the leader in any order. All are answered,
// and one connection is left: the others are told that it has taken over [MQTT-3.1.4-3].
func TestOneConnectionOfAClientIDOverAllNodes(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	_, _ = c.leader()
	for round := range 20 {
		var clients []*mqtttest.Client
		for _, name := range []string{"a", "b", "c"} {
			clients = append(clients, mqtttest.Dial(t, c.addrs[name]))
		}
		var all sync.WaitGroup
		for _, cl := range clients {
			hello := cl.EncodeConnect(mqtttest.Persistent("press"), mqtttest.Resume())
			all.Go(func() {
				if err := cl.WriteErr(hello); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		all.Wait()
		for _, cl := range clients {
			if p := cl.Expect(mqtt.CONNACK); p.Connack.Code != mqtt.Success {
				t.Fatalf("round %d: refused with %v", round, p.Connack.Code)
			}
		}
		// Each connection was answered, so that all but the last one were taken over by now.
		left := 0
		for _, cl := range clients {
			_ = cl.WriteErr(mqtt.AppendPingreq(nil)) // the server may have closed the connection
			p, err := cl.Read(time.Now().Add(patience))
			switch {
			case err == nil && p.Type == mqtt.PINGRESP:
				left++
			case err == nil && p.Type == mqtt.DISCONNECT && p.Disconnect.Code == mqtt.SessionTakenOver:
				if _, err := cl.Read(time.Now().Add(patience)); !errors.Is(err, io.EOF) {
					t.Errorf("round %d: a connection that was taken over goes on: %v", round, err)
				}
			default:
				t.Errorf("round %d: got %v, %v", round, p, err)
			}
		}
		if left != 1 {
			t.Fatalf("round %d: %d connections are left", round, left)
		}
	}
}
