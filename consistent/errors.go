package consistent

import (
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/keep"
)

// Why a message became a dead letter, beside errors of its handler and
// [client.ErrTooLarge], which is a state, captured values or an output larger than the
// server takes. The reason in the dead letter is the text.
var (
	// ErrNoIdentity: nothing tells the message from others.
	ErrNoIdentity = event.ErrNoIdentity
	// ErrIdentityReused: a message with another payload was processed under the same
	// identity. Its sender gives two messages one ID.
	ErrIdentityReused = errors.New("another message was processed under the same identity: its payload was not the same; the sender must give each message an ID of its own")
	// ErrNoHandler: no handler of the processor wants the message; a former process with
	// the same client ID has subscribed to it.
	ErrNoHandler = errors.New("there is no handler for the topic; a former process with this client ID has subscribed to it")
	// ErrNoKey: the handler's key function gave the empty string.
	ErrNoKey = errors.New("the message has no key: the handler's key function made the empty string of it")
	// ErrUndecodable: the payload is not what the handler takes.
	ErrUndecodable = errors.New("the payload cannot be decoded")
	// ErrStateUndecodable: the state in the store is not what the handler takes.
	ErrStateUndecodable = errors.New("the state in the store cannot be decoded")
	// ErrTooOld: older than the period for which messages are remembered, so it is not
	// known whether it has been processed. See [WithLateMessages].
	ErrTooOld = event.ErrTooOld
	// ErrTimeAhead: its CloudEvents time is further ahead than [WithMaxSkew] allows. Its
	// age would be judged wrongly, and a duplicate be processed after the message was
	// forgotten.
	ErrTimeAhead = event.ErrTimeAhead
	// ErrInvalidOutput: the handler returned a message that can't be published.
	ErrInvalidOutput = event.ErrInvalidOutput
)

// ErrUnsupported: the server doesn't have LOAD, STORE and DONE, or it doesn't have TXN and there
// is a handler without the option [Replay]. [Processor.Run] returns it.
var ErrUnsupported = errors.New("the server does not have the commands that processing each message once needs: TXN, LOAD, STORE and DONE; the last three are enough for handlers with the option Replay")

// ErrKeepTooShort: the server does not remember messages as long as [WithKeep] asks for.
// [Processor.Run] returns it, with both durations in its text.
var ErrKeepTooShort = keep.ErrTooShort

// CaptureError is an error of a function that was given to [Capture], as it is remembered.
type CaptureError struct{ Name, Text string }

func (e *CaptureError) Error() string { return fmt.Sprintf("capture %q: %s", e.Name, e.Text) }

// NonDeterministicError says that a handler, given the same message, state and context
// again, returned something else: it must have taken the time, a random number, the
// order of a map, … from elsewhere than its [Context], or its code was changed without
// another [WithVersion]. The first outputs may be out already, others would contradict them;
// so nothing is published, and the message goes to the dead-letter topic.
type NonDeterministicError struct {
	Handler, Key, MessageID string
	// Difference describes the first difference.
	Difference string
}

func (e *NonDeterministicError) Error() string {
	return fmt.Sprintf("handler %q is not deterministic: processing message %q of key %q again, %s; take time, identifiers, random numbers and values from outside from the Context, and give changed code another WithVersion",
		e.Handler, e.MessageID, e.Key, e.Difference)
}

// PanicError is a panic of a handler.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Terminal marks an error of a handler that would come again at every attempt.
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
	waitAndRetry verdict = iota // a failure of the store or the connection: without limit
	retryBounded                // an error of the handler: a number of times
	giveUp                      // a dead letter
	stopAll                     // it would fail for every message
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
	case commit.RefusesOutput(err):
		return giveUp
	case errors.Is(err, client.ErrTooLarge), errors.Is(err, ErrInvalidOutput), errors.Is(err, ErrStateUndecodable),
		errors.Is(err, ErrIdentityReused), errors.Is(err, ErrTooOld), errors.Is(err, ErrTimeAhead),
		errors.Is(err, client.ErrSyntax), errors.Is(err, client.ErrTokenRequired), errors.Is(err, client.ErrTokenTooLow):
		return giveUp
	case errors.As(err, &rejected):
		switch rejected.Code {
		case client.ReasonImplementationSpecific, client.ReasonNotAuthorized, client.ReasonTopicNameInvalid, client.ReasonPayloadFormatInvalid:
			return giveUp
		}
	}
	return waitAndRetry
}
