package topic

import "bytes"

// SysPrefix is where the broker publishes its own figures; wildcards at the first level
// don't match it [MQTT-4.7.2-1].
const SysPrefix = "$SYS/"

// A bridge of another broker says on $SYS/broker/connection/{name}/state, with a
// retained message and a will, whether it is connected. Mosquitto does so by default,
// and lets every client do it; to its users these messages are part of a bridge.
var bridgeStatePrefix, bridgeStateSuffix = []byte("$SYS/broker/connection/"), []byte("/state")

func isBridgeState(topic []byte) bool {
	name, is := bytes.CutPrefix(topic, bridgeStatePrefix)
	if !is {
		return false
	}
	name, is = bytes.CutSuffix(name, bridgeStateSuffix)
	return is && len(name) > 0 && bytes.IndexByte(name, '/') < 0
}

// OwnSys says whether only the broker itself publishes to the topic.
func OwnSys(name []byte) bool {
	return len(name) > 0 && name[0] == '$' && bytes.HasPrefix(name, []byte(SysPrefix)) && !isBridgeState(name)
}
