//go:build !race

package events

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// An event that no client has subscribed to costs nothing, nor does one of a server that
// publishes none.
func TestUnwantedEventsAllocateNothing(t *testing.T) {
	var filters topic.Index[*int]
	filters.Insert("$SYS/broker/+/connected", new(int))
	p := New(Options{PerSecond: 1, Wanted: func(topic []byte) bool { return len(filters.Match(topic, nil)) > 0 }})
	for name, p := range map[string]*Publisher{"not subscribed to": p, "switched off": nil} {
		if n := testing.AllocsPerRun(100, func() {
			c := client
			p.Connected(&c, true, 7)
			p.Refused(&c, mqtt.NotAuthorized, "no")
			p.Disconnected(&c, "server", mqtt.SessionTakenOver, "another connection")
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if len(p.waiting) > 0 {
		t.Errorf("%d events wait", len(p.waiting))
	}
}
