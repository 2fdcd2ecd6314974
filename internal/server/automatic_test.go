package server

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// Automatic subscriptions change while the server runs: clients that connect from then on have the
// new ones. Those that there are stay.
func TestAutomaticSubscriptionsChange(t *testing.T) {
	t.Parallel()
	var cfg Config
	s := start(t, func(c *Config) {
		c.AutoSubscribe = []string{"a", "to/{principal.username}"}
		cfg = *c
	})
	addr := s.Addrs()[0].String()
	first := mqtttest.Connect(t, addr, mqtttest.Persistent("first"))
	cfg.AutoSubscribe = []string{"b qos=1"}
	s.Adjust(cfg)
	second := mqtttest.Connect(t, addr)
	cfg.AutoSubscribe = nil
	s.Adjust(cfg)
	third := mqtttest.Connect(t, addr)
	for _, topic := range []string{"a", "b"} {
		third.Publish(mqtttest.Message{Topic: topic, Payload: topic, QoS: 1})
	}
	for c, want := range map[*mqtttest.Client]string{first: "a", second: "b"} {
		if m := c.Receive(); m.Payload != want {
			t.Errorf("got %v, want %s", m, want)
		}
		c.Quiet()
	}
	third.Quiet()
	if refused := s.broker.Stats().AutomaticRefused.Load(); refused != 1 {
		t.Errorf("%d automatic subscriptions were not made, want 1: the client has proven no user name", refused)
	}
}
