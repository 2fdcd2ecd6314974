// Package txn builds transactions: conditions on keys, writes of keys and messages, of which
// a server does all or nothing, in one step. They are an extension of Holdfast (protocol,
// section 12).
//
//	result, err := c.Txn().
//		If(txn.Key("account/1").HasVersion(v1), txn.Key("account/2").HasVersion(v2)).
//		Then(txn.Key("account/1").Set(less), txn.Key("account/2").Set(more)).
//		Publish(txn.Message{Topic: "transfers/done", Payload: []byte("transfer-4711")}).
//		Once("transfers", "transfer-4711", 0).
//		Commit(ctx)
//
// Client.Txn of package client begins one.
package txn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Txn is a transaction being built. One goroutine builds it; it is committed once.
//
// A transaction may have at most one condition and one write on each key, and as many
// operations of each kind as the server allows (--max-txn-operations, 128).
type Txn struct {
	commit  func(context.Context, *transact.Request) (*transact.Answer, error)
	*parts       // from allParts; Commit gives them back
	context bool // the last of once has a context, or a digest
	settles []transact.Settling
	retry   bool
	err     error // the first mistake, which Commit returns
}

// parts are the operations of a transaction, in the order in which they are sent.
type parts struct {
	conditions, once, writes, messages, dones, cancels, settlings transact.Operations

	payload []byte // all of them, as they were sent
}

// allParts are there to be used again: a transaction of many operations makes no garbage of them.
var allParts = sync.Pool{New: func() any { return new(parts) }}

// maxKept is how large parts are that are kept, in bytes.
const maxKept = 256 << 10

func (p *parts) release() {
	size := cap(p.payload)
	for _, o := range p.all() {
		size += o.Size()
		o.Reset()
	}
	if size <= maxKept {
		allParts.Put(p)
	}
}

func (p *parts) all() []*transact.Operations {
	return []*transact.Operations{&p.conditions, &p.once, &p.writes, &p.messages, &p.dones, &p.cancels, &p.settlings}
}

// New begins a transaction that commit sends: for package client, which has such a function.
func New(commit func(context.Context, *transact.Request) (*transact.Answer, error)) *Txn {
	return &Txn{commit: commit, parts: allParts.Get().(*parts)}
}

// Key names a key.
type Key string

// Condition is a condition on a key.
type Condition struct {
	key, check string
	operand    []byte // nil: check has none, or it is version
	version    hlc.Timestamp
}

// Write is a write of a key.
type Write struct {
	name, key  string
	value      []byte // of a SET
	expiry     time.Duration
	token      hlc.Timestamp
	has, fence bool // an expiry, a token
	err        error
}

// Exists demands that there is such a key.
func (k Key) Exists() Condition { return Condition{key: string(k), check: "EXISTS"} }

// Absent demands that there is no such key.
func (k Key) Absent() Condition { return Condition{key: string(k), check: "ABSENT"} }

// HasValue demands that the key exists with this value.
func (k Key) HasValue(value []byte) Condition {
	return Condition{key: string(k), check: "VALUE", operand: append([]byte{}, value...)}
}

// HasVersion demands that the key has exactly this version; the zero version is that there
// is no such key.
func (k Key) HasVersion(version hlc.Timestamp) Condition {
	if version.IsZero() {
		return k.Absent()
	}
	return Condition{key: string(k), check: "VER", version: version}
}

// MadeBy demands that the key has the version that a message has made of it: the message of
// a STORE, or of the Once of a transaction, for this key. So the messages of one key can be
// processed one behind the other, each without awaiting the version that the one before
// makes.
func (k Key) MadeBy(messageID string) Condition {
	return Condition{key: string(k), check: "VER", operand: append([]byte{'^'}, messageID...)}
}

// appendTo adds the condition as an operation.
func (c *Condition) appendTo(o *transact.Operations) {
	o.Begin("IF", c.key)
	o.Word(c.check)
	switch {
	case c.operand != nil:
		o.Bytes(c.operand)
	case !c.version.IsZero():
		o.Version(c.version)
	}
}

