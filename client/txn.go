package client

import (
	"context"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Txn begins a transaction: conditions on any number of keys, writes of any number and
// messages, of which the server does all or nothing (package [txn]). An extension of Holdfast (protocol,
// section 12).
func (c *Client) Txn() *txn.Txn { return txn.New(c.transact) }

// transact carries a transaction out.
func (c *Client) transact(ctx context.Context, t *transact.Request) (*protocol.Response, error) {
	r := &request{op: "txn", payload: transact.Payload(t.Operations), operations: t.Operations}
	if len(t.Operations) > 0 {
		r.key = t.Operations[0].About
	}
	if t.Err != nil {
		return nil, r.wrap(fmt.Errorf("%w: %w", ErrInvalidOption, t.Err))
	}
	if len(t.Operations) == 0 {
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
	return &answer.Response, nil
}

// operationError makes an error of the text of one, which may be about an operation.
func (r *request) operationError(text string) error {
	op, rest := protocol.SplitOperation(text)
	if op < 1 || op > len(r.operations) {
		return storeError(text)
	}
	o := r.operations[op-1]
	return &txn.OperationError{Operation: o.Name, Key: o.About, Err: storeError(rest)}
}
