package routing

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// PublishSys publishes one of the broker's own figures as a retained message on
// $SYS/{name}, if it has changed.
func (rt *Router) PublishSys(name, value string) {
	topicName := []byte(topic.SysPrefix + name)
	if old, found := rt.Retained.Get(topicName); found && string(old.Payload()) == value {
		return
	}
	rt.Do(func(t *session.Turn) {
		o := message.Outgoing{Topic: topicName, Payload: []byte(value), Retain: true}
		rt.Publish(t, &o, &message.PublishRows{})
		o.Done()
	})
}

// Subscribed says whether a subscription matches the topic. It does not keep the topic.
func (rt *Router) Subscribed(topic []byte) bool { return len(rt.Filters.Match(topic, nil)) > 0 }

// PublishEvent publishes what has happened on a topic of $SYS, at QoS 0.
func (rt *Router) PublishEvent(topic, payload []byte) {
	rt.Do(func(t *session.Turn) {
		o := message.Outgoing{Topic: topic, Payload: payload}
		rt.Publish(t, &o, &message.PublishRows{})
		o.Done()
	})
}
