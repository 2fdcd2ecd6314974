package server

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// A bound that has become lower refuses what would pass it and ends nothing; one that has
// become higher lets more in.
func TestAdjust(t *testing.T) {
	t.Parallel()
	var cfg Config
	s := start(t, func(c *Config) {
		c.Limits.LoopbackConnections = 1
		cfg = *c
	})
	addr := s.Addrs()[0].String()
	bounds := func(sessions, keys, retained int) {
		c := cfg
		c.Limits.MaxSessions, c.MaxKeys, c.Limits.MaxRetained = sessions, int64(keys), retained
		s.Adjust(c)
	}
	c := mqtttest.Connect(t, addr, mqtttest.Persistent("first"))
	publish := func(topic string) mqtt.ReasonCode {
		t.Helper()
		return c.Offer(mqtttest.Message{Topic: topic, Payload: "x", QoS: 1, Retain: true}).Code
	}
	bounds(1, 1, 1)
	if code := publish("a"); code.Failed() {
		t.Fatalf("the first retained message: %v", code)
	}
	if code := publish("b"); code != mqtt.QuotaExceeded {
		t.Errorf("a retained message above the bound: %v", code)
	}
	mqtttest.Refused(t, addr, mqtt.QuotaExceeded, mqtttest.Persistent("second"))
	if got := s.engine.Stats().MaxKeys; got != 1 {
		t.Errorf("%d keys are the most, want 1", got)
	}
	bounds(2, 2, 2)
	if code := publish("b"); code.Failed() {
		t.Errorf("a retained message below the higher bound: %v", code)
	}
	mqtttest.Connect(t, addr, mqtttest.Persistent("second"))
	bounds(1, 1, 1)
	c.Ping()
	if levels := s.broker.Levels(); levels.Retained != 2 || levels.Sessions != 2 {
		t.Errorf("after the bounds were lowered: %+v, want 2 retained messages and 2 sessions", levels)
	}
	bounds(0, 0, 0)
	if most := s.engine.Stats(); most.MaxKeys != 1_000_000 || most.MaxBytes != 1<<30 || s.broker.MaxConnections() == 0 {
		t.Errorf("the defaults again: %+v, %d connections", most, s.broker.MaxConnections())
	}
}

// Settings change while clients come, publish and go.
func TestAdjustWhileClientsWork(t *testing.T) {
	t.Parallel()
	var cfg Config
	s := start(t, func(c *Config) { cfg = *c })
	addr := s.Addrs()[0].String()
	var working sync.WaitGroup
	for i := range 3 {
		working.Go(func() {
			for n := range 10 {
				c := mqtttest.Connect(t, addr, mqtttest.Persistent(fmt.Sprint(i, "-", n)))
				c.Offer(mqtttest.Message{Topic: fmt.Sprint("t/", i, n), Payload: "x", QoS: 1, Retain: true})
				c.Disconnect()
			}
		})
	}
	for n := range 100 {
		c := cfg
		c.Limits.MaxConnections, c.Limits.MaxSessions, c.MaxKeys, c.Limits.MaxRetained = 100+n, 100+n, int64(100+n), 100+n
		s.Adjust(c)
		s.publishSys()
	}
	working.Wait()
}

// No setting is named twice, or with its dashes.
func TestAdjustableAreNames(t *testing.T) {
	t.Parallel()
	names := slices.Clone(Adjustable)
	slices.Sort(names)
	if len(slices.Compact(names)) != len(Adjustable) || slices.ContainsFunc(Adjustable, func(n string) bool { return strings.HasPrefix(n, "-") }) {
		t.Error(Adjustable)
	}
}
