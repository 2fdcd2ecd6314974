package broker

// sysPrefix is where the broker publishes its own figures; wildcards at the
// first level don't match it [MQTT-4.7.2-1].
var sysPrefix = []byte("$SYS/")

// PublishSys publishes one of the broker's own figures as a retained message on
// $SYS/{name}, if it has changed.
func (b *Broker) PublishSys(name, value string) {
	topic := append(append([]byte(nil), sysPrefix...), name...)
	if old, found := b.retained.names.Get(topic); found && string(old.payload()) == value {
		return
	}
	t := b.turn()
	defer t.end()
	o := outgoing{topic: topic, payload: []byte(value), propsReady: true, retain: true}
	defer o.done()
	b.publishAny(t, &o, &alongside{})
}
