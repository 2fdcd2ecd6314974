package consistent

import (
	"errors"
	"fmt"

	"holdfast/client"
)

// Why a message became a dead letter, beside errors of its handler. The reason in the
// dead letter is the text.
var (
	// ErrNoIdentity: nothing tells the message from others.
	ErrNoIdentity = errors.New("the message has no identity: it needs the CloudEvents properties source and id, or Correlation Data, or the handler a MessageID option that finds one")
	// ErrNoKey: the handler's Key gave the empty string.
	ErrNoKey = errors.New("the message has no key: the handler's Key made the empty string of it")
	// ErrUndecodable: the payload is not what the handler takes.
	ErrUndecodable = errors.New("the payload cannot be decoded")
	// ErrStateUndecodable: the state in the store is not what the handler takes.
	ErrStateUndecodable = errors.New("the state in the store cannot be decoded")
	// ErrTooOld: older than the period for which messages are remembered, so nobody
	// can know whether it has been processed.
	ErrTooOld = errors.New("the message is too old to tell whether it has been processed")
	// ErrInvalidOutput: the handler returned a message that can't be published.
	ErrInvalidOutput = errors.New("the handler returned a message that cannot be published")
	// ErrTooLarge: the state, what was captured, or an output is larger than the
	// server takes.
	ErrTooLarge = errors.New("larger than the server accepts")
)

// ErrUnsupported: the server doesn't have LOAD, STORE and DONE. [Processor.Run] returns it.
var ErrUnsupported = errors.New("the server does not have the commands LOAD, STORE and DONE that processing each message once needs")

// NonDeterministicError says that a handler, given the same message, state and context
// again, returned something else: it must have taken the time, a random number, the
// order of a map, … from elsewhere than its [Context], or its code was changed without
// a new [Version]. The first outputs may be out already, others would contradict them;
// so nothing is published, and the message goes to the dead-letter topic.
type NonDeterministicError struct {
	Handler, Key, MessageID string
	// Difference is the first one, as a person can act on it.
	Difference string
}

func (e *NonDeterministicError) Error() string {
	return fmt.Sprintf("handler %q is not deterministic: processing message %q of key %q again, %s; take time, identifiers, random numbers and values from outside from the Context, and give changed code a new Version",
		e.Handler, e.MessageID, e.Key, e.Difference)
}

// PanicError is a panic of a handler.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Terminal marks an error of a handler that trying again can't mend.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminalError{err}
}

type terminalError struct{ error }

func (e *terminalError) Unwrap() error { return e.error }

// handlerError is an error that a handler returned: one to try again.
type handlerError struct{ error }

func (e *handlerError) Unwrap() error { return e.error }

// verdict is what is to be done about a failed attempt.
type verdict uint8

const (
	waitAndRetry verdict = iota // nobody's fault: for as long as it takes
	retryBounded                // the handler's: a number of times
	giveUp                      // a dead letter
	stopAll                     // no message will fare better
)

func judge(err error) verdict {
	var (
		terminal    *terminalError
		fromHandler *handlerError
		panicked    *PanicError
		changed     *NonDeterministicError
		rejected    *client.RejectedError
	)
	switch {
	case errors.Is(err, client.ErrUnknownCommand), errors.Is(err, ErrUnsupported):
		return stopAll
	case errors.As(err, &terminal), errors.As(err, &panicked), errors.As(err, &changed):
		return giveUp
	case errors.As(err, &fromHandler):
		return retryBounded
	case errors.Is(err, client.ErrTooLarge), errors.Is(err, ErrTooLarge), errors.Is(err, ErrInvalidOutput), errors.Is(err, ErrStateUndecodable),
		errors.Is(err, client.ErrSyntax), errors.Is(err, client.ErrTokenRequired), errors.Is(err, client.ErrTokenTooLow):
		return giveUp
	case errors.As(err, &rejected):
		switch rejected.Code {
		case 0x87, 0x90, 0x95, 0x99: // not authorized, topic name, packet too large, payload format
			return giveUp
		}
	}
	return waitAndRetry
}
