// Package commit has what messages of one key lead to, as one transaction: what is asked for, how
// it grows message by message, how it is sent, and what a refusal means. It knows no handler.
package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Request asks for what messages of one key lead to.
type Request struct {
	Key      string
	Version  hlc.Timestamp // which the key must have; zero: there must be no such key
	Messages []Message     // if one of them is remembered, nothing is done
	Keep     time.Duration // for how long the messages are remembered
	State    []byte
	Delete   bool          // the key is deleted, and State does not count
	Expiry   time.Duration // after which the key expires; 0: never
	Outputs  []client.Message
	Cancels  []string // IDs of timers that are cancelled; none of Outputs has one of them
	// Settle are messages that the transaction acknowledges, as far as it can. The processor
	// calls Ack of each of them when the transaction is done.
	Settle []client.Delivery
}

// Message is a message that a transaction remembers.
type Message struct {
	ID     string
	Digest []byte // what Load is to give back to a duplicate
}

// Result is the outcome of a transaction.
type Result struct {
	Outcome txn.Outcome
	Message int           // of AlreadyDone: which of Request.Messages is remembered
	Version hlc.Timestamp // of Committed: that of the state; of ConditionFailed: the key's, zero: there is no such key
	State   []byte        // of ConditionFailed: the key's; nil beside a version: it is too large
	Keep    time.Duration // of Committed: for how long the messages are remembered, if that is not what was asked for
}

// Change is a request that grows.
type Change struct {
	Request
	Size int64 // of the outputs, about, in bytes
}

// Next is what one more message adds.
type Next struct {
	Message Message
	State   []byte
	Delete  bool
	Expiry  time.Duration
	Outputs []client.Message
	Settle  []client.Delivery
}

// Extend adds a message, or nothing and says that the whole would be larger than limit, in bytes;
// 0: none.
func (c *Change) Extend(n *Next, limit uint32) error {
	size := c.Size
	for i := range n.Outputs {
		size += n.Outputs[i].SizeBytes()
	}
	if all := size + int64(len(n.State)); limit > 0 && all > int64(limit) {
		return fmt.Errorf("%w: %d bytes, the limit is %d bytes", client.ErrTooLarge, all, limit)
	}
	c.Size = size
	c.Messages = append(c.Messages, n.Message)
	c.Outputs, c.Cancels = timed.Add(c.Outputs, c.Cancels, n.Outputs)
	c.Settle = append(c.Settle, n.Settle...)
	c.State, c.Delete, c.Expiry = append([]byte{}, n.State...), n.Delete, n.Expiry
	if n.Delete {
		c.State = nil
	}
	return nil
}

// Operations is how many operations the transaction has.
func (c *Change) Operations() int {
	return 2 + len(c.Messages) + len(c.Outputs) + len(c.Cancels) + len(c.Settle)
}

// Send carries a request out, over the connection of a session whose messages it settles.
func Send(ctx context.Context, c *client.Client, r *Request) (Result, error) {
	result, err := send(ctx, c, r, r.Settle)
	var refused *txn.OperationError
	if len(r.Settle) > 0 && (errors.Is(err, client.ErrStaleDelivery) || errors.As(err, &refused) && refused.Operation == "SETTLE") {
		return send(ctx, c, r, nil) // the connection was lost meanwhile: they come again
	}
	return result, err
}

func send(ctx context.Context, c *client.Client, r *Request, settle []client.Delivery) (Result, error) {
	key := txn.Key(r.Key)
	t := c.Txn().If(key.HasVersion(r.Version))
	for _, m := range r.Messages {
		t.OnceWith(r.Key, m.ID, r.Keep, m.Digest)
	}
	switch {
	case r.Delete:
		t.Then(key.Del())
	case r.Expiry > 0:
		t.Then(key.Set(r.State).Expire(r.Expiry))
	default:
		t.Then(key.Set(r.State))
	}
	for i := range r.Outputs {
		t.Publish(txnMessage(&r.Outputs[i]))
	}
	t.Cancel(r.Cancels...)
	for _, d := range settle {
		t.Settle(d)
	}
	done, err := t.Commit(ctx)
	if err != nil {
		return Result{}, err
	}
	result := Result{Outcome: done.Outcome, Message: done.Once, Keep: done.Keep}
	switch done.Outcome {
	case txn.Committed:
		result.Version = done.Versions[0]
	case txn.ConditionFailed:
		result.State, result.Version = done.Failed.Value, done.Failed.Version
	}
	return result, nil
}

func txnMessage(m *client.Message) txn.Message {
	t := txn.Message{Topic: m.Topic, Payload: m.Payload, ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
		UTF8: m.UTF8, Retain: m.Retain, Expiry: m.Expiry}
	for _, u := range m.UserProperties {
		t.UserProperties = append(t.UserProperties, txn.UserProperty(u))
	}
	return t
}

// The settings of the server that bound a single transaction.
const (
	QuotaOperations = "max-txn-operations"
	quotaDeliveries = "max-txn-deliveries"
	quotaDelay      = "max-delay"
)

// RefusedFor is the setting of the server because of which a transaction was refused.
func RefusedFor(err error) string {
	var o *txn.OperationError
	if errors.As(err, &o) {
		return o.Quota
	}
	return ""
}

// RefusesOutput tells whether a transaction was refused because of what an output is, or because
// of how many there are.
func RefusesOutput(err error) bool {
	var o *txn.OperationError
	switch {
	case !errors.As(err, &o):
		return false
	case o.Quota == QuotaOperations, o.Quota == quotaDeliveries, o.Quota == quotaDelay:
		return true
	case o.Operation != "PUBLISH":
		return false
	}
	return !errors.Is(err, client.ErrQueueFull) && !errors.Is(err, client.ErrQuotaExceeded) && !errors.Is(err, client.ErrUnreadable)
}
