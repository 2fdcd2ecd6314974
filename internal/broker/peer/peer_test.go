package peer

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// An alias that stands in a packet which the client is not sent would be unknown
// to it afterwards.
func TestAliasIsGivenOnlyIfItIsSent(t *testing.T) {
	t.Parallel()
	env := Env{MaxAliasBytes: limits.Default().MaxAliasBytes}
	for props := range 140 {
		for room := range 8 {
			d := mqtt.Delivery{QoS: 1, PacketID: 1, Topic: []byte("topic"), Payload: []byte("payload")}
			d.Props = mqtt.AppendUserProp(nil, "", make([]byte, props))
			c := &Peer{Env: &env, Protocol: mqtt.V5, AliasOutMax: 1}
			c.MaxPacket = uint32(mqtt.DeliverySize(c.Protocol, &d) + room)
			c.alias(&d)
			if size := mqtt.DeliverySize(c.Protocol, &d); size > int(c.MaxPacket) {
				t.Errorf("properties of %d bytes, room for %d: the packet has %d bytes, the client takes %d", props, room, size, c.MaxPacket)
			}
			if given := len(c.aliasOut) == 1; given != (d.Alias == 1) {
				t.Errorf("properties of %d bytes, room for %d: the alias is %d in the packet, given: %v", props, room, d.Alias, given)
			}
		}
	}
}
