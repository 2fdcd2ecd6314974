package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client/internal/invoke"
	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Txn begins a transaction: conditions on any number of keys, writes of any number and
// messages, of which the server does all or nothing (package [txn]). An extension of Holdfast (protocol,
// section 12).
func (c *Client) Txn() *txn.Txn { return txn.New(c.transact) }

// transact carries a transaction out.
func (c *Client) transact(ctx context.Context, t *transact.Request) (*transact.Answer, error) {
	r := &request{op: "txn", Request: invoke.Request{Payload: t.Payload()}, txn: t}
	_, key, any := t.Operation(1)
	r.key = key
	if t.Err != nil {
		return nil, r.wrap(fmt.Errorf("%w: %w", ErrInvalidOption, t.Err))
	}
	if !any {
		return nil, r.wrap(fmt.Errorf("%w: the transaction is empty: give it a condition, a write or a message", ErrWrongArgumentCount))
	}
	r.asWrite(c.cfg, &writeArgs{retry: t.Retry})
	answer, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	if !t.Valid(&answer.Response) {
		return nil, r.unexpected(&answer)
	}
	return &transact.Answer{Response: answer.Response, Keep: answer.Keep}, nil
}

// settle is send for a transaction that acknowledges messages.
func (r *request) settle(ctx context.Context, l *invoke.Link) (reply, error) {
	switch err := transact.Begin(r.txn.Settles, l.Conn); {
	case errors.Is(err, ErrStaleDelivery):
		return reply{}, err
	case err != nil:
		return reply{}, fmt.Errorf("%w: %w", ErrInvalidOption, err)
	}
	open, err := l.Do(ctx, &r.Request, func(a reply, err error) {
		transact.End(r.txn.Settles, err == nil && transact.IsCommitted(&a.Response))
	})
	if err != nil {
		transact.End(r.txn.Settles, false)
		return reply{}, err
	}
	return l.Await(ctx, open) // the answer counts when it comes later, too
}

// operationError makes an error of the text of one, which may be about an operation.
func (r *request) operationError(text, quota string) error {
	number, rest := protocol.SplitOperation(text)
	name, key, ok := r.txn.Operation(number)
	if !ok {
		return storeError(text)
	}
	return &txn.OperationError{Operation: name, Key: key, Number: number, Quota: quota, Err: storeError(rest)}
}
