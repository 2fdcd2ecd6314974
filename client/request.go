package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client/internal/invoke"
	"github.com/holdfast-mqtt/holdfast/client/internal/rpc"
	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
	"github.com/holdfast-mqtt/holdfast/client/internal/valid"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// request is a command ready to be sent, as often as need be.
type request struct {
	invoke.Request
	op      string // for errors
	key     string // for errors
	write   bool   // repeating it can do harm
	retry   bool   // … but RetryWrites was given
	invalid error

	txn *transact.Request // nil: it is no transaction
}

// reply is the answer to a request.
type reply = invoke.Reply

func newRequest(op, key string, args ...[]byte) *request {
	return &request{op: op, key: key, Request: invoke.Request{Payload: protocol.AppendCommand(nil, args...)}, invalid: valid.Command(args)}
}

// do carries a request out: it waits for a connection, sends, waits for the
// answer, and decides what to do when the connection breaks in between.
func (c *Client) do(ctx context.Context, r *request) (reply, error) {
	if r.invalid == nil && r.Token != nil && len(r.Token.Node) > invoke.MaxNodeBytes {
		r.invalid = fmt.Errorf("a fencing token's node of %d bytes, the limit is %d bytes", len(r.Token.Node), invoke.MaxNodeBytes)
	}
	if r.invalid != nil {
		return reply{}, r.fail(fmt.Errorf("%w: %w", ErrInvalidOption, r.invalid), false)
	}
	ctx, cancel := c.links.Bound(ctx)
	defer cancel()
	sent := false      // a write has been sent and not been answered
	corrected := false // it has been sent again because the clock was corrected
	for {
		l, err := c.links.Live(ctx)
		if err != nil {
			return reply{}, r.fail(err, sent)
		}
		answer, err := r.send(ctx, l)
		if errors.Is(err, rpc.ErrUnsent) {
			if !isRefusal(err) && ctx.Err() == nil && awaitEnd(ctx, l) {
				continue
			}
			return reply{}, r.fail(err, sent)
		}
		switch {
		case err == nil && !corrected && answer.Timed:
			corrected = true // the server has carried nothing out, and has said what the time is
			continue
		case err == nil:
			return answer, r.judge(&answer)
		case isRefusal(err), errors.Is(err, ErrTooLarge), errors.Is(err, ErrStaleDelivery), errors.Is(err, ErrInvalidOption):
			return reply{}, r.fail(err, sent)
		}
		sent = sent || r.write
		if ctx.Err() != nil || c.links.Context().Err() != nil || r.write && !r.retry {
			return reply{}, r.fail(err, sent)
		}
	}
}

// send sends a request over a link, and waits for the answer.
func (r *request) send(ctx context.Context, l *invoke.Link) (reply, error) {
	if r.txn != nil && len(r.txn.Settles) > 0 {
		return r.settle(ctx, l)
	}
	open, err := l.Do(ctx, &r.Request, nil)
	if err != nil {
		return reply{}, err
	}
	return l.Result(ctx, open)
}

// isRefusal reports whether an error is an answer of the server, and not a lost answer.
func isRefusal(err error) bool {
	var rejected *RejectedError
	var status *StatusError
	return errors.As(err, &rejected) || errors.As(err, &status) || errors.Is(err, ErrUnexpectedReply)
}

// awaitEnd waits until a link on which nothing could be sent is gone.
func awaitEnd(ctx context.Context, l *invoke.Link) bool {
	select {
	case <-l.Dead():
		return true
	case <-ctx.Done():
		return false
	}
}

// judge turns an -ERR answer into an error.
func (r *request) judge(a *reply) error {
	if a.Kind == protocol.Error && r.txn != nil {
		return r.wrap(r.operationError(string(a.Text), a.Quota))
	}
	if a.Kind == protocol.Error {
		return &Error{Op: r.op, Key: r.key, Err: toStoreError(&a.Response), Quota: a.Quota}
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