// Set writes the key. It removes the key's expiry. The value must not be changed before [Txn.Then].
func (k Key) Set(value []byte) Write { return Write{name: "SET", key: string(k), value: value} }

// Del deletes the key; it need not exist.
func (k Key) Del() Write { return Write{name: "DEL", key: string(k)} }

// Expire has the key that Set writes disappear after d, rounded up to whole milliseconds.
// From 1 ms on; of a Del it is an error.
func (w Write) Expire(d time.Duration) Write {
	switch {
	case w.name != "SET":
		w.err = errors.New("Expire of a Del: a key that is deleted does not expire")
	case d <= 0:
		w.err = fmt.Errorf("Expire(%v): it must be positive; a Set without it never expires", d)
	}
	w.expiry, w.has = d, true
	return w
}

// Fence writes with a fencing token (protocol, section 5).
func (w Write) Fence(token hlc.Timestamp) Write {
	w.token, w.fence = token, true
	return w
}

// appendTo adds the write as an operation.
func (w *Write) appendTo(o *transact.Operations) {
	o.Begin(w.name, w.key)
	if w.name == "SET" {
		o.Bytes(w.value)
	}
	if w.has {
		o.Word("PX")
		o.Number(inMilliseconds(w.expiry))
	}
	if w.fence {
		o.Word("FT")
		o.Version(w.token)
	}
}

// inMilliseconds rounds up.
func inMilliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

// If adds conditions: all of them must hold before anything is done.
func (t *Txn) If(conditions ...Condition) *Txn {
	for i := range conditions {
		conditions[i].appendTo(&t.conditions)
	}
	return t
}

// Then adds writes.
func (t *Txn) Then(writes ...Write) *Txn {
	for i := range writes {
		t.mistake(writes[i].err)
		writes[i].appendTo(&t.writes)
	}
	return t
}

// Once has the transaction done once: the server remembers it under the key and the message
// ID for keep, rounded up to whole milliseconds, and answers a repetition with AlreadyDone.
// 0: for as long as the server says (--remember). LOAD calls such a message confirmed. A
// transaction may name several messages: if one of them is remembered, nothing is done, and
// [Result.Once] says which.
func (t *Txn) Once(key, messageID string, keep time.Duration) *Txn {
	return t.OnceWith(key, messageID, keep, nil)
}

// OnceWith is [Txn.Once], and left is what Load gives back for the message, as after a Done with
// client.Leave; nil: nothing.
func (t *Txn) OnceWith(key, messageID string, keep time.Duration, left []byte) *Txn {
	t.once.Begin("ONCE", key)
	t.once.Word(messageID)
	t.context = left != nil
	switch {
	case messageID == "" || len(messageID) > protocol.MaxMessageID:
		t.mistake(fmt.Errorf("Once of a message ID of %d bytes: it has from 1 to %d", len(messageID), protocol.MaxMessageID))
	case keep < 0:
		t.mistake(fmt.Errorf("Once for %v: it must not be negative", keep))
	case keep > 0:
		t.once.Word("KEEP")
		t.once.Number(inMilliseconds(keep))
	}
	if left != nil {
		t.once.Word("CTX")
		t.once.Bytes(left)
	}
	return t
}

// OnceOpen is [Txn.OnceWith] for a message whose outputs are still to be published, as after
// Client.Store: Load says that it is stored, with captured and with the value that the key has
// before the transaction, until Client.Done or [Txn.Done].
func (t *Txn) OnceOpen(key, messageID string, keep time.Duration, captured []byte) *Txn {
	t.OnceWith(key, messageID, keep, captured)
	t.once.Word("OPEN")
	t.context = true
	return t
}

