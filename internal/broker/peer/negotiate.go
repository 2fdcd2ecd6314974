package peer

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Negotiate settles what the client takes, as its CONNECT and the limits say, and announces the
// limits in the CONNACK.
func (p *Peer) Negotiate(c *mqtt.Connect, ack *mqtt.Connack, l *limits.Limits) {
	p.ProblemInfo = c.RequestProblemInfo
	p.Requests = c.RequestResponseInfo
	p.TakesMore = int(c.ReceiveMaximum) > l.MaxInflight
	p.ReceiveMax = int32(min(int(c.ReceiveMaximum), l.MaxInflight))
	if c.Version < mqtt.V5 {
		p.ReceiveMax = int32(min(int(p.ReceiveMax), l.MaxInflightV3))
	}
	p.AliasOutMax = uint16(min(int(c.TopicAliasMaximum), l.TopicAliasMaximum))
	p.KeepAlive = c.KeepAlive
	if most := uint16(l.MaxKeepAlive / time.Second); most > 0 && (p.KeepAlive == 0 || p.KeepAlive > most) && c.Version == mqtt.V5 {
		p.KeepAlive = most
		ack.HasServerKeepAlive, ack.ServerKeepAlive = true, most
	}
	ack.ReceiveMaximum = uint16(l.ReceiveMaximum)
	ack.MaximumPacketSize = uint32(l.MaxPacketSize)
	ack.TopicAliasMaximum = uint16(l.TopicAliasMaximum)
}
