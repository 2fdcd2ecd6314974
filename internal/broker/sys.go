package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// PublishSys publishes one of the broker's own figures as a retained message on
// $SYS/{name}, if it has changed.
func (b *Broker) PublishSys(name, value string) {
	topicName := []byte(topic.SysPrefix + name)
	if old, found := b.Retained.Get(topicName); found && string(old.Payload()) == value {
		return
	}
	b.Do(func(t *session.Turn) {
		o := message.Outgoing{Topic: topicName, Payload: []byte(value), Retain: true}
		b.Publish(t, &o, &session.PublishRows{})
		o.Done()
	})
}
