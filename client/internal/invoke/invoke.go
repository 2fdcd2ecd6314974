// Package invoke is requests of the state store over one MQTT connection: as they are on the
// wire (protocol, sections 2 and 6), and their replies. What a request asks for is its
// payload, which package client makes.
package invoke

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/client/internal/rpc"
	"github.com/holdfast-mqtt/holdfast/client/internal/watches"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// packetOverheadBytes is more than everything in a request beside its payload
// and topics: headers, correlation data, timestamps.
const packetOverheadBytes = 512

// MaxNodeBytes is the longest node of a timestamp, and the longest client ID: with what
// stands around them they are strings of MQTT.
const MaxNodeBytes = 65_000

// Config is what the links of a client have in common.
type Config struct {
	*conn.Config
	Clock    *hlc.Clock
	Notified func(*Link, watches.Change) // gets the changes of watched keys
	Errors   Errors
}

// Errors makes errors, in the terms of package client, of what the store answers.
type Errors struct {
	Refused    func(*protocol.Response) error     // an -ERR
	Status     func(status, message string) error // a status that is not 200
	Unexpected error                              // an answer that is none
}

// Link is one connection over which requests go. It implements watches.Link.
type Link struct {
	*rpc.Link[Reply]
	cfg           *Config
	responseTopic string
	messages      func(*mqtt.Publish)
	node          string    // the node of the version that came last; the reader's
	warned        time.Time // that the clocks differ; the reader's
}

// warnEvery is how often a log says at most that the clocks of the server and this machine differ.
const warnEvery = time.Minute

// Request is a command. Value and Behind follow Payload: a value is not copied before it is sent, since it
// may be large.
type Request struct {
	Payload, Value, Behind []byte
	Token                  *hlc.Timestamp // nil: none
}

func (r *Request) payloadBytes() int { return len(r.Payload) + len(r.Value) + len(r.Behind) }

// Reply is the answer to a request.
type Reply struct {
	protocol.Response
	Version hlc.Timestamp // zero: none came
	Keep    time.Duration // 0: none came
	Quota   string        // the setting that a quota error names; "": none
	Timed   bool          // it is the refusal of a timestamp that was ahead, and the server has said what the time is
}

// New dials. messages gets, in order and as views that are valid until it returns, what is
// neither an answer nor a notification, and sees to its acknowledgement; nil: such messages are
// dropped.
func New(ctx context.Context, cfg *Config, messages func(*mqtt.Publish)) (*Link, error) {
	l := &Link{
		cfg: cfg, messages: messages,
		responseTopic: "clients/" + cfg.ClientID + "/services/statestore/_any_/command/invoke/response",
	}
	var err error
	l.Link, err = rpc.New(ctx, cfg.Config, l.responseTopic, l.parseReply, l.receivedOther)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Connect makes a link for requests only. When it fails, nothing is left of the connection.
func Connect(ctx context.Context, cfg *Config) (*Link, error) {
	ctx, cancel := cfg.Attempt(ctx)
	defer cancel()
	l, err := New(ctx, cfg, nil)
	if err != nil {
		return nil, err
	}
	if _, err := l.Handshake(ctx, &mqtt.Connect{CleanStart: true}); err != nil {
		return nil, err
	}
	if err := l.Listen(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Do sends a request and returns without waiting for the answer; see rpc.Link.Start.
func (l *Link) Do(ctx context.Context, r *Request, seen func(Reply, error)) (*rpc.Call[Reply], error) {
	if n, limit := r.sizeBytes(l.responseTopic), l.LimitBytes(); n > limit {
		return nil, fmt.Errorf("%w: up to %d bytes, the limit is %d bytes", conn.ErrTooLarge, n, limit)
	}
	expiry, expires := expiryOf(ctx)
	return l.Start(ctx, func(dst []byte, packetID uint16, correlation []byte) []byte {
		return l.appendRequest(dst, packetID, correlation, r, expiry, expires)
	}, seen)
}

// sizeBytes is an upper bound of the request's MQTT packet.
func (r *Request) sizeBytes(responseTopic string) int64 {
	n := r.payloadBytes() + len(protocol.InvokeTopic) + len(responseTopic) + packetOverheadBytes
	if r.Token != nil {
		n += len(r.Token.Node)
	}
	return int64(n)
}

// expiryOf is the Message Expiry Interval, in seconds, of a request: the server need not
// carry it out once its caller has stopped waiting.
func expiryOf(ctx context.Context) (seconds uint32, expires bool) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0, false
	}
	return uint32(min(max(math.Ceil(time.Until(deadline).Seconds()), 1), math.MaxUint32)), true
}

var invokeTopic = []byte(protocol.InvokeTopic)

// appendRequest appends the PUBLISH of a request (protocol, section 2).
func (l *Link) appendRequest(dst []byte, packetID uint16, correlation []byte, r *Request, expiry uint32, expires bool) []byte {
	var room, text [packetOverheadBytes]byte // on the stack, unless a token or client ID is large
	props := mqtt.AppendStringProp(room[:0], mqtt.PropResponseTopic, l.responseTopic)
	props = mqtt.AppendStringProp(props, mqtt.PropCorrelationData, correlation)
	props = mqtt.AppendUserProp(props, protocol.TimeProperty, l.cfg.Clock.Now().Append(text[:0]))
	if r.Token != nil {
		props = mqtt.AppendUserProp(props, protocol.TokenProperty, r.Token.Append(text[:0]))
	}
	dst = slices.Grow(dst, int(r.sizeBytes(l.responseTopic))) // at once, as a value may be large
	dst = mqtt.AppendDelivery(dst, mqtt.V5, &mqtt.Delivery{
		QoS: 1, PacketID: packetID, Topic: invokeTopic, Expiry: expiry, HasExpiry: expires, Props: props, Payload: r.Payload, Rest: len(r.Value) + len(r.Behind),
	})
	return append(append(dst, r.Value...), r.Behind...)
}

func command(args ...string) *Request {
	words := make([][]byte, len(args))
	for i, a := range args {
		words[i] = []byte(a)
	}
	return &Request{Payload: protocol.AppendCommand(nil, words...)}
}

// Register sends KEYNOTIFY and GET, and returns when both answers are there. It
// implements watches.Link.
func (l *Link) Register(ctx context.Context, key string, read func(watches.State)) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	registering, err := l.Do(ctx, command("KEYNOTIFY", key), nil)
	if err != nil {
		return err
	}
	reading, err := l.Do(ctx, command("GET", key), func(r Reply, err error) {
		if err == nil && (r.Kind == protocol.Blob || r.Kind == protocol.Nil) {
			read(watches.State{Present: r.Kind == protocol.Blob, Value: r.Blob, Version: r.Version})
		}
	})
	if err != nil {
		l.Forget(registering)
		return err
	}
	registered, registerErr := l.Result(ctx, registering)
	value, readErr := l.Result(ctx, reading)
	switch {
	case registerErr != nil:
		return registerErr
	case registered.Kind == protocol.Error:
		return l.cfg.Errors.Refused(&registered.Response)
	case readErr != nil:
		return readErr
	case value.Kind == protocol.Error:
		return l.cfg.Errors.Refused(&value.Response)
	}
	return nil
}

