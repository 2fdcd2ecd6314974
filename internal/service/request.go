package service

import (
	"sync"
	"sync/atomic"

	"holdfast/hlc"
	"holdfast/internal/broker"
	"holdfast/internal/journal"
	"holdfast/internal/mqtt"
	"holdfast/internal/protocol"
	"holdfast/internal/statestore"
)

// request is one command under way, and the engine.Completion that answers it.
//
// While Handle runs, everything in it is a view of the publish, and it lies in the
// scratch of the turn, ready for the next one. If the engine says that the reply
// comes later (Hold), it leaves the turn, and topic and correlation are copied into
// its own memory; it goes to a pool, where a turn without one finds it.
type request struct {
	ep          *endpoint
	turn        *broker.Turn  // nil once held
	publish     *mqtt.Publish // nil once held
	dialect     *protocol.Dialect
	topic       []byte
	correlation []byte
	expiresAt   int64 // on the connection's clock in ms; 0: never
	ticket      broker.Ticket
	own         []byte // memory of topic and correlation once held
	cmd         statestore.Command
	replied     atomic.Bool  // after it was held
	users       atomic.Int32 // once held: Handle, and the reply; the last one gives the request back
}

var requests = sync.Pool{New: func() any { return new(request) }}

// requestOf gives the turn's request.
func requestOf(t *broker.Turn) *request {
	if r, ok := t.Scratch.(*request); ok {
		return r
	}
	r := requests.Get().(*request)
	t.Scratch = r
	return r
}

func (r *request) begin(ep *endpoint, t *broker.Turn, p *mqtt.Publish) {
	r.ep, r.turn, r.publish = ep, t, p
	r.dialect = dialectOf(p.Topic)
	r.topic, r.correlation = p.Props.ResponseTopic, p.Props.CorrelationData
	r.expiresAt = 0
	if p.Props.HasMessageExpiry {
		r.expiresAt = ep.conn.Now() + int64(p.Props.MessageExpiry)*1000
	}
}

// Hold implements engine.Completion: the reply comes after Do has returned.
func (r *request) Hold() {
	r.ticket = r.ep.conn.Hold(r.publish)
	r.own = append(append(r.own[:0], r.topic...), r.correlation...)
	r.topic, r.correlation = r.own[:len(r.topic)], r.own[len(r.topic):]
	r.turn.Scratch = nil
	r.turn, r.publish = nil, nil
	r.replied.Store(false)
	r.users.Store(2)
}

// ReplyWhenDurable implements engine.Completion: PUBACK and response leave when the
// batch is durable.
func (r *request) ReplyWhenDurable(batch journal.Seq, reply *statestore.Reply) {
	r.ep.conn.AnswerWhenDurable(r.turn, r.publish, batch, r.response(reply))
}

// Reply implements engine.Completion: PUBACK and response leave.
func (r *request) Reply(reply *statestore.Reply) {
	response := r.response(reply)
	if r.publish != nil {
		r.ep.conn.Answer(r.turn, r.publish, mqtt.Success, "", response)
		return
	}
	r.ep.conn.Release(r.ticket, mqtt.Success, "", response)
	r.replied.Store(true)
	r.leave()
}

// leave gives a held request back for the next one, once nobody uses it: the reply
// may come before Do has returned.
func (r *request) leave() {
	if r.users.Add(-1) > 0 {
		return
	}
	if cap(r.own) > 4096 {
		r.own = nil
	}
	r.end()
	requests.Put(r)
}

// end lets go of what the request was about.
func (r *request) end() {
	r.ep, r.turn, r.publish = nil, nil, nil
	r.topic, r.correlation = nil, nil
}

// response builds the message that answers the request (protocol, section 6).
func (r *request) response(reply *statestore.Reply) *broker.Message {
	sv := r.ep.sv
	refer := reply.Kind == statestore.Value && reply.Lasting && len(reply.Value) > 0
	size := replySize(reply)
	if refer {
		size = 0
	}
	m := broker.Compose(r.topic, len(sv.responseHead)+len(sv.responseTail)+len(r.correlation)+size+128)
	m.Buf = append(m.Buf, sv.responseHead...)
	m.Buf = mqtt.AppendStringProp(m.Buf, mqtt.PropCorrelationData, r.correlation)
	if !reply.Version.IsZero() {
		m.Buf = appendVersion(m.Buf, r.dialect.TimeProperty, reply.Version)
	}
	if r.dialect.Current {
		m.Buf = append(m.Buf, sv.responseTail...)
	}
	if reply.Bound != statestore.NoBound {
		r.exceeds(reply.Bound)
		m.Buf = mqtt.AppendUserProp(m.Buf, protocol.QuotaProperty, reply.Bound.String())
	}
	m.EndProperties()
	if refer {
		m.Buf = protocol.AppendValueHead(m.Buf, reply)
		m.Refer(reply.Value)
		m.Buf = append(m.Buf, protocol.ValueTail...)
	} else {
		m.Buf = protocol.AppendReply(m.Buf, sv.wire, reply)
	}
	if r.expiresAt != 0 {
		m.ExpireAt(max(r.expiresAt, r.ep.conn.Now()+1))
	}
	return m.Message()
}

// exceeds counts and logs a quota error.
func (r *request) exceeds(b statestore.Bound) {
	r.ep.sv.stats.Exceeded.Add(1)
	r.ep.sv.log.Debug("refusing a request: a quota is exceeded", "client", r.ep.conn.ClientID(), "command", r.cmd.Verb, "quota", b)
}

// replySize is about how long the reply's payload will be.
func replySize(r *statestore.Reply) int {
	n := len(r.Value) + len(r.Context) + len(r.Next)
	for _, k := range r.Keys {
		n += len(k) + 16
	}
	return n
}

// appendVersion appends a version as a user property, without a string between.
func appendVersion(dst []byte, name string, v hlc.Timestamp) []byte {
	var text [96]byte
	return mqtt.AppendUserProp(dst, name, v.Append(text[:0]))
}