// Done says that all outputs of a message are published, as Client.Done does: left, unless it is nil,
// takes the place of what was captured, and version is the one that the message has produced; the
// zero version: any. The message need not be remembered; [Result.Done] says whether it was.
func (t *Txn) Done(key, messageID string, version hlc.Timestamp, left []byte) *Txn {
	if messageID == "" || len(messageID) > protocol.MaxMessageID {
		t.mistake(fmt.Errorf("Done of a message ID of %d bytes: it has from 1 to %d", len(messageID), protocol.MaxMessageID))
	}
	t.dones.Begin("DONE", key)
	t.dones.Word(messageID)
	if !version.IsZero() {
		t.dones.Word("VER")
		t.dones.Version(version)
	}
	if left != nil {
		t.dones.Word("CTX")
		t.dones.Bytes(left)
	}
	return t
}

// Digest has the server remember a digest of the input beside the message of the last Once, of 1 to 64
// bytes. A later Once of the same key and message ID with another digest is another message
// under an ID that is taken: it is refused with client.ErrOtherDigest, and not answered with
// AlreadyDone. LOAD returns the digest as the context of the message.
func (t *Txn) Digest(digest []byte) *Txn {
	switch {
	case t.once.Len() == 0:
		t.mistake(errors.New("Digest without a Once before it: call Once first"))
		return t
	case t.context:
		t.mistake(errors.New("Digest of a Once that has a digest, or bytes for Load to give back, or is open: give one of them"))
	case len(digest) == 0 || len(digest) > protocol.MaxDigest:
		t.mistake(fmt.Errorf("a Digest of %d bytes: it must have 1 to %d", len(digest), protocol.MaxDigest))
	}
	t.once.Word("DIGEST")
	t.once.Bytes(digest)
	t.context = true
	return t
}

// Settled is a message that a transaction can acknowledge: a client.Delivery.
type Settled interface{ Settling() transact.Settling }

// Settle has the transaction acknowledge messages: when it is done they do not come again, and
// their Ack does nothing. If it is not done, or was done already, they must be acknowledged by
// Ack. An Ack while the transaction is under way waits for its outcome.
//
// The messages came at QoS 1 from a client.Session, and the transaction is one of its
// Session.Client. If the connection over which they came is lost, Commit fails: with
// client.ErrStaleDelivery if nothing was sent, otherwise with client.ErrUnknownOutcome. The
// server delivers those again that were not settled; [Txn.Once] tells whether that is so.
func (t *Txn) Settle(messages ...Settled) *Txn {
	for _, m := range messages {
		s := m.Settling()
		if s.Acks == nil {
			t.mistake(errors.New("Settle of a message that did not come at QoS 1 from a session: acknowledge it by Ack"))
			return t
		}
		t.settles = append(t.settles, s)
	}
	return t
}

// Retry has Commit send the transaction again when the connection breaks before the answer.
// With Once, or with conditions that its own writes end, that is safe.
func (t *Txn) Retry() *Txn {
	t.retry = true
	return t
}

func (t *Txn) mistake(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Outcome says what became of a transaction.
type Outcome uint8

const (
	// Committed: all of it is done, and on disk.
	Committed Outcome = iota + 1
	// AlreadyDone: it had been done before under its Once, perhaps by an earlier try whose
	// answer was lost. Nothing was changed.
	AlreadyDone
	// ConditionFailed: a condition does not hold. Nothing was changed.
	ConditionFailed
)

var outcomeNames = [...]string{Committed: "committed", AlreadyDone: "already done", ConditionFailed: "condition failed"}

// String returns "committed", "already done" or "condition failed".
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) && o != 0 {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome %d", o)
}

