package service

import (
	"unicode/utf8"

	"holdfast/internal/broker"
	"holdfast/internal/engine"
	"holdfast/internal/mqtt"
	"holdfast/internal/protocol"
	"holdfast/internal/statestore"
)

// endpoint is the store's side of one connection: requests come in by Handle,
// on the connection's reader; notifications come from the engine by Event.
type endpoint struct {
	sv      *Service
	conn    *broker.Conn
	session engine.Session
	turn    *broker.Turn // of the SCAN under way
}

// Close implements broker.Endpoint.
func (ep *endpoint) Close() { ep.session.Close() }

// Handle implements broker.Endpoint: one request (protocol, section 2).
func (ep *endpoint) Handle(t *broker.Turn, p *mqtt.Publish) {
	switch {
	case p.QoS == 0:
		ep.ignore(p, "QoS 0")
	case ep.conn.Version() != mqtt.V5:
		ep.ignore(p, "MQTT 3.1.1")
		ep.conn.Answer(t, p, mqtt.ImplementationSpecificError, "", nil) // 3.1.1 has no place for the code
	case p.QoS == 2:
		ep.refuse(t, p, "requests to the state store are QoS 1")
	case len(p.Props.ResponseTopic) == 0:
		ep.refuse(t, p, "the request has no Response Topic")
	case len(p.Props.CorrelationData) == 0:
		ep.refuse(t, p, "the request has no Correlation Data")
	case forbidden(p.Props.ResponseTopic):
		const reason = "the Response Topic is one of the state store's own"
		ep.refused(reason)
		ep.conn.AnswerAndDisconnect(t, p, mqtt.TopicNameInvalid, reason)
	case ep.conn.TooManyLevels(p.Props.ResponseTopic):
		const reason = "the Response Topic has too many levels"
		ep.refused(reason)
		ep.conn.Answer(t, p, mqtt.TopicNameInvalid, reason, nil)
	case p.Props.HasMessageExpiry && p.Props.MessageExpiry == 0:
		ep.sv.stats.Expired.Add(1)
		ep.sv.log.Debug("dropping a request that has expired", "client", ep.conn.ClientID())
		ep.conn.Answer(t, p, mqtt.Success, "", nil)
	case p.Props.PayloadFormat == 1 && !utf8.Valid(p.Payload):
		const reason = "the payload is not UTF-8 as its Payload Format Indicator says"
		ep.refused(reason)
		ep.conn.Answer(t, p, mqtt.PayloadFormatInvalid, reason, nil)
	default:
		ep.execute(t, p)
	}
}

func (ep *endpoint) ignore(p *mqtt.Publish, why string) {
	ep.sv.stats.Ignored.Add(1)
	ep.sv.log.Debug("ignoring a request that can't be answered", "client", ep.conn.ClientID(), "why", why, "qos", p.QoS)
}

func (ep *endpoint) refuse(t *broker.Turn, p *mqtt.Publish, reason string) {
	ep.refused(reason)
	ep.conn.Answer(t, p, mqtt.ImplementationSpecificError, reason, nil)
}

// refused counts and logs a request that is refused in its PUBACK.
func (ep *endpoint) refused(reason string) {
	ep.sv.stats.Malformed.Add(1)
	ep.sv.log.Debug("refusing a request", "client", ep.conn.ClientID(), "reason", reason)
}

// execute parses the command and has the engine do it.
func (ep *endpoint) execute(t *broker.Turn, p *mqtt.Publish) {
	t.Count(&ep.sv.stats.Requests)
	r := requestOf(t)
	r.begin(ep, t, p)
	ep.do(r, p)
	if r.publish != nil { // answered
		r.end()
		return
	}
	if r.replied.Load() {
		// There was nothing to wait for, so no batch's completion will flush.
		ep.conn.FlushLater()
	}
	r.leave()
}

// do has the engine do what the publish asks for.
func (ep *endpoint) do(r *request, p *mqtt.Publish) {
	cmd := &r.cmd
	ep.conn.BeginDecoding()
	fault := ep.parse(r, p)
	ep.conn.EndDecoding()
	if fault != statestore.None {
		r.Reply(&statestore.Reply{Kind: statestore.Error, Fault: fault})
		return
	}
	if !cmd.Verb.Writes() && ep.conn.Gone() {
		return // the answer would be all that comes of it
	}
	cmd.Denied = !ep.permitted(cmd)
	if cmd.Verb == statestore.Scan {
		ep.turn = r.turn
		ep.turn.Rest() // it may wait for its place
	}
	ep.session.Do(cmd, r)
}

// work is what the engine tells of a SCAN's work.
func (ep *endpoint) work(units int) { ep.turn.Work(units) }

// parse reads the command, and those properties of the request that belong to it.
func (ep *endpoint) parse(r *request, p *mqtt.Publish) statestore.Fault {
	cmd := &r.cmd
	if fault := protocol.Parse(p.Payload, r.dialect, ep.sv.maxKey, cmd); fault != statestore.None {
		return fault
	}
	if cmd.Verb == statestore.KeyNotify && !protocol.NotifyTopicFits(ep.conn.ClientID(), cmd.Key) {
		return statestore.Syntax
	}
	if cmd.Verb != statestore.Get { // the rules judge neither for a GET
		cmd.Time = protocol.ParseStamp(mqtt.FindUserProp(p.Props.Raw, r.dialect.TimeProperty))
		cmd.Token = protocol.ParseStamp(mqtt.FindUserProp(p.Props.Raw, r.dialect.TokenProperty))
	}
	return statestore.None
}

// permitted asks for the permission to use the key. The keys that SCAN finds
// are asked for one by one, by the engine.
func (ep *endpoint) permitted(cmd *statestore.Command) bool {
	policy := ep.sv.keys
	switch {
	case policy == nil || cmd.Verb == statestore.Scan:
		return true
	case cmd.Verb.Writes():
		return policy.MayWrite(ep.conn.Identity(), cmd.Key)
	default:
		return policy.MayRead(ep.conn.Identity(), cmd.Key)
	}
}

// Event implements engine.Sink: a watched key has changed (protocol, section 6).
func (ep *endpoint) Event(e *statestore.Event) {
	sv := ep.sv
	var scratch [512]byte
	topic := protocol.AppendNotifyTopic(scratch[:0], ep.conn.ClientID(), e.Key)
	refer := e.Kind == statestore.KeySet && e.Lasting && len(e.Value) > 0
	size := len(e.Value)
	if refer {
		size = 0
	}
	m := broker.Compose(topic, len(sv.noticeHead)+size+128)
	m.Buf = append(m.Buf, sv.noticeHead...)
	m.Buf = appendVersion(m.Buf, protocol.Current.TimeProperty, e.Version)
	m.EndProperties()
	if refer {
		m.Buf = protocol.AppendEventHead(m.Buf, e)
		m.Refer(e.Value)
		m.Buf = append(m.Buf, protocol.ValueTail...)
	} else {
		m.Buf = protocol.AppendEvent(m.Buf, sv.wire, e)
	}
	sv.stats.Notices.Add(1)
	if !ep.conn.Notify(m.Message()) {
		ep.Lost()
	}
}

// Lost implements engine.Sink: a notification couldn't be given; the client must
// not go on as if there had been none.
func (ep *endpoint) Lost() {
	ep.conn.Disconnect(mqtt.QuotaExceeded, "notifications come faster than this client takes them")
}
