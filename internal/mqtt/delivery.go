package mqtt

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// Delivery is one outgoing PUBLISH. Alias, Expiry, SubscriptionIDs and Props are left out in 3.1.1, where Topic
// must not be empty.
type Delivery struct {
	QoS         byte
	Dup, Retain bool
	PacketID    uint16 // not 0 if QoS is not 0
	Topic       []byte // empty if Alias stands for it
	Alias       uint16 // 0: none

	Expiry    uint32 // what is left, in seconds
	HasExpiry bool

	SubscriptionIDs []uint32
	Props           []byte // a property block without its length, as AppendForwardProps makes it
	Payload         []byte
	Rest            int // bytes of the payload behind Payload, which the caller appends
}

// AppendDelivery appends d in one pass, but for the last Rest bytes. It panics if the topic is longer than wire.MaxString or the packet larger
// than its remaining length can say: compare DeliverySize with the receiver's Maximum Packet Size before.
func AppendDelivery(dst []byte, v Version, d *Delivery) []byte {
	props, remaining := d.sizes(v)
	dst = slices.Grow(dst, 1+wire.VarintSize(uint32(remaining))+remaining-d.Rest)
	dst = append(dst, publishHeader(d.QoS, d.Dup, d.Retain))
	dst = wire.AppendVarint(dst, uint32(remaining))
	dst = wire.AppendText(dst, d.Topic)
	if d.QoS > 0 {
		dst = append(dst, byte(d.PacketID>>8), byte(d.PacketID))
	}
	if v >= V5 {
		dst = wire.AppendVarint(dst, uint32(props))
		if d.Alias != 0 {
			dst = AppendUint16Prop(dst, PropTopicAlias, d.Alias)
		}
		if d.HasExpiry {
			dst = AppendUint32Prop(dst, PropMessageExpiry, d.Expiry)
		}
		for _, id := range d.SubscriptionIDs {
			dst = AppendVarintProp(dst, PropSubscriptionID, id)
		}
		dst = append(dst, d.Props...)
	}
	return append(dst, d.Payload...)
}

// DeliverySize returns the exact size in bytes of what AppendDelivery appends, and
// of the rest.
func DeliverySize(v Version, d *Delivery) int {
	_, remaining := d.sizes(v)
	return 1 + wire.VarintSize(uint32(remaining)) + remaining
}

// sizes returns the length of the property block and the packet's remaining length.
func (d *Delivery) sizes(v Version) (props, remaining int) {
	remaining = 2 + len(d.Topic) + len(d.Payload) + d.Rest
	if d.QoS > 0 {
		remaining += 2
	}
	if v < V5 {
		return 0, remaining
	}
	props = len(d.Props)
	if d.Alias != 0 {
		props += 3
	}
	if d.HasExpiry {
		props += 5
	}
	for _, id := range d.SubscriptionIDs {
		props += 1 + wire.VarintSize(id)
	}
	return props, remaining + wire.VarintSize(uint32(props)) + props
}
