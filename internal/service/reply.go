package service

import (
	"strconv"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// request is what the response needs of a request, in views of the publish.
type request struct {
	dialect     *protocol.Dialect
	topic       []byte
	correlation []byte
	expiresAt   int64 // on the connection's clock in ms; 0: never
}

// response builds the message that answers the request (protocol, section 6).
func (ep *endpoint) response(q *request, verb statestore.Verb, reply *statestore.Reply) *message.Message {
	sv := ep.sv
	refer := reply.Kind == statestore.Value && reply.Lasting && len(reply.Value) > 0
	size := replySize(reply)
	if refer {
		size = 0
	}
	m := message.Compose(q.topic, len(sv.responseHead)+len(sv.responseTail)+len(q.correlation)+size+128)
	m.Buf = append(m.Buf, sv.responseHead...)
	m.Buf = mqtt.AppendStringProp(m.Buf, mqtt.PropCorrelationData, q.correlation)
	if !reply.Version.IsZero() {
		m.Buf = appendVersion(m.Buf, q.dialect.TimeProperty, reply.Version)
	}
	if q.dialect.Current {
		m.Buf = append(m.Buf, sv.responseTail...)
	}
	if reply.Bound != statestore.NoBound {
		ep.exceeds(verb, reply.Bound)
		m.Buf = mqtt.AppendUserProp(m.Buf, protocol.QuotaProperty, reply.Bound.String())
	}
	if reply.KeepMs != 0 {
		m.Buf = appendNumber(m.Buf, protocol.KeepProperty, reply.KeepMs)
	}
	if reply.TimeMs != 0 {
		m.Buf = appendNumber(m.Buf, protocol.ServerTimeProperty, reply.TimeMs)
	}
	m.EndProperties()
	if refer {
		m.Buf = protocol.AppendValueHead(m.Buf, reply)
		m.Refer(reply.Value)
		m.Buf = append(m.Buf, protocol.ValueTail...)
	} else {
		m.Buf = protocol.AppendReply(m.Buf, sv.wire, reply)
	}
	if q.expiresAt != 0 {
		m.ExpireAt(max(q.expiresAt, ep.conn.Now()+1))
	}
	return m.Message()
}

// exceeds counts and logs a quota error.
func (ep *endpoint) exceeds(verb statestore.Verb, b statestore.Bound) {
	ep.sv.stats.Exceeded[b].Add(1)
	ep.sv.log.Debug("refusing a request: a quota is exceeded", "client", ep.conn.Client, "command", verb, "quota", b)
}

// replySize is about how long the reply's payload will be.
func replySize(r *statestore.Reply) int {
	n := len(r.Value) + len(r.Context) + len(r.Next)
	for _, k := range r.Keys {
		n += len(k) + 16
	}
	if r.Kind == statestore.Transacted {
		n += 160
	}
	for i := range r.Values {
		n += len(r.Values[i].Bytes) + 80
	}
	return n
}

func appendNumber(dst []byte, name string, n int64) []byte {
	var text [20]byte
	return mqtt.AppendUserProp(dst, name, strconv.AppendInt(text[:0], n, 10))
}

// appendVersion appends a version as a user property, without a string between.
func appendVersion(dst []byte, name string, v hlc.Timestamp) []byte {
	var text [96]byte
	return mqtt.AppendUserProp(dst, name, v.Append(text[:0]))
}
