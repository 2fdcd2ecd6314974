package broker

import "bytes"

// sysPrefix is where the broker publishes its own figures; wildcards at the
// first level don't match it [MQTT-4.7.2-1].
var sysPrefix = []byte("$SYS/")

// A bridge of another broker says on $SYS/broker/connection/{name}/state, with a
// retained message and a will, whether it is connected. Mosquitto does so by default,
// and lets every client do it; to its users these messages are part of a bridge.
const bridgeStatePrefix, bridgeStateSuffix = "$SYS/broker/connection/", "/state"

func isBridgeState(topic []byte) bool {
	name, is := bytes.CutPrefix(topic, viewOf(bridgeStatePrefix))
	if !is {
		return false
	}
	name, is = bytes.CutSuffix(name, viewOf(bridgeStateSuffix))
	return is && len(name) > 0 && bytes.IndexByte(name, '/') < 0
}

// ownSys says whether only the broker itself publishes to the topic.
func ownSys(topic []byte) bool {
	return len(topic) > 0 && topic[0] == '$' && bytes.HasPrefix(topic, sysPrefix) && !isBridgeState(topic)
}

// PublishSys publishes one of the broker's own figures as a retained message on
// $SYS/{name}, if it has changed.
func (b *Broker) PublishSys(name, value string) {
	topic := append(append([]byte(nil), sysPrefix...), name...)
	if old, found := b.retained.names.Get(topic); found && string(old.payload()) == value {
		return
	}
	b.work(func(t *Turn) {
		o := outgoing{topic: topic, payload: []byte(value), propsReady: true, retain: true}
		b.publishAny(t, &o, &alongside{})
		o.done()
	})
}
