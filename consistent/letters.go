package consistent

import (
	"context"
	"errors"
	"strings"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/budget"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/letters"
)

// keepLetter stores a dead letter. After letters.ErrNotKept, trying again is in vain.
func (p *Processor) keepLetter(ctx context.Context, f *task) error {
	l := &deadletter.Letter{Processor: strings.TrimPrefix(p.o.qualified(p.o.name), "/"), Code: codeOf(f.refused), Reason: event.Text(f.refused.Error()),
		Handler: f.Handler, Key: f.Key, MessageID: f.MessageID, Time: p.now().UTC().Round(0), Message: *f.Message}
	o := &letters.Options{Bounds: budget.Bounds{Keys: p.o.letters, Bytes: p.o.letterBytes}, Expiry: p.o.letterExpiry, Timeout: p.o.timeout}
	return p.letters.Keep(ctx, p.conn, o, l)
}

// codeOf is the code of a reason.
func codeOf(reason error) deadletter.Code {
	var (
		terminal    *terminalError
		fromHandler *handlerError
		panicked    *PanicError
		changed     *NonDeterministicError
	)
	switch {
	case errors.As(reason, &changed):
		return deadletter.NonDeterministic
	case errors.As(reason, &panicked):
		return deadletter.Panicked
	case errors.As(reason, &terminal):
		return deadletter.Terminal
	case errors.As(reason, &fromHandler):
		return deadletter.Attempts
	}
	for err, code := range map[error]deadletter.Code{
		ErrNoHandler: deadletter.NoHandler, ErrNoIdentity: deadletter.NoIdentity, ErrIdentityReused: deadletter.IdentityReused,
		ErrNoKey: deadletter.NoKey, ErrUndecodable: deadletter.Undecodable, ErrStateUndecodable: deadletter.StateUndecodable,
		ErrTooOld: deadletter.TooOld, ErrTimeAhead: deadletter.TimeAhead, ErrInvalidOutput: deadletter.InvalidOutput,
		client.ErrTooLarge: deadletter.TooLarge,
	} {
		if errors.Is(reason, err) {
			return code
		}
	}
	return deadletter.Refused
}
