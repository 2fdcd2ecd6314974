// Package commit has what messages of one key lead to, as one transaction: what is asked for, how
// it grows message by message, how it is sent, and what a refusal means. It knows no handler.
//
// A request may also do what STORE or DONE does, for the state-based path (package stores).
package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Request asks for what messages of one key lead to, and as part of the same transaction for
// what those of other keys lead to: all of it is done, or nothing.
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
	// Open has the messages, of which there may be several, remembered as STORE does: their outputs
	// are published later. Digest of each is what was captured then, and there are no Outputs, Cancels
	// and Settle.
	Open bool
	// Done are messages of Key whose outputs are published, as DONE says it. Such a request has
	// nothing else besides Key and Also: no condition, and no write.
	Done []Done
	// Settle are messages that the transaction acknowledges, as far as it can. The processor
	// calls Ack of each of them when the transaction is done.
	Settle []client.Delivery
	// Also are requests for other keys, each for another one, which have no Also. Only a
	// connection that says so gets some (TogetherConn).
	Also []Request
}

// Message is a message that a transaction remembers.
type Message struct {
	ID     string
	Digest []byte // what Load is to give back to a duplicate
}

// Done is a message whose outputs are published.
type Done struct {
	ID      string
	Version hlc.Timestamp // that the message has produced
	Digest  []byte        // what Load is to give back to a duplicate, in the place of what was captured
}

// Result is the outcome of a transaction.
type Result struct {
	Outcome txn.Outcome
	Message int           // of AlreadyDone: which of Request.Messages is remembered
	Version hlc.Timestamp // of Committed: that of the state, if it was written; of ConditionFailed: the key's, zero: there is no such key
	State   []byte        // of ConditionFailed: the key's; nil beside a version: it is too large
	Keep    time.Duration // of Committed: for how long the messages are remembered, if that is not what was asked for
	Also    []Result      // of Committed: those of Request.Also
	// Because is, of a request with Also that was not carried out, of which of them Result or the
	// error is, from 1, those of Also behind it; 0: of the whole, or that is not known.
	Because int
}

// Change is a request that grows.
type Change struct {
	Request
	Size    int64         // of the outputs, about, in bytes
	Decoded decoded.Value // what State encodes; none: it is to be decoded
	first   [1]Message    // for Messages, which are often one
}

// Next is what one more message adds.
type Next struct {
	Message Message
	State   []byte
	Decoded decoded.Value // of State
	Delete  bool
	Expiry  time.Duration
	Outputs []client.Message
}

// Acknowledge adds messages that the transaction acknowledges, as far as it can. They are not
// copied if they are the first, and must not be changed.
func (c *Change) Acknowledge(d []client.Delivery) {
	if c.Settle == nil {
		c.Settle = slices.Clip(d)
		return
	}
	c.Settle = append(c.Settle, d...)
}

// Extend adds a message, or nothing and says that the whole would be larger than limit, in bytes;
// 0: none.
func (c *Change) Extend(n *Next, limit uint32) error {
	size := c.Size
	for i := range n.Outputs {
		size += n.Outputs[i].SizeBytes()
	}
	if all := size + int64(len(n.State)); limit > 0 && all > int64(limit) {
		return tooLarge(all, limit)
	}
	c.Size = size
	if c.Messages == nil {
		c.Messages = c.first[:0]
	}
	c.Messages = append(c.Messages, n.Message)
	switch {
	case timed.Any(n.Outputs):
		c.Outputs, c.Cancels = timed.Add(c.Outputs, c.Cancels, n.Outputs)
	case c.Outputs == nil:
		c.Outputs = slices.Clip(n.Outputs)
	default:
		c.Outputs = append(c.Outputs, n.Outputs...)
	}
	c.becomes(n)
	return nil
}

// Remember is Extend with a message that is stored: its outputs are published later.
func (c *Change) Remember(n *Next, limit uint32) error {
	size := c.Size + int64(len(n.Message.Digest))
	if all := size + int64(len(n.State)); limit > 0 && all > int64(limit) {
		return tooLarge(all, limit)
	}
	c.Size = size
	c.Messages = append(c.Messages, n.Message)
	c.becomes(n)
	return nil
}

// becomes notes the state that one more message has made.
func (c *Change) becomes(n *Next) {
	c.State, c.Decoded, c.Delete, c.Expiry = append([]byte{}, n.State...), n.Decoded, n.Delete, n.Expiry
	if n.Delete {
		c.State, c.Decoded = nil, decoded.Value{}
	}
}

func tooLarge(bytes int64, limit uint32) error {
	return fmt.Errorf("%w: %d bytes, the limit is %d bytes", client.ErrTooLarge, bytes, limit)
}

// Operations is how many operations the transaction has of the kind of which it has the most, which
// is what a server bounds.
func (c *Change) Operations() int {
	if len(c.Done) > 0 {
		return len(c.Done)
	}
	return max(1, len(c.Messages), len(c.Outputs), len(c.Cancels), len(c.Settle))
}

// Send carries a request out, over the connection of a session whose messages it settles.
func Send(ctx context.Context, c *client.Client, r *Request) (Result, error) {
	rs := append(make([]*Request, 0, 1+len(r.Also)), r)
	settles := len(r.Settle)
	for i := range r.Also {
		rs = append(rs, &r.Also[i])
		settles += len(r.Also[i].Settle)
	}
	result, err := send(ctx, c, rs, true)
	if settles > 0 && withoutSettling(err) {
		return send(ctx, c, rs, false)
	}
	return result, err
}

