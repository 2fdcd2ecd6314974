package client

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

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

// maxNodeBytes is the longest node of a timestamp, and the longest client ID: with what
// stands around them they are strings of MQTT.
const maxNodeBytes = 65_000

// link is one connection of a [Client]: requests of the state store over package rpc.
type link struct {
	*rpc.Link[reply]
	cfg           *config
	responseTopic string
	notified      func(*link, watches.Change)
	node          string // the node of the version that came last; the reader's
}

// reply is the answer to a request.
type reply struct {
	protocol.Response
	version hlc.Timestamp // zero: none came
	keep    time.Duration // 0: none came
	timed   bool          // it is the refusal of a timestamp that was ahead, and the server has said what the time is
}

// connect makes a link. When it fails, nothing is left of the connection.
func connect(ctx context.Context, cfg *config, notified func(*link, watches.Change)) (l *link, err error) {
	l = &link{
		cfg: cfg, notified: notified,
		responseTopic: "clients/" + cfg.ClientID + "/services/statestore/_any_/command/invoke/response",
	}
	l.Link, err = rpc.Connect(ctx, &cfg.Config, l.responseTopic, l.parseReply, l.receivedOther)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// start sends a request and returns without waiting for the answer; see rpc.Link.Start.
func (l *link) start(ctx context.Context, r *request, seen func(reply, error)) (*rpc.Call[reply], error) {
	if limit := l.LimitBytes(); r.sizeBytes(l.responseTopic) > limit {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d bytes", ErrTooLarge, len(r.payload), limit)
	}
	if r.token != nil && len(r.token.Node) > maxNodeBytes {
		return nil, fmt.Errorf("%w: a fencing token's node of %d bytes, the limit is %d bytes", ErrInvalidOption, len(r.token.Node), maxNodeBytes)
	}
	expiry, expires := expiryOf(ctx)
	return l.Start(ctx, func(dst []byte, packetID uint16, correlation []byte) []byte {
		return l.appendRequest(dst, packetID, correlation, r, expiry, expires)
	}, seen)
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
func (l *link) appendRequest(dst []byte, packetID uint16, correlation []byte, r *request, expiry uint32, expires bool) []byte {
	var room, text [packetOverheadBytes]byte // on the stack, unless a token or client ID is large
	props := mqtt.AppendStringProp(room[:0], mqtt.PropResponseTopic, l.responseTopic)
	props = mqtt.AppendStringProp(props, mqtt.PropCorrelationData, correlation)
	props = mqtt.AppendUserProp(props, protocol.TimeProperty, l.cfg.clock.Now().Append(text[:0]))
	if r.token != nil {
		props = mqtt.AppendUserProp(props, protocol.TokenProperty, r.token.Append(text[:0]))
	}
	return mqtt.AppendDelivery(dst, mqtt.V5, &mqtt.Delivery{
		QoS: 1, PacketID: packetID, Topic: invokeTopic, Expiry: expiry, HasExpiry: expires, Props: props, Payload: r.payload,
	})
}

// Register sends KEYNOTIFY and GET, and returns when both answers are there. It
// implements watches.Link.
func (l *link) Register(ctx context.Context, key string, read func(watches.State)) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	keyNotify := newRequest("watch", key, []byte("KEYNOTIFY"), []byte(key))
	get := newRequest("watch", key, []byte("GET"), []byte(key))
	registering, err := l.start(ctx, keyNotify, nil)
	if err != nil {
		return err
	}
	reading, err := l.start(ctx, get, func(r reply, err error) {
		if err == nil && (r.Kind == protocol.Blob || r.Kind == protocol.Nil) {
			read(watches.State{Present: r.Kind == protocol.Blob, Value: r.Blob, Version: r.version})
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
		return toStoreError(&registered.Response)
	case readErr != nil:
		return readErr
	case value.Kind == protocol.Error:
		return toStoreError(&value.Response)
	}
	return nil
}

// Unregister sends KEYNOTIFY STOP. Its failure doesn't matter: the key has no watcher,
// and a later registration of it starts anew. It implements watches.Link.
func (l *link) Unregister(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	stop := newRequest("watch", key, []byte("KEYNOTIFY"), []byte(key), []byte("STOP"))
	if stopping, err := l.start(ctx, stop, nil); err == nil {
		_, _ = l.Result(ctx, stopping)
	}
}

// receivedOther gets the messages that are no answers.
func (l *link) receivedOther(p *mqtt.Publish) {
	if n, ok := l.parseNotification(p); ok {
		l.notified(l, n)
	}
}

// parseReply reads an answer's properties and payload.
func (l *link) parseReply(p *mqtt.Publish) (reply, error) {
	if status, _ := mqtt.FindUserProp(p.Props.Raw, protocol.StatusProperty); len(status) > 0 && string(status) != protocol.StatusOK {
		message, _ := mqtt.FindUserProp(p.Props.Raw, "__stMsg")
		return reply{}, &StatusError{Status: string(status), Message: string(message)}
	}
	response, err := protocol.ParseReply(bytes.Clone(p.Payload))
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", ErrUnexpectedReply, err)
	}
	answer := reply{Response: response, version: l.observe(p)}
	if text, ok := mqtt.FindUserProp(p.Props.Raw, protocol.ServerTimeProperty); ok {
		if ms, err := strconv.ParseUint(string(text), 10, 63); err == nil {
			answer.timed = true
			l.correctClock(ms)
		}
	}
	if text, ok := mqtt.FindUserProp(p.Props.Raw, protocol.KeepProperty); ok {
		if ms, err := strconv.ParseInt(string(text), 10, 64); err == nil {
			answer.keep = time.Duration(min(max(ms, 0), math.MaxInt64/1_000_000)) * time.Millisecond
		}
	}
	return answer, nil
}

// correctClock sets the clock by the server's, which has found a timestamp of this client
// too far ahead.
func (l *link) correctClock(serverMs uint64) {
	ahead := l.cfg.clock.Correct(serverMs)
	l.cfg.Logger.Error("this machine's clock is ahead of the server's; timestamps are made by the server's clock from here on: set the machine's clock right", "ahead", ahead)
}

// parseNotification reads a change of a watched key (protocol, section 6).
func (l *link) parseNotification(p *mqtt.Publish) (watches.Change, bool) {
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
func (l *link) observe(p *mqtt.Publish) hlc.Timestamp {
	text, _ := mqtt.FindUserProp(p.Props.Raw, protocol.TimeProperty)
	version, err := hlc.ParseBytes(text)
	if err != nil {
		return hlc.Timestamp{}
	}
	if version.Node != l.node {
		l.node = strings.Clone(version.Node)
	}
	version.Node = l.node
	if err := l.cfg.clock.Observe(version); err != nil {
		l.cfg.Logger.Warn("the server's clock and this machine's differ", "version", version.String(), "error", err)
	}
	return version
}
