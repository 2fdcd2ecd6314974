// Package letters keeps dead letters of a processor in the store, within a budget. It makes none.
package letters

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/budget"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// ErrNotKept says that a dead letter can't be kept in the store, so it is published only.
var ErrNotKept = errors.New("the dead letter is not kept in the store")

// Conn is what a Box needs of the store.
type Conn interface {
	Set(ctx context.Context, key string, value []byte, expiry time.Duration) error
	Usage(ctx context.Context, prefix string) (keys int, bytes int64, err error)
	MaxPacketSize() uint32
}

// Options are those of a Box.
type Options struct {
	budget.Bounds               // of the letters; no Keys: none is kept
	Expiry        time.Duration // of a letter
	Timeout       time.Duration // of all requests for a letter
}

// Box is where the letters of a processor are. It is safe for concurrent use; the zero value is
// ready.
type Box struct{ budget budget.Budget }

// Keep stores a dead letter, and gives it its ID. After ErrNotKept, trying again is in vain.
func (b *Box) Keep(ctx context.Context, conn Conn, o *Options, l *deadletter.Letter) error {
	if o.Keys == 0 {
		return nil
	}
	l.ID = l.MakeID()
	value, err := l.Encode(true)
	tooLarge := func() bool {
		limit := conn.MaxPacketSize()
		return err == nil && limit > 0 && len(value)+len(l.StoreKey())+1024 > int(limit)
	}
	if tooLarge() {
		value, err = l.Encode(false)
	}
	if tooLarge() { // its properties are
		l.Omitted = int(l.Message.SizeBytes())
		l.Message = client.Message{Topic: l.Message.Topic}
		value, err = l.Encode(true)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	err = b.budget.Reserve(ctx, o.Bounds, int64(len(value)), func(ctx context.Context) (int, int64, error) {
		return conn.Usage(ctx, deadletter.Prefix+l.Processor+"/")
	})
	if err == nil {
		if err = conn.Set(ctx, l.StoreKey(), value, o.Expiry); err == nil {
			return nil
		}
		b.budget.GiveBack(int64(len(value)))
	}
	switch {
	case errors.Is(err, budget.ErrExceeded):
		return fmt.Errorf("%w: %w, which WithKeptDeadLetters sets; replay or drop some", ErrNotKept, err)
	case isFinal(err):
		return fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	return err
}

// Publish publishes a dead letter with as much of its message as the server takes. letter makes it
// with a part of that, and limit is the largest packet that the server takes, in bytes; 0: that is
// not known.
func Publish(limit uint32, letter func(event.Part) client.Message, publish func(client.Message) error) error {
	err := error(client.ErrTooLarge)
	for _, part := range event.Parts {
		l := letter(part)
		if !event.Fits(&l, limit) {
			continue
		}
		err = publish(l)
		var disconnected *client.DisconnectError // of a server that takes fewer properties
		if !errors.Is(err, client.ErrTooLarge) && !errors.As(err, &disconnected) {
			break
		}
	}
	return err
}

// isFinal tells whether a request to the store would fail again.
func isFinal(err error) bool {
	return errors.Is(err, client.ErrQuotaExceeded) || errors.Is(err, client.ErrNotAuthorized) || errors.Is(err, client.ErrTooLarge) ||
		errors.Is(err, client.ErrSyntax) || errors.Is(err, client.ErrTokenRequired)
}

// Usage counts the keys that begin with prefix, and the bytes of their values.
func Usage(ctx context.Context, c *client.Client, prefix string) (keys int, bytes int64, err error) {
	for e, err := range c.ScanValues(ctx, client.LiteralPattern(prefix)+"*") {
		if err != nil {
			return 0, 0, err
		}
		keys++
		bytes += int64(len(e.Bytes))
	}
	return keys, bytes, nil
}