// withoutSettling tells whether a transaction was refused because of the messages that it was to
// acknowledge: the connection was lost meanwhile, and they come again.
func withoutSettling(err error) bool {
	var refused *txn.OperationError
	return errors.Is(err, client.ErrStaleDelivery) || errors.As(err, &refused) && refused.Operation == "SETTLE" && refused.Quota == ""
}

func send(ctx context.Context, c *client.Client, rs []*Request, settle bool) (Result, error) {
	t := c.Txn()
	var m txn.Message
	for _, r := range rs {
		for i := range r.Done {
			t.Done(r.Key, r.Done[i].ID, r.Done[i].Version, r.Done[i].Digest)
		}
		if len(r.Done) > 0 {
			continue
		}
		key := txn.Key(r.Key)
		t.If(key.HasVersion(r.Version))
		for _, m := range r.Messages {
			if r.Open {
				t.OnceOpen(r.Key, m.ID, r.Keep, m.Digest)
			} else {
				t.OnceWith(r.Key, m.ID, r.Keep, m.Digest)
			}
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
			setMessage(&m, &r.Outputs[i])
			t.Publish(m)
		}
		t.Cancel(r.Cancels...)
		if settle {
			for i := range r.Settle {
				t.Settle(&r.Settle[i])
			}
		}
	}
	done, err := t.Commit(ctx)
	if err != nil {
		var refused *txn.OperationError
		if errors.As(err, &refused) {
			return Result{Because: ownerOf(rs, refused.Number)}, err
		}
		return Result{}, err
	}
	switch done.Outcome {
	case txn.AlreadyDone:
		because, message := onceOf(rs, done.Once)
		return Result{Outcome: done.Outcome, Because: because, Message: message}, nil
	case txn.ConditionFailed:
		return Result{Outcome: done.Outcome, Because: writerOf(rs, done.Failed.Index), State: done.Failed.Value, Version: done.Failed.Version}, nil
	}
	var result Result
	if len(rs) > 1 {
		result.Also = make([]Result, 0, len(rs)-1)
	}
	written := 0
	for i, r := range rs {
		one := Result{Outcome: done.Outcome, Keep: done.Keep}
		if len(r.Done) == 0 {
			one.Version = done.Versions[written]
			written++
		}
		if i == 0 {
			one.Also = result.Also
			result = one
		} else {
			result.Also = append(result.Also, one)
		}
	}
	return result, nil
}

// writerOf finds the request, from 1, that has condition number n of the transaction, from 0: each
// that writes has one.
func writerOf(rs []*Request, n int) int {
	for i, r := range rs {
		if n -= writes(r); n < 0 {
			return 1 + i
		}
	}
	return 0
}

// writes is how many keys a request writes, each of them under a condition.
func writes(r *Request) int {
	if len(r.Done) > 0 {
		return 0
	}
	return 1
}

// onceOf finds the request, from 1, and its message, from 0, that is Once number n of the
// transaction, from 0.
func onceOf(rs []*Request, n int) (request, message int) {
	for i, r := range rs {
		if n < len(r.Messages) {
			return 1 + i, n
		}
		n -= len(r.Messages)
	}
	return 0, 0
}

// ownerOf finds the request that operation number n of their transaction is of, both from 1: all
// conditions come first, then each Once, the writes, the messages, those that are done, the timers
// that are cancelled, and the messages that are settled. It is 0 if there is none.
func ownerOf(rs []*Request, n int) int {
	if n < 1 {
		return 0
	}
	for _, operations := range []func(*Request) int{
		writes,
		func(r *Request) int { return len(r.Messages) },
		writes,
		func(r *Request) int { return len(r.Outputs) },
		func(r *Request) int { return len(r.Done) },
		func(r *Request) int { return len(r.Cancels) },
		func(r *Request) int { return len(r.Settle) },
	} {
		for i, r := range rs {
			if n -= operations(r); n <= 0 {
				return 1 + i
			}
		}
	}
	return 0
}

// setMessage makes m the message of. Both share what they refer to, but for the list of user
// properties, which m has of its own.
func setMessage(m *txn.Message, of *client.Message) {
	properties := m.UserProperties[:0]
	for _, u := range of.UserProperties {
		properties = append(properties, txn.UserProperty(u))
	}
	*m = txn.Message{Topic: of.Topic, Payload: of.Payload, ContentType: of.ContentType, ResponseTopic: of.ResponseTopic, CorrelationData: of.CorrelationData,
		UTF8: of.UTF8, Retain: of.Retain, Expiry: of.Expiry, UserProperties: properties}
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
	case o.Quota == quotaDeliveries, o.Quota == quotaDelay:
		return true
	case o.Quota == QuotaOperations: // unless the server has no room for a message without outputs
		return o.Operation == "PUBLISH" || o.Operation == "CANCEL"
	case o.Operation != "PUBLISH":
		return false
	}
	return !errors.Is(err, client.ErrQueueFull) && !errors.Is(err, client.ErrQuotaExceeded) && !errors.Is(err, client.ErrUnreadable)
}
