package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/hlc"
	"holdfast/internal/protocol"
	"holdfast/internal/statestore"
)

// instance is this process' part of the correlation data, so that an answer to
// somebody who had the same client ID before is never taken for ours.
var instance = func() (b [8]byte) {
	rand.Read(b[:])
	return b
}()

// request is a command ready to be sent, as often as need be.
type request struct {
	op      string // for errors
	key     string // for errors
	payload []byte
	token   *hlc.Timestamp
	write   bool // repeating it can do harm
	retry   bool // … but was asked for
}

func newRequest(op, key string, args ...[]byte) *request {
	return &request{op: op, key: key, payload: protocol.AppendCommand(nil, args...)}
}

// sizeBytes is an upper bound of the request's MQTT packet.
func (r *request) sizeBytes(responseTopic string) int64 {
	n := len(r.payload) + len(protocol.InvokeTopic) + len(responseTopic) + packetOverheadBytes
	if r.token != nil {
		n += len(r.token.Node)
	}
	return int64(n)
}

// do carries a request out: it waits for a connection, sends, waits for the
// answer, and decides what to do when the connection breaks in between.
func (c *Client) do(ctx context.Context, r *request) (reply, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	sent := false // a write has been sent and not been answered
	for {
		l, err := c.live(ctx)
		if err != nil {
			return reply{}, r.fail(err, sent)
		}
		open, err := l.start(ctx, r, nil)
		if err != nil {
			if errors.Is(err, errUnsent) && ctx.Err() == nil && c.awaitEnd(ctx, l) {
				continue
			}
			return reply{}, r.fail(err, sent)
		}
		answer := l.result(ctx, open)
		switch {
		case answer.err == nil:
			return answer, r.judge(&answer)
		case isRefusal(answer.err):
			return reply{}, r.fail(answer.err, sent)
		}
		sent = sent || r.write
		if ctx.Err() != nil || c.ctx.Err() != nil || r.write && !r.retry {
			return reply{}, r.fail(answer.err, sent)
		}
	}
}

// isRefusal tells the server's word from a lost one.
func isRefusal(err error) bool {
	var rejected *RejectedError
	var status *StatusError
	return errors.As(err, &rejected) || errors.As(err, &status) || errors.Is(err, ErrUnexpectedReply)
}

// awaitEnd waits until a link on which nothing could be sent is gone.
func (c *Client) awaitEnd(ctx context.Context, l *link) bool {
	select {
	case <-l.dead:
		return true
	case <-ctx.Done():
		return false
	}
}

// bound gives ctx the client's timeout if it has no deadline.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.cfg.timeout)
}

// judge turns an -ERR answer into an error.
func (r *request) judge(a *reply) error {
	if a.Kind == protocol.Error {
		return r.wrap(toStoreError(&a.Response))
	}
	return nil
}

func (r *request) wrap(err error) error { return &Error{Op: r.op, Key: r.key, Err: err} }

// fail wraps an error, and says so if a write may have taken effect.
func (r *request) fail(err error, sent bool) error {
	if sent && !isRefusal(err) {
		err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return r.wrap(err)
}

func (r *request) unexpected(a *reply) error {
	return r.wrap(fmt.Errorf("%w: %v", ErrUnexpectedReply, a.Kind))
}

// parseReply reads an answer's properties and payload.
func (l *link) parseReply(p *paho.Publish) reply {
	var r reply
	if status := p.Properties.User.Get(protocol.StatusProperty); status != "" && status != protocol.StatusOK {
		r.err = &StatusError{Status: status, Message: p.Properties.User.Get("__stMsg")}
		return r
	}
	response, err := protocol.ParseReply(p.Payload)
	if err != nil {
		r.err = fmt.Errorf("%w: %w", ErrUnexpectedReply, err)
		return r
	}
	r.Response = response
	r.version = l.observe(p)
	return r
}

// parseNotification reads a change of a watched key (protocol, section 6).
func (l *link) parseNotification(p *paho.Publish) (notification, bool) {
	_, key, ok := protocol.ParseNotifyTopic(p.Topic)
	if !ok {
		return notification{}, false
	}
	event, err := protocol.ParseEvent(p.Payload)
	if err != nil {
		l.cfg.logger.Warn("unreadable notification", "key", string(key), "error", err)
		return notification{}, false
	}
	return notification{
		key:     string(key),
		deleted: event.Kind == statestore.KeyDeleted,
		value:   event.Value,
		version: l.observe(p),
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
		l.cfg.logger.Warn("the server's clock and this machine's differ", "version", version.String(), "error", err)
	}
	return version
}
