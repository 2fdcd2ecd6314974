package client

import (
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/client/internal/invoke"
	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// What the store answers with -ERR, one value per text of the protocol
// (section 6). Branch on them with errors.Is.
var (
	ErrTimestampAhead     error = storeError(statestore.TimestampAhead.Text(false))
	ErrTokenRequired      error = storeError(statestore.TokenRequired.Text(false))
	ErrTokenAhead         error = storeError(statestore.TokenAhead.Text(false))
	ErrTokenTooLow        error = storeError(statestore.TokenTooLow.Text(false))
	ErrOtherDigest        error = storeError(statestore.OtherDigest.Text(false)) // of the message of a transaction's Once: the ID is taken by another message
	ErrQueueFull          error = storeError(statestore.QueueFull.Text(false))   // of a subscriber that would get a message of a transaction
	ErrQuotaExceeded      error = storeError(statestore.QuotaExceeded.Text(false))
	ErrSyntax             error = storeError(statestore.Syntax.Text(false))
	ErrNotAuthorized      error = storeError(statestore.NotAuthorized.Text(false))
	ErrUnknownCommand     error = storeError(statestore.UnknownCommand.Text(false))
	ErrUnknownOperation   error = storeError(statestore.UnknownOperation.Text(false)) // of a transaction: an older server lacks it
	ErrWrongArgumentCount error = storeError(statestore.WrongArgumentCount.Text(false))
	ErrMissingTimestamp   error = storeError(statestore.MissingTimestamp.Text(false))
	ErrMalformedTimestamp error = storeError(statestore.MalformedTimestamp.Text(false))
	ErrEmptyKey           error = storeError(statestore.EmptyKey.Text(false))
	ErrMalformedToken     error = storeError(statestore.MalformedToken.Text(false))
	ErrUnreadable         error = storeError(statestore.Unreadable.Text(false))   // the server's log says why
	ErrPageTooLarge       error = storeError(statestore.PageTooLarge.Text(false)) // of a Scan: see [WithMaxPacketSize]
)

// What can happen on this side of the connection.
var (
	// ErrClosed: the client or session was closed.
	ErrClosed = conn.ErrClosed
	// ErrNotConnected: there was no connection for as long as the request
	// could wait; nothing was sent. It wraps the last attempt's failure.
	ErrNotConnected = conn.ErrNotConnected
	// ErrNotApplied: the store did not carry a Set or Del out, because a condition
	// given as an option ([IfAbsent], [IfVersion], …) is not met. Nothing was changed.
	ErrNotApplied = errors.New("not applied: a condition is not met")
	// ErrUnknownOutcome: a write was sent and no answer came, so it may or may
	// not have been carried out. It wraps the reason: the connection broke,
	// the context ended, the client was closed. See [RetryWrites].
	ErrUnknownOutcome = errors.New("the outcome of the write is unknown")
	// ErrUnexpectedReply: the answer is not one that the protocol has for this
	// command.
	ErrUnexpectedReply = errors.New("unexpected reply")
	// ErrTooLarge: the request or message is larger than the Maximum Packet Size
	// that the server announced. It was not sent, or the server has refused it.
	ErrTooLarge = conn.ErrTooLarge
	// ErrStaleDelivery: a transaction was to acknowledge a message that did not come over the
	// connection by which it would go: the connection was lost meanwhile, and the message comes
	// again. Nothing was sent.
	ErrStaleDelivery = transact.ErrStale
	// ErrInvalidOption: an argument or option is out of range, or two contradict
	// each other; nothing was sent. The text says what would be right.
	ErrInvalidOption = errors.New("invalid option")
)

// storeError is the text after "-ERR ".
type storeError string

func (e storeError) Error() string { return string(e) }

// toStoreError gives the error for an -ERR answer, whichever wire form it came
// in. Equal texts are equal errors, so the sentinels above need no table, and
// a text that this package doesn't know is passed on.
func toStoreError(r *protocol.Response) error {
	if fault, ok := r.Fault(); ok {
		return storeError(fault.Text(false))
	}
	return storeError(r.Text)
}

// Error says which operation failed, and on which key. Every error of a
// [Client]'s operations is one; what happened is in Err.
type Error struct {
	Op  string // "get", "set", "del", "load", "store", "done", "txn", "watch", "scan"
	Key string // the key, the pattern of a scan, or the first key of a transaction
	Err error
	// Quota is the setting of the server that an [ErrQuotaExceeded] is about, for example "max-keys"; empty if
	// the server does not say it, and for a transaction, whose txn.OperationError has it.
	Quota string
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Op, protocol.Quote(e.Key), e.Err)
	if e.Quota != "" {
		text += " (the server's --" + e.Quota + ")"
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// ConnectError is a server's refusal of the connection (CONNACK with a reason
// code of 0x80 or above). With [ReasonNotAuthorized] it is also [ErrNotAuthorized].
type ConnectError struct {
	Code   ReasonCode
	Reason string // the server's Reason String, often empty
}

func (e *ConnectError) Error() string {
	return withReason("the server refused the connection", e.Code, e.Reason)
}

// Is relates the reason code to the sentinel that means the same.
func (e *ConnectError) Is(target error) bool { return e.Code.is(target) }

// RejectedError is a request, message or subscription that the server refused
// (PUBACK, SUBACK or UNSUBACK with a reason code of 0x80 or above); it had no effect.
// With [ReasonNotAuthorized] it is also [ErrNotAuthorized], with [ReasonQuotaExceeded]
// [ErrQuotaExceeded], and with [ReasonPacketTooLarge] [ErrTooLarge].
type RejectedError struct {
	Code   ReasonCode
	Reason string // the server's Reason String, often empty
}

func (e *RejectedError) Error() string {
	return withReason("the server rejected the request", e.Code, e.Reason)
}

// Is relates the reason code to the sentinel that means the same.
func (e *RejectedError) Is(target error) bool { return e.Code.is(target) }

// is tells whether a sentinel means the same as the code.
func (c ReasonCode) is(target error) bool {
	switch c {
	case ReasonNotAuthorized:
		return target == ErrNotAuthorized
	case ReasonQuotaExceeded:
		return target == ErrQuotaExceeded
	case ReasonPacketTooLarge:
		return target == ErrTooLarge
	}
	return false
}

// DisconnectError is the server's DISCONNECT, for example with
// [ReasonSessionTakenOver]. The client connects again; a request that was under way is
// repeated, or fails with an error that wraps this one.
type DisconnectError struct {
	Code   ReasonCode
	Reason string // the server's Reason String, often empty
}

func (e *DisconnectError) Error() string {
	return withReason("the server disconnected", e.Code, e.Reason)
}

// StatusError is an answer whose __stat property is not 200. Holdfast never
// sends one; other stores may.
type StatusError struct {
	Status  string
	Message string
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return "the server answered with status " + e.Status
	}
	return "the server answered with status " + e.Status + ": " + e.Message
}

// connErrors makes the errors of this package of what the server says.
var connErrors = conn.Errors{
	Refused:      func(code byte, reason string) error { return &ConnectError{ReasonCode(code), reason} },
	Rejected:     func(code byte, reason string) error { return &RejectedError{ReasonCode(code), reason} },
	Disconnected: func(code byte, reason string) error { return &DisconnectError{ReasonCode(code), reason} },
	Another: func(err error) bool {
		var refused *ConnectError
		return !errors.As(err, &refused) || mqtt.ReasonCode(refused.Code).AboutServer()
	},
}

// requestErrors makes those of what the store answers.
var requestErrors = invoke.Errors{
	Refused:    toStoreError,
	Status:     func(status, message string) error { return &StatusError{status, message} },
	Unexpected: ErrUnexpectedReply,
}
