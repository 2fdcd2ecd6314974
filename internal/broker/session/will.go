package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// ChangeWill puts the will of the client's CONNECT, if it has one, in place of the one
// that the session has: the client is back in time [MQTT-3.1.3-9]. It says false, and
// changes nothing, if there is no memory for it; one that takes no more than the old one
// always has its place. s.Mu is held.
func (e *Env) ChangeWill(s *Session, p *mqtt.Connect) bool {
	var size, old int64
	if s.Will != nil {
		old = s.Will.Charged
	}
	if p.HasWill {
		size = will.Memory(p.Will.Topic, p.Will.Props.Raw, p.Will.Payload)
	}
	if more := size - old; more > 0 && !e.Memory.Take(memory.Sessions, more) {
		return false
	} else if more < 0 {
		e.Memory.Charge(memory.Sessions, more)
	}
	if s.Will != nil {
		s.Will.Message.Release()
		s.Will = nil
	}
	if p.HasWill {
		s.Will = will.New(&p.Will, s.ID, s.owner)
		s.Will.Charged = size
	}
	return true
}
