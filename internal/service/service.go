package service

import (
	"bytes"
	"cmp"
	"log/slog"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/spans"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
)

// Options configures a Service.
type Options struct {
	Engine engine.Engine
	Wire   protocol.Wire
	NodeID string             // of the store, sent with notifications
	MaxKey int                // bytes of a key; 0: protocol.DefaultMaxKey
	MaxTxn int                // operations of each kind of a TXN; 0: protocol.DefaultMaxTxnOperations
	May    access.Permissions // nil: every client may read and write every key
	Logger *slog.Logger
	Tracer *trace.Tracer   // nil: nothing is ever traced
	Spans  *spans.Exporter // nil: requests have no spans
	// Await is journal.Journal's, for the times of writes; nil: they are not taken.
	Await func(journal.Seq, journal.Waiter) bool
}

// Service answers the requests to the state store. It is a broker.Handler for
// Topics; its methods are safe for concurrent use.
type Service struct {
	engine engine.Engine
	wire   protocol.Wire
	maxKey int
	maxTxn int
	may    access.Permissions // nil: every client may read and write every key
	log    *slog.Logger
	tracer *trace.Tracer   // nil: nothing is ever traced
	spans  *spans.Exporter // nil: requests have no spans
	stats  Stats

	await   func(journal.Seq, journal.Waiter) bool // nil: times of writes are not taken
	samples samples

	responseHead []byte // properties that every response begins with
	responseTail []byte // and those that end it in the current dialect
	noticeHead   []byte // properties that every notification begins with
}

// Topics are the request topics of both dialects.
func Topics() []string { return []string{protocol.Current.Topic, protocol.Preview.Topic} }

// Protected are the topics below which only the store publishes.
func Protected() []string { return []string{protocol.NotifyPrefix} }

// New makes a Service.
func New(o Options) *Service {
	sv := &Service{engine: o.Engine, wire: o.Wire, maxKey: cmp.Or(o.MaxKey, protocol.DefaultMaxKey), maxTxn: cmp.Or(o.MaxTxn, protocol.DefaultMaxTxnOperations), may: o.May, log: o.Logger, tracer: o.Tracer, spans: o.Spans, await: o.Await}
	sv.samples.init()
	for v := range sv.stats.Latency[1:] {
		sv.stats.Latency[v+1] = histogram.New(1000)
	}
	if sv.log == nil {
		sv.log = slog.New(slog.DiscardHandler)
	}
	head := mqtt.AppendByteProp(nil, mqtt.PropPayloadFormat, 0)
	head = mqtt.AppendStringProp(head, mqtt.PropContentType, protocol.ContentType)
	sv.responseHead = bytes.Clone(head)
	sv.responseTail = mqtt.AppendUserProp(nil, protocol.StatusProperty, protocol.StatusOK)
	sv.responseTail = mqtt.AppendUserProp(sv.responseTail, protocol.ProtocolVersionProperty, protocol.ProtocolVersion)
	sv.noticeHead = mqtt.AppendUserProp(bytes.Clone(head), protocol.ProtocolVersionProperty, protocol.ProtocolVersion)
	sv.noticeHead = mqtt.AppendUserProp(sv.noticeHead, protocol.SourceProperty, o.NodeID)
	return sv
}

// Stats gives the counters.
func (sv *Service) Stats() *Stats { return &sv.stats }

// Open implements broker.Handler: the store's side of one connection.
func (sv *Service) Open(c *broker.Conn) broker.Endpoint {
	ep := &endpoint{sv: sv, conn: c}
	o := engine.Origin{ID: cmp.Or(c.Identity().OwnedBy(), c.Client), Verified: true, Sink: ep, Waiter: c, Gone: c.Gone, Work: ep.work, Rest: ep.rest}
	if sv.may != nil {
		o.Bounds = ep.bounds
	}
	ep.session = sv.engine.Open(o)
	return ep
}

// Recheck ends the connections that watch a key which they may read no more, because what
// clients may do has changed.
func (sv *Service) Recheck() {
	if sv.may == nil {
		return
	}
	for _, o := range sv.engine.Watching(func(o *engine.Origin, key []byte) bool { return !CanRead(o, key) }) {
		if ep, ok := o.Sink.(*endpoint); ok {
			ep.EndWatch()
		}
	}
}

// Watchers gives the client IDs of up to most clients that watch a key, and how many do.
func (sv *Service) Watchers(key []byte, most int) (clients []string, all int) {
	some, all := sv.engine.Watchers(key, most)
	for _, o := range some {
		if ep, ok := o.Sink.(*endpoint); ok {
			clients = append(clients, ep.conn.Client)
		}
	}
	return clients, all
}

// MayReceive says whether a response or a notification that was queued for a client, on
// this topic, may still be sent to it.
func (sv *Service) MayReceive(c *broker.Conn, topic []byte) bool {
	if sv.may == nil {
		return true
	}
	if _, key, ok := protocol.ParseNotifyTopic(string(topic)); ok {
		return sv.may.MayRead(c.Identity(), key)
	}
	return sv.may.MaySubscribe(c.Identity(), topic)
}

// CanRead says whether the client behind a session may read a key that SCAN has
// found; it is what engine.Options.CanRead asks.
func CanRead(o *engine.Origin, key []byte) bool {
	ep, ok := o.Sink.(*endpoint)
	return ok && (ep.sv.may == nil || ep.sv.may.MayRead(ep.conn.Identity(), key))
}
