package client

import (
	"errors"
	"fmt"

	"holdfast/internal/protocol"
	"holdfast/internal/statestore"
)

// What the store answers with -ERR, one value per text of the protocol
// (section 6). Branch on them with errors.Is.
var (
	ErrTimestampAhead     error = storeError(statestore.TimestampAhead.Text(false))
	ErrTokenRequired      error = storeError(statestore.TokenRequired.Text(false))
	ErrTokenAhead         error = storeError(statestore.TokenAhead.Text(false))
	ErrTokenTooLow        error = storeError(statestore.TokenTooLow.Text(false))
	ErrQuotaExceeded      error = storeError(statestore.QuotaExceeded.Text(false))
	ErrSyntax             error = storeError(statestore.Syntax.Text(false))
	ErrNotAuthorized      error = storeError(statestore.NotAuthorized.Text(false))
	ErrUnknownCommand     error = storeError(statestore.UnknownCommand.Text(false))
	ErrWrongArgumentCount error = storeError(statestore.WrongArgumentCount.Text(false))
	ErrMissingTimestamp   error = storeError(statestore.MissingTimestamp.Text(false))
	ErrMalformedTimestamp error = storeError(statestore.MalformedTimestamp.Text(false))
	ErrEmptyKey           error = storeError(statestore.EmptyKey.Text(false))
	ErrMalformedToken     error = storeError(statestore.MalformedToken.Text(false))
	ErrUnreadable         error = storeError(statestore.Unreadable.Text(false)) // the server's log says why
)

// What can happen on this side of the connection.
var (
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("the client is closed")
	// ErrNotConnected: there was no connection for as long as the request
	// could wait; nothing was sent. It wraps the last attempt's failure.
	ErrNotConnected = errors.New("not connected")
	// ErrUnknownOutcome: a write was sent and no answer came, so it may or may
	// not have been carried out. It wraps the reason: the connection broke,
	// the context ended, the client was closed. See [RetryWrites].
	ErrUnknownOutcome = errors.New("the outcome of the write is unknown")
	// ErrUnexpectedReply: the answer is not one that the protocol has for this
	// command.
	ErrUnexpectedReply = errors.New("unexpected reply")
	// ErrTooLarge: the request is larger than the Maximum Packet Size that the
	// server announced; nothing was sent.
	ErrTooLarge = errors.New("the request is larger than the server accepts")
	// ErrInvalidOption: options that contradict each other or are out of range;
	// nothing was sent.
	ErrInvalidOption = errors.New("invalid option")

	errConnectionLost = errors.New("connection lost")
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
	Op  string // "get", "set", "del", "vdel", "load", "store", "done", "watch", "scan"
	Key string // the key, or the pattern of a scan
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, protocol.Quote(e.Key), e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// ConnectError is a server's refusal of the connection (CONNACK with a reason
// code of 0x80 or above).
type ConnectError struct {
	Code   byte   // MQTT 5 reason code, for example 0x86: bad user name or password
	Reason string // the server's Reason String, often empty
}

func (e *ConnectError) Error() string {
	return withReason("the server refused the connection", e.Code, e.Reason)
}

// RejectedError is a request that the server did not accept as a message
// (PUBACK with a reason code of 0x80 or above); it was not executed. With code
// 0x87 it is also [ErrNotAuthorized], with 0x97 [ErrQuotaExceeded].
type RejectedError struct {
	Code   byte
	Reason string
}

func (e *RejectedError) Error() string {
	return withReason("the server rejected the request", e.Code, e.Reason)
}

// Is relates the reason code to the sentinel that means the same.
func (e *RejectedError) Is(target error) bool {
	switch e.Code {
	case 0x87:
		return target == ErrNotAuthorized
	case 0x97:
		return target == ErrQuotaExceeded
	}
	return false
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

func withReason(what string, code byte, reason string) string {
	text := fmt.Sprintf("%s: %s (0x%02X)", what, reasonName(code), code)
	if reason != "" {
		text += ": " + reason
	}
	return text
}

// reasonName names the codes that a CONNACK, PUBACK, SUBACK or DISCONNECT of
// a server may carry (MQTT 5, section 2.4).
func reasonName(code byte) string {
	if name, ok := reasonNames[code]; ok {
		return name
	}
	return "reason code"
}

var reasonNames = map[byte]string{
	0x00: "normal disconnection",
	0x80: "unspecified error",
	0x81: "malformed packet",
	0x82: "protocol error",
	0x83: "implementation specific error",
	0x84: "unsupported protocol version",
	0x85: "client identifier not valid",
	0x86: "bad user name or password",
	0x87: "not authorized",
	0x88: "server unavailable",
	0x89: "server busy",
	0x8A: "banned",
	0x8B: "server shutting down",
	0x8D: "keep alive timeout",
	0x8E: "session taken over: another client uses the same client ID",
	0x8F: "topic filter invalid",
	0x90: "topic name invalid",
	0x93: "receive maximum exceeded",
	0x95: "packet too large",
	0x96: "message rate too high",
	0x97: "quota exceeded",
	0x98: "administrative action",
	0x99: "payload format invalid",
	0x9C: "use another server",
	0x9D: "server moved",
	0x9F: "connection rate exceeded",
	0xA0: "maximum connect time",
}
