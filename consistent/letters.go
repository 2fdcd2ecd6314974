package consistent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/budget"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// errNotKept says that a dead letter can't be kept in the store, so it is published only.
var errNotKept = errors.New("the dead letter is not kept in the store")

// keepLetter stores a dead letter. After errNotKept, trying again is in vain.
func (p *Processor) keepLetter(ctx context.Context, f *task) error {
	if p.o.letters == 0 {
		return nil
	}
	l := deadletter.Letter{Processor: strings.TrimPrefix(p.o.qualified(p.o.name), "/"), Code: codeOf(f.refused), Reason: event.Text(f.refused.Error()),
		Handler: f.Handler, Key: f.Key, MessageID: f.MessageID, Time: p.now().UTC().Round(0), Message: *f.Message}
	l.ID = l.MakeID()
	value, err := l.Encode(true)
	if limit := p.conn.MaxPacketSize(); err == nil && limit > 0 && len(value)+len(l.StoreKey())+1024 > int(limit) {
		value, err = l.Encode(false)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotKept, err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.timeout)
	defer cancel()
	err = p.letters.Reserve(ctx, budget.Bounds{Keys: p.o.letters, Bytes: p.o.letterBytes}, int64(len(value)), func(ctx context.Context) (int, int64, error) {
		return p.conn.Usage(ctx, deadletter.Prefix+l.Processor+"/")
	})
	if err == nil {
		if err = p.conn.Set(ctx, l.StoreKey(), value, p.o.letterExpiry); err == nil {
			return nil
		}
		p.letters.GiveBack(int64(len(value)))
	}
	switch {
	case errors.Is(err, budget.ErrExceeded):
		return fmt.Errorf("%w: %w, which WithKeptDeadLetters sets; replay or drop some", errNotKept, err)
	case isFinal(err):
		return fmt.Errorf("%w: %w", errNotKept, err)
	}
	return err
}

// isFinal tells whether a request to the store would fail again.
func isFinal(err error) bool {
	return errors.Is(err, client.ErrQuotaExceeded) || errors.Is(err, client.ErrNotAuthorized) || errors.Is(err, client.ErrTooLarge) ||
		errors.Is(err, client.ErrSyntax) || errors.Is(err, client.ErrTokenRequired)
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
