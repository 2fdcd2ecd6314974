package client

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/holdfast-mqtt/holdfast/client/internal/rpc"
	"github.com/holdfast-mqtt/holdfast/client/internal/watches"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// packetOverheadBytes is more than everything in a request beside its payload
// and topics: headers, correlation data, timestamps.
const packetOverheadBytes = 512

// link is one connection of a [Client]: requests of the state store over package rpc.
type link struct {
	*rpc.Link[reply]
	cfg           *config
	responseTopic string
	notified      func(*link, watches.Change)
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
	if limit := l.MaxPacket(); limit > 0 && r.sizeBytes(l.responseTopic) > int64(limit) {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d bytes", ErrTooLarge, len(r.payload), limit)
	}
	return l.Start(ctx, func() *paho.Publish { return l.packet(ctx, r) }, seen)
}

// packet is the PUBLISH of a request (protocol, section 2), without what tells it from
// others.
func (l *link) packet(ctx context.Context, r *request) *paho.Publish {
	user := paho.UserProperties{{Key: protocol.TimeProperty, Value: l.cfg.clock.Now().String()}}
	if r.token != nil {
		user = append(user, paho.UserProperty{Key: protocol.TokenProperty, Value: r.token.String()})
	}
	p := &paho.Publish{QoS: 1, Topic: protocol.InvokeTopic, Payload: r.payload, Properties: &paho.PublishProperties{User: user}}
	// The server need not carry out a request whose caller has stopped waiting.
	if deadline, ok := ctx.Deadline(); ok {
		seconds := math.Ceil(time.Until(deadline).Seconds())
		p.Properties.MessageExpiry = ptr(uint32(min(max(seconds, 1), math.MaxUint32)))
	}
	return p
}

func ptr[T any](v T) *T { return &v }

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
func (l *link) receivedOther(p *paho.Publish) {
	if n, ok := l.parseNotification(p); ok {
		l.notified(l, n)
	}
}

// parseReply reads an answer's properties and payload.
func (l *link) parseReply(p *paho.Publish) (reply, error) {
	if status := p.Properties.User.Get(protocol.StatusProperty); status != "" && status != protocol.StatusOK {
		return reply{}, &StatusError{Status: status, Message: p.Properties.User.Get("__stMsg")}
	}
	response, err := protocol.ParseReply(p.Payload)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", ErrUnexpectedReply, err)
	}
	answer := reply{Response: response, version: l.observe(p)}
	if ms, err := strconv.ParseUint(p.Properties.User.Get(protocol.ServerTimeProperty), 10, 63); err == nil {
		answer.timed = true
		l.correctClock(ms)
	}
	if ms, err := strconv.ParseInt(p.Properties.User.Get(protocol.KeepProperty), 10, 64); err == nil {
		answer.keep = time.Duration(min(max(ms, 0), math.MaxInt64/1_000_000)) * time.Millisecond
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
func (l *link) parseNotification(p *paho.Publish) (watches.Change, bool) {
	_, key, ok := protocol.ParseNotifyTopic(p.Topic)
	if !ok {
		return watches.Change{}, false
	}
	event, err := protocol.ParseEvent(p.Payload)
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
func (l *link) observe(p *paho.Publish) hlc.Timestamp {
	version, err := hlc.Parse(p.Properties.User.Get(protocol.TimeProperty))
	if err != nil {
		return hlc.Timestamp{}
	}
	if err := l.cfg.clock.Observe(version); err != nil {
		l.cfg.Logger.Warn("the server's clock and this machine's differ", "version", version.String(), "error", err)
	}
	return version
}