// Result is the outcome of [Txn.Commit].
type Result struct {
	Outcome Outcome
	// Versions are what a committed transaction has made, one for each write in the order of
	// [Txn.Then]; of a deletion its own version, zero if there was no such key.
	Versions []hlc.Timestamp
	// Cancelled says, of a committed transaction, for each timer of [Txn.Cancel] in their order
	// whether there was one. If not, its message was delivered, or it was never set.
	Cancelled []bool
	// Done says, of a committed transaction, for each message of [Txn.Done] in their order whether it
	// is remembered, with the version that was given.
	Done []bool
	// Version is, of one that was already done, the version that it made of its Once's key.
	Version hlc.Timestamp
	// Once is, of one that was already done, which message is remembered, from 0, in the order of
	// [Txn.Once].
	Once int
	// Keep is, of a committed transaction with a Once, for how long the server remembers its
	// message, if that is not what Once asked for: the server has a maximum. 0: as asked.
	Keep time.Duration
	// Failed is the first condition that does not hold.
	Failed Failed
}

// Failed is a condition that does not hold, and what its key is instead.
type Failed struct {
	Index   int // of the condition, from 0, in the order of [Txn.If]
	Key     string
	Found   bool          // there is such a key
	Value   []byte        // nil: no such key, or a value too large for the client's Maximum Packet Size
	Version hlc.Timestamp // zero: no such key
}

// Commit sends the transaction. A condition that does not hold is no error: see [Result]. If
// the server refuses an operation, the error is an [*OperationError], and nothing was
// changed.
//
// The errors are those of package client. With ErrUnknownOutcome all of it may have been
// carried out, or nothing: see [Txn.Retry].
func (t *Txn) Commit(ctx context.Context) (Result, error) {
	defer func() {
		t.parts.release()
		t.parts = new(parts)
	}()
	for _, s := range t.settles {
		t.settlings.BeginNumber("SETTLE", int64(s.PacketID))
	}
	r := &transact.Request{Retry: t.retry, Err: t.err, Settles: t.settles, Operations: t.all(), Room: t.payload}
	r.Valid = func(a *protocol.Response) bool { _, ok := t.result(a); return ok }
	answer, err := t.commit(ctx, r)
	t.payload = r.Room
	if err != nil {
		return Result{}, err
	}
	result, _ := t.result(&answer.Response)
	result.Keep = answer.Keep
	return result, nil
}

func (t *Txn) result(a *protocol.Response) (Result, bool) {
	cancels := t.cancels.Len()
	r, ok := transact.Parse(a, t.writes.Len(), cancels+t.dones.Len())
	switch {
	case ok && r.Status == statestore.Committed:
		if r.Ended == nil {
			return Result{Outcome: Committed, Versions: r.Versions}, true
		}
		return Result{Outcome: Committed, Versions: r.Versions, Cancelled: r.Ended[:cancels:cancels], Done: r.Ended[cancels:]}, true
	case ok && r.Status == statestore.AlreadyDone:
		once := 0
		if r.Op > 0 {
			once = r.Op - 1 - t.conditions.Len()
		}
		return Result{Outcome: AlreadyDone, Version: r.Version, Once: once}, 0 <= once && once < t.once.Len()
	case ok && r.Op >= 1 && r.Op <= t.conditions.Len():
		return Result{Outcome: ConditionFailed, Failed: Failed{
			Index: r.Op - 1, Key: t.conditions.About(r.Op - 1), Found: !r.Version.IsZero(), Value: r.Value, Version: r.Version,
		}}, true
	}
	return Result{}, false
}

// OperationError says which operation of a transaction the server has refused.
type OperationError struct {
	Operation string // what it is, for example "SET"
	Key       string // or the topic of a PUBLISH
	// Number is that of the operation, from 1. Conditions come first, then each Once, the writes,
	// the messages, those that are done, the timers that are cancelled and the messages that are
	// settled, each in the order in which they were added.
	Number int
	Quota  string // of a client.ErrQuotaExceeded: the setting of the server that bounds it, for example "max-txn-operations"
	Err    error  // for example client.ErrNotAuthorized
}

func (e *OperationError) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Operation, protocol.Quote(e.Key), e.Err)
	if e.Quota != "" {
		text += " (the server's --" + e.Quota + ")"
	}
	return text
}

// Unwrap returns Err.
func (e *OperationError) Unwrap() error { return e.Err }
