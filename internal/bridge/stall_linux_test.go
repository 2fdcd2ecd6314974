package bridge_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// A broker that stands still is noticed by its silence. The bridge connects again when it
// goes on, and what was published meanwhile passes.
func TestBrokerThatStandsStill(t *testing.T) {
	t.Parallel()
	far := testserver.Run(t)
	near, log := start(t, bridge.Config{
		Name: "plant", URL: "mqtt://" + far.Addr, KeepAlive: time.Second, Topics: []bridge.Topic{{Filter: "up/#", Out: true, QoS: 2}},
	})
	awaitConnected(t, near.Addr, "plant")
	atFar := mqtttest.Connect(t, far.Addr)
	atFar.Subscribe("up/#", 2)
	far.Signal(syscall.SIGSTOP)
	mqtttest.Connect(t, near.Addr).Publish(mqtttest.Message{Topic: "up/1", QoS: 2})
	awaitLog(t, log, "not even an answer to PINGREQ")
	far.Signal(syscall.SIGCONT)
	if m := awaitMessage(atFar); m.Topic != "up/1" || m.QoS != 2 {
		t.Error(m)
	}
}
