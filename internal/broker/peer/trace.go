package peer

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
)

// None of these functions is inlined: the trace.Packet that they make would be on the stack of each client's
// goroutine, also while nothing is traced, and a PINGREQ would then take 4 KiB of stack instead of 2.

// Traced shows a packet from the client to traces. topic is that of a topic alias.
//
//go:noinline
func (p *Peer) Traced(traces trace.Traces, packet []byte, topic func(alias uint16) string) {
	traces.Packet(&trace.Packet{Client: p.Client, Version: p.Protocol, Bytes: packet, Topic: topic})
}

// traceOut shows a packet that is being appended to the output, whose lock is held. The output of a client
// that is gone drops it.
//
//go:noinline
func (p *Peer) traceOut(traces trace.Traces, packet []byte) {
	if !p.Gone() {
		traces.Packet(&trace.Packet{Client: p.Client, Version: p.Protocol, Out: true, Bytes: packet})
	}
}

// traceDelivery is traceOut for a PUBLISH. Of its payload, what is not in the packet is in payload or, if
// that is nil, in m.
//
//go:noinline
func (p *Peer) traceDelivery(traces trace.Traces, packet, topic, payload []byte, m *message.Message) {
	if payload == nil && m != nil {
		payload = m.LentValue()
	}
	if !p.Gone() {
		traces.Packet(&trace.Packet{Client: p.Client, Version: p.Protocol, Out: true, Bytes: packet, Elsewhere: payload, Topic: func(uint16) string { return string(topic) }})
	}
}
