package peer

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
)

// Traced shows a packet from the client to traces. topic is that of a topic alias.
func (p *Peer) Traced(traces trace.Traces, packet []byte, topic func(alias uint16) string) {
	traces.Packet(&trace.Packet{Client: p.Client, Version: p.Protocol, Bytes: packet, Topic: topic})
}

// traceOut shows a packet that is being appended to the output, whose lock is held.
func (p *Peer) traceOut(traces trace.Traces, packet trace.Packet) {
	if p.Gone() {
		return // the output drops it
	}
	packet.Client, packet.Version, packet.Out = p.Client, p.Protocol, true
	traces.Packet(&packet)
}

// traceDelivery shows a PUBLISH that is being appended to the output. Of its payload, what is
// not in the packet is in payload or, if that is nil, in m.
func (p *Peer) traceDelivery(traces trace.Traces, packet, topic, payload []byte, m *message.Message) {
	if payload == nil && m != nil {
		payload = m.LentValue()
	}
	p.traceOut(traces, trace.Packet{Bytes: packet, Elsewhere: payload, Topic: func(uint16) string { return string(topic) }})
}
