package service

import (
	"bytes"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/stats"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/spans"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// endpoint is the store's side of one connection: requests come in by Handle,
// on the connection's reader; notifications come from the engine by Event.
type endpoint struct {
	sv      *Service
	conn    *broker.Conn
	session engine.Session
	turn    *broker.Turn // of the SCAN under way

	commands uint8       // executed; the reader's, as began
	began    time.Time   // the command at hand; zero: its time is not taken
	span     *spans.Span // of the command at hand; nil: it has none
}

// Close implements broker.Endpoint.
func (ep *endpoint) Close() { ep.session.Close() }

// Handle implements broker.Endpoint: one request (protocol, section 2).
func (ep *endpoint) Handle(t *broker.Turn, p *mqtt.Publish) {
	switch {
	case p.QoS == 0:
		ep.ignore(p, "QoS 0")
	case ep.conn.Protocol != mqtt.V5:
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
		ep.noteRefusal(reason)
		ep.conn.AnswerAndDisconnect(t, p, mqtt.TopicNameInvalid, reason)
	case ep.conn.TooManyLevels(p.Props.ResponseTopic):
		const reason = "the Response Topic has too many levels"
		ep.noteRefusal(reason)
		ep.conn.Answer(t, p, mqtt.TopicNameInvalid, reason, nil)
	case !ep.conn.MayBeAnswered(t, p.Props.ResponseTopic):
		const reason = "the Response Topic must be one that the client may subscribe to"
		ep.noteRefusal(reason)
		ep.conn.Answer(t, p, mqtt.NotAuthorized, reason, nil)
	case p.Props.HasMessageExpiry && p.Props.MessageExpiry == 0:
		ep.sv.stats.Expired.Add(1)
		ep.sv.log.Debug("dropping a request that has expired", "client", ep.conn.Client)
		ep.conn.Answer(t, p, mqtt.Success, "", nil)
	case p.Props.PayloadFormat == 1 && !utf8.Valid(p.Payload):
		const reason = "the payload is not UTF-8 as its Payload Format Indicator says"
		ep.noteRefusal(reason)
		ep.conn.Answer(t, p, mqtt.PayloadFormatInvalid, reason, nil)
	default:
		ep.execute(t, p)
	}
}

func (ep *endpoint) ignore(p *mqtt.Publish, why string) {
	ep.sv.stats.Ignored.Add(1)
	ep.sv.log.Debug("ignoring a request that can't be answered", "client", ep.conn.Client, "why", why, "qos", p.QoS)
}

func (ep *endpoint) refuse(t *broker.Turn, p *mqtt.Publish, reason string) {
	ep.noteRefusal(reason)
	ep.conn.Answer(t, p, mqtt.ImplementationSpecificError, reason, nil)
}

// noteRefusal counts and logs a request that is refused in its PUBACK.
func (ep *endpoint) noteRefusal(reason string) {
	ep.sv.stats.Malformed.Add(1)
	ep.sv.log.Debug("refusing a request", "client", ep.conn.Client, "reason", reason)
}

// execute parses the command, has the engine do it, and answers.
func (ep *endpoint) execute(t *broker.Turn, p *mqtt.Publish) {
	if ep.commands++; stats.Counting && ep.commands%sampleEvery == 0 {
		ep.began = time.Now()
	}
	q := request{
		dialect: dialectOf(p.Topic), topic: p.Props.ResponseTopic, correlation: p.Props.CorrelationData,
	}
	if p.Props.HasMessageExpiry {
		q.expiresAt = ep.conn.Now() + int64(p.Props.MessageExpiry)*1000
	}
	if ep.sv.spans != nil {
		ep.span = ep.beginSpan(p)
	}
	call := callOf(t)
	cmd := &call.Command
	ep.conn.BeginDecoding()
	fault := ep.parse(cmd, q.dialect, p)
	ep.conn.EndDecoding()
	if fault != statestore.None {
		reply := statestore.Reply{Kind: statestore.Error, Fault: fault}
		ep.conn.Answer(t, p, mqtt.Success, "", ep.response(&q, cmd.Verb, &reply))
		ep.count(t, cmd.Verb, &reply, 0)
		return
	}
	switch cmd.Verb {
	case statestore.Txn:
		ep.transact(t, p, &q)
		return
	case statestore.Timers, statestore.Cancel:
		ep.timers(t, p, &q, cmd)
		return
	}
	if !cmd.Verb.Writes() && ep.conn.Gone() {
		ep.span = nil
		return // the answer would be all that comes of it
	}
	cmd.Denied = !ep.permitted(cmd)
	if cmd.Verb == statestore.Scan {
		cmd.MaxPage = ep.maxPage(&q)
		ep.turn = t
		t.Rest() // it may wait for its place
	}
	wait := ep.session.Do(call)
	reply := call.Reply()
	if ep.span != nil {
		ep.span.Describe(cmd.Verb.String(), ep.conn.Client, keyOf(cmd))
	}
	if traces := ep.sv.tracer.Commands(); traces != nil {
		ep.traced(traces, cmd, reply)
	}
	ep.conn.AnswerWhenDurable(t, p, wait.Batch, wait.Asked, ep.response(&q, cmd.Verb, reply))
	ep.count(t, cmd.Verb, reply, wait.Batch)
	call.Clear()
}

// count counts a command that is answered when its batch is durable; 0: at once.
func (ep *endpoint) count(t *broker.Turn, verb statestore.Verb, reply *statestore.Reply, batch journal.Seq) {
	sv := ep.sv
	t.Count(&sv.stats.Commands[verb][outcomeOf(reply)])
	if !ep.began.IsZero() {
		sv.samples.take(ep.began, sv.stats.Latency[verb], batch, sv.await)
		ep.began = time.Time{}
	}
	if ep.span != nil {
		ep.endSpan(verb, reply, batch)
	}
}

// callOf gives the turn's engine.Call.
func callOf(t *broker.Turn) *engine.Call {
	if call, ok := t.Scratch.(*engine.Call); ok {
		return call
	}
	call := new(engine.Call)
	t.Scratch = call
	return call
}

// aroundPage is more than what a response has around its payload besides topic,
// correlation data and the properties that all of them have: the fixed header, lengths
// and identifiers of the packet, its expiry, and some subscription identifiers.
const aroundPage = 128

// maxPage is how long a page of SCAN may be for the client to take it, at least 1;
// 0: as long as it likes. A response that the client wants elsewhere counts as well.
func (ep *endpoint) maxPage(r *request) int {
	most := int(ep.conn.MaxPacket)
	if most == 0 {
		return 0
	}
	return max(1, most-aroundPage-len(r.topic)-len(r.correlation)-len(ep.sv.responseHead)-len(ep.sv.responseTail))
}

// work is what the engine tells of a SCAN's work.
func (ep *endpoint) work(units int) { ep.turn.Work(units) }

// rest is called by the engine before a SCAN waits for its place again: those that have the
// places may wait for the one that this reader has in the gate.
func (ep *endpoint) rest() { ep.turn.Rest() }

// parse reads the command, and those properties of the request that belong to it.
func (ep *endpoint) parse(cmd *statestore.Command, dialect *protocol.Dialect, p *mqtt.Publish) statestore.Fault {
	if fault := protocol.Parse(p.Payload, dialect, ep.sv.maxKey, cmd); fault != statestore.None {
		return fault
	}
	if cmd.Verb == statestore.KeyNotify && !protocol.NotifyTopicFits(ep.conn.Client, cmd.Key) {
		return statestore.Syntax
	}
	if cmd.Verb != statestore.Get && cmd.Verb < statestore.Txn { // the rules judge neither for a GET; a TXN gives them to its writes
		cmd.Time = protocol.ParseStamp(mqtt.FindUserProp(p.Props.Raw, dialect.TimeProperty))
		cmd.Token = protocol.ParseStamp(mqtt.FindUserProp(p.Props.Raw, dialect.TokenProperty))
	}
	return statestore.None
}

// permitted asks for the permission to use the key: GET, LOAD and KEYNOTIFY read,
// and all else writes. A reply to a write may show the version of what is stored, and
// whether it is what the request compares it with. The keys that SCAN finds
// are asked for one by one, by the engine.
func (ep *endpoint) permitted(cmd *statestore.Command) bool {
	may := ep.sv.may
	switch {
	case may == nil || cmd.Verb == statestore.Scan:
		return true
	case cmd.Verb.Writes():
		return may.MayWrite(ep.conn.Identity(), cmd.Key)
	default:
		return may.MayRead(ep.conn.Identity(), cmd.Key)
	}
}

// bounds are those of the client's principal, by the policy of the moment.
func (ep *endpoint) bounds() quota.Bounds {
	q := &ep.sv.may.Grants(ep.conn.Identity()).Quota
	return quota.Bounds{Keys: q.Keys, Bytes: q.KeyBytes, MaxSkew: q.TimestampSkew}
}

// Event implements engine.Sink: a watched key has changed (protocol, section 6).
func (ep *endpoint) Event(e *statestore.Event) {
	sv := ep.sv
	if sv.may != nil && !sv.may.MayRead(ep.conn.Identity(), e.Key) {
		ep.EndWatch()
		return
	}
	var scratch [512]byte
	topic := protocol.AppendNotifyTopic(scratch[:0], ep.conn.Client, e.Key)
	refer := e.Kind == statestore.KeySet && e.Lasting && len(e.Value) > 0
	size := len(e.Value)
	if refer {
		size = 0
	}
	m := message.Compose(topic, len(sv.noticeHead)+size+128)
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
	ep.conn.Disconnect(mqtt.QuotaExceeded, "notifications come faster than this client takes them (--max-notifications)")
}

// EndWatch ends the connection because a key that it watches may not be read any
// more: with the connection all its watches end, and the client learns of it.
func (ep *endpoint) EndWatch() {
	ep.conn.Disconnect(mqtt.NotAuthorized, "the policy allows no more to read a key that this client watches")
}

func dialectOf(topic []byte) *protocol.Dialect {
	if string(topic) == protocol.Preview.Topic {
		return protocol.Preview
	}
	return protocol.Current
}

// forbidden says whether a response topic is one that the store itself listens
// or speaks on (protocol, section 2).
func forbidden(responseTopic []byte) bool {
	return string(responseTopic) == protocol.Current.Topic ||
		string(responseTopic) == protocol.Preview.Topic ||
		bytes.HasPrefix(responseTopic, []byte(protocol.NotifyPrefix))
}
