package service

import (
	"bytes"
	"cmp"
	"log/slog"
	"sync/atomic"

	"holdfast/internal/broker"
	"holdfast/internal/engine"
	"holdfast/internal/mqtt"
	"holdfast/internal/protocol"
)

// KeyPolicy says who may read and write which keys. Its methods are called for
// every request, on many goroutines at once, and must not block. identity is
// what the broker's Authorizer said the client is.
type KeyPolicy interface {
	MayRead(identity any, key []byte) bool
	MayWrite(identity any, key []byte) bool
}

// Options configures a Service.
type Options struct {
	Engine engine.Engine
	Wire   protocol.Wire
	NodeID string    // of the store, sent with notifications
	MaxKey int       // bytes of a key; 0: protocol.DefaultMaxKey
	Keys   KeyPolicy // nil: everybody may read and write every key
	Logger *slog.Logger
}

// Service answers the requests to the state store. It is a broker.Handler for
// Topics; its methods are safe for concurrent use.
type Service struct {
	engine engine.Engine
	wire   protocol.Wire
	maxKey int
	keys   KeyPolicy
	log    *slog.Logger
	stats  Stats

	responseHead []byte // properties that every response begins with
	responseTail []byte // and those that end it in the current dialect
	noticeHead   []byte // properties that every notification begins with
}

// Stats counts requests since the start.
type Stats struct {
	Requests  atomic.Int64 // commands executed
	Ignored   atomic.Int64 // requests at QoS 0 or from MQTT 3.1.1, which can't be answered
	Malformed atomic.Int64 // requests refused in their PUBACK
	Expired   atomic.Int64 // requests that expired before they were executed
	Exceeded  atomic.Int64 // requests answered with the quota error
	Notices   atomic.Int64 // notifications given to connections
}

// Topics are the request topics of both dialects.
func Topics() []string { return []string{protocol.Current.Topic, protocol.Preview.Topic} }

// Protected are the topics below which only the store publishes.
func Protected() []string { return []string{protocol.NotifyPrefix} }

// New makes a Service.
func New(o Options) *Service {
	sv := &Service{engine: o.Engine, wire: o.Wire, maxKey: cmp.Or(o.MaxKey, protocol.DefaultMaxKey), keys: o.Keys, log: o.Logger}
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
	ep.session = sv.engine.Open(engine.Origin{ID: c.ClientID(), Verified: true, Sink: ep, Gone: c.Gone, Work: ep.work})
	return ep
}

// CanRead says whether the client behind a session may read a key that SCAN has
// found; it is what engine.Options.CanRead asks.
func CanRead(o *engine.Origin, key []byte) bool {
	ep, ok := o.Sink.(*endpoint)
	return ok && (ep.sv.keys == nil || ep.sv.keys.MayRead(ep.conn.Identity(), key))
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
