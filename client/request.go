package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client/internal/rpc"
	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
	"github.com/holdfast-mqtt/holdfast/client/internal/valid"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// request is a command ready to be sent, as often as need be.
type request struct {
	op      string // for errors
	key     string // for errors
	payload []byte
	token   *hlc.Timestamp
	write   bool // repeating it can do harm
	retry   bool // … but RetryWrites was given
	invalid error

	operations []transact.Operation // of a transaction
}

func newRequest(op, key string, args ...[]byte) *request {
	return &request{op: op, key: key, payload: protocol.AppendCommand(nil, args...), invalid: valid.Command(args)}
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
	if r.invalid != nil {
		return reply{}, r.fail(fmt.Errorf("%w: %w", ErrInvalidOption, r.invalid), false)
	}
	ctx, cancel := c.conn.Bound(ctx)
	defer cancel()
	sent := false      // a write has been sent and not been answered
	corrected := false // it has been sent again because the clock was corrected
	for {
		l, err := c.conn.Live(ctx)
		if err != nil {
			return reply{}, r.fail(err, sent)
		}
		open, err := l.start(ctx, r, nil)
		if err != nil {
			if errors.Is(err, rpc.ErrUnsent) && ctx.Err() == nil && c.awaitEnd(ctx, l) {
				continue
			}
			return reply{}, r.fail(err, sent)
		}
		answer, err := l.Result(ctx, open)
		switch {
		case err == nil && !corrected && answer.timed:
			corrected = true // the server has carried nothing out, and has said what the time is
			continue
		case err == nil:
			return answer, r.judge(&answer)
		case isRefusal(err):
			return reply{}, r.fail(err, sent)
		}
		sent = sent || r.write
		if ctx.Err() != nil || c.conn.Context().Err() != nil || r.write && !r.retry {
			return reply{}, r.fail(err, sent)
		}
	}
}

// isRefusal reports whether an error is an answer of the server, and not a lost answer.
func isRefusal(err error) bool {
	var rejected *RejectedError
	var status *StatusError
	return errors.As(err, &rejected) || errors.As(err, &status) || errors.Is(err, ErrUnexpectedReply)
}

// awaitEnd waits until a link on which nothing could be sent is gone.
func (c *Client) awaitEnd(ctx context.Context, l *link) bool {
	select {
	case <-l.Dead():
		return true
	case <-ctx.Done():
		return false
	}
}

// judge turns an -ERR answer into an error.
func (r *request) judge(a *reply) error {
	if a.Kind == protocol.Error && r.operations != nil {
		return r.wrap(r.operationError(string(a.Text)))
	}
	if a.Kind == protocol.Error {
		return r.wrap(toStoreError(&a.Response))
	}
	return nil
}

func (r *request) wrap(err error) error { return &Error{Op: r.op, Key: r.key, Err: err} }

// fail wraps an error, with ErrUnknownOutcome if a write may have taken effect.
func (r *request) fail(err error, sent bool) error {
	if sent && !isRefusal(err) {
		err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return r.wrap(err)
}

func (r *request) unexpected(a *reply) error {
	return r.wrap(fmt.Errorf("%w: %v", ErrUnexpectedReply, a.Kind))
}