// Unregister sends KEYNOTIFY STOP. Its failure doesn't matter: the key has no watcher,
// and a later registration of it starts anew. It implements watches.Link.
func (l *Link) Unregister(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	if stopping, err := l.Do(ctx, command("KEYNOTIFY", key, "STOP"), nil); err == nil {
		_, _ = l.Result(ctx, stopping)
	}
}

// receivedOther gets the messages that are no answers. It says whether they are acknowledged
// elsewhere.
func (l *Link) receivedOther(p *mqtt.Publish) (taken bool) {
	if n, ok := l.parseNotification(p); ok {
		l.cfg.Notified(l, n)
		return false
	}
	if l.messages == nil {
		return false
	}
	l.messages(p)
	return true
}

// parseReply reads an answer's properties and payload.
func (l *Link) parseReply(p *mqtt.Publish) (Reply, error) {
	if status, _ := mqtt.FindUserProp(p.Props.Raw, protocol.StatusProperty); len(status) > 0 && string(status) != protocol.StatusOK {
		message, _ := mqtt.FindUserProp(p.Props.Raw, "__stMsg")
		return Reply{}, l.cfg.Errors.Status(string(status), string(message))
	}
	response, err := protocol.ParseReply(bytes.Clone(p.Payload))
	if err != nil {
		return Reply{}, fmt.Errorf("%w: %w", l.cfg.Errors.Unexpected, err)
	}
	answer := Reply{Response: response, Version: l.observe(p)}
	if text, ok := mqtt.FindUserProp(p.Props.Raw, protocol.ServerTimeProperty); ok {
		if ms, err := strconv.ParseUint(string(text), 10, 63); err == nil {
			answer.Timed = true
			l.correctClock(ms)
		}
	}
	if text, ok := mqtt.FindUserProp(p.Props.Raw, protocol.KeepProperty); ok {
		if ms, err := strconv.ParseInt(string(text), 10, 64); err == nil {
			answer.Keep = time.Duration(min(max(ms, 0), math.MaxInt64/1_000_000)) * time.Millisecond
		}
	}
	if text, ok := mqtt.FindUserProp(p.Props.Raw, protocol.QuotaProperty); ok {
		answer.Quota = string(text)
	}
	return answer, nil
}

// correctClock sets the clock by the server's, which has found a timestamp of this client
// too far ahead.
func (l *Link) correctClock(serverMs uint64) {
	ahead := l.cfg.Clock.Correct(serverMs)
	l.cfg.Logger.Error("this machine's clock is ahead of the server's; timestamps are made by the server's clock from here on: set the machine's clock right", "ahead", ahead)
}

// parseNotification reads a change of a watched key (protocol, section 6).
func (l *Link) parseNotification(p *mqtt.Publish) (watches.Change, bool) {
	_, key, ok := protocol.ParseNotifyTopic(string(p.Topic))
	if !ok {
		return watches.Change{}, false
	}
	event, err := protocol.ParseEvent(bytes.Clone(p.Payload))
	if err != nil {
		l.cfg.Logger.Warn("unreadable notification", "key", string(key), "error", err)
		return watches.Change{}, false
	}
	return watches.Change{
		Key:     string(key),
		Deleted: event.Kind == statestore.KeyDeleted,
		Value:   event.Value,
		Version: l.observe(p),
	}, true
}

// observe reads the version of a message and moves the clock past it. A
// version too far ahead of this machine's clock leaves the clock alone; it is
// still the version.
func (l *Link) observe(p *mqtt.Publish) hlc.Timestamp {
	text, _ := mqtt.FindUserProp(p.Props.Raw, protocol.TimeProperty)
	version, err := hlc.ParseBytes(text)
	if err != nil {
		return hlc.Timestamp{}
	}
	if version.Node != l.node {
		l.node = strings.Clone(version.Node)
	}
	version.Node = l.node
	if err := l.cfg.Clock.Observe(version); err != nil && time.Since(l.warned) >= warnEvery {
		l.warned = time.Now()
		l.cfg.Logger.Warn("the server's clock and this machine's differ", "version", version.String(), "error", err)
	}
	return version
}
