package consistent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
)

// letters keeps dead letters in the store, up to a number and a size. It counts those that
// are there once, and again when they seem to be too many: letters expire, other instances
// store some, and people drop them. Instances of one processor count each for itself, so
// there can be as many times more as there are instances.
type letters struct {
	mu      sync.Mutex
	counted time.Time // under mu: when they were counted last; zero: never
	keys    int       // under mu
	bytes   int64     // under mu: of their values
}

// recount is how long after a count another one may follow.
const recount = 10 * time.Second

// errNotKept says that a dead letter can't be kept in the store, so it is published only.
var errNotKept = errors.New("the dead letter is not kept in the store")

// keepLetter stores a dead letter. After errNotKept, trying again is in vain.
func (p *Processor) keepLetter(ctx context.Context, f *task) error {
	if p.o.letters == 0 {
		return nil
	}
	l := deadletter.Letter{Processor: strings.TrimPrefix(p.o.qualified(p.o.name), "/"), Code: codeOf(f.refused), Reason: text(f.refused.Error()),
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
	if err := p.letters.reserve(ctx, p, deadletter.Prefix+l.Processor+"/", int64(len(value))); err != nil {
		return err
	}
	err = p.conn.Set(ctx, l.StoreKey(), value, p.o.letterExpiry)
	if err == nil {
		return nil
	}
	p.letters.giveBack(int64(len(value)))
	if isFinal(err) {
		return fmt.Errorf("%w: %w", errNotKept, err)
	}
	return err
}

// isFinal tells whether a request to the store would fail again.
func isFinal(err error) bool {
	return errors.Is(err, client.ErrQuotaExceeded) || errors.Is(err, client.ErrNotAuthorized) || errors.Is(err, client.ErrTooLarge) ||
		errors.Is(err, client.ErrSyntax) || errors.Is(err, client.ErrTokenRequired)
}

// reserve counts one more letter, if there is room for it. It holds no lock while it
// counts what is in the store.
func (l *letters) reserve(ctx context.Context, p *Processor, prefix string, size int64) error {
	l.mu.Lock()
	fits := l.keys < p.o.letters && l.bytes+size <= p.o.letterBytes
	if fits && !l.counted.IsZero() {
		l.keys++
		l.bytes += size
		l.mu.Unlock()
		return nil
	}
	recent := !l.counted.IsZero() && time.Since(l.counted) < recount
	l.mu.Unlock()
	keys, bytes, err := 0, int64(0), error(nil)
	if !recent {
		if keys, bytes, err = p.conn.Usage(ctx, prefix); err != nil && isFinal(err) {
			return fmt.Errorf("%w: counting those that are: %w", errNotKept, err)
		} else if err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !recent {
		l.counted, l.keys, l.bytes = time.Now(), keys, bytes
	}
	if l.keys >= p.o.letters || l.bytes+size > p.o.letterBytes {
		return fmt.Errorf("%w: there are %d with %d bytes, and WithKeptDeadLetters allows %d with %d bytes; replay or drop some", errNotKept, l.keys, l.bytes, p.o.letters, p.o.letterBytes)
	}
	l.keys++
	l.bytes += size
	return nil
}

func (l *letters) giveBack(size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys--
	l.bytes -= size
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
