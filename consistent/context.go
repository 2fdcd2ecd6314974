package consistent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/derived"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/record"
)

// Context gives a handler the values that do not follow from its state and its message, such as the
// time. When the message is processed again it gives the same values. It belongs to one run of the
// handler: it must not be kept, nor used by several goroutines.
type Context struct {
	ctx     context.Context
	name    string // of the handler
	handler string // the same, behind the namespace if there is one
	key     string // business key
	id      string
	message *Message
	p       *Processor // nil: there is no log
	of      *task
	// isNew asks the store whether the message is new; an error says that this run is in
	// vain. Nil: that is known.
	isNew func() error

	version  uint32
	now      time.Time
	captured []record.Capture
	replay   bool   // captured is what the first run took
	ordinal  uint64 // how many IDs were given out
	rand     *rand.Rand
	fault    string // what makes the handler not deterministic, if it was seen here
	inVain   error  // what isNew has returned
	end      end    // of the state
	expiry   time.Duration
	decoded  decoded.Value // of the state before, if it is at hand, and then of that behind
}

// end says what becomes of the state beside being stored.
type end uint8

const (
	stays end = iota
	expires
	deleted
)

// Context returns a context that ends when the processor has to stop, for calls that take time.
func (c *Context) Context() context.Context { return c.ctx }

// Key returns the business key of the message.
func (c *Context) Key() string { return c.key }

// MessageID returns what the message is remembered by.
func (c *Context) MessageID() string { return c.id }

// Message returns the message as it came; it must not be changed. A duplicate may differ from the
// first one in its expiry, which counts down, so that must not enter the results.
func (c *Context) Message() *Message { return c.message }

// Logger logs with the handler, the key and the message's ID. Log lines come again when the message
// is processed again.
func (c *Context) Logger() *slog.Logger { return c.p.log(c.of) }

// Delete ends the state of the key: it is deleted in the commit that remembers the message, and the
// next message of the key finds none. The state that the handler returns does not count. The
// outputs are published as usual.
func (c *Context) Delete() { c.end = deleted }

// ExpireIn lets the state of the key expire after d, unless a later message changes the state; each
// message that is to move the expiry calls it. A d that is not positive is Delete. The last call of
// both counts.
func (c *Context) ExpireIn(d time.Duration) {
	c.end, c.expiry = expires, d
	if d <= 0 {
		c.end = deleted
	}
}

// Version returns the version of the handler's code ([WithVersion]) by which the message was first
// processed: the current one, unless this is a replay.
func (c *Context) Version() uint32 { return c.version }

// Now returns the time of the first processing, in UTC.
func (c *Context) Now() time.Time { return c.now }

// ID returns a UUID (version 8, RFC 9562) that is unique to the handler, its key, the message, and
// how often ID was called before: the first call of a replay returns what the first call of the
// first run did.
func (c *Context) ID() string {
	c.ordinal++
	return c.processing().UUID(c.ordinal - 1)
}

// Rand returns the message's own source of random numbers (ChaCha8).
func (c *Context) Rand() *rand.Rand {
	if c.rand == nil {
		c.rand = c.processing().Rand()
	}
	return c.rand
}

func (c *Context) processing() derived.Processing {
	return derived.Processing{Handler: c.handler, Key: c.key, MessageID: c.id}
}

// Capture takes a value from outside: take is called in the first processing, its value is
// remembered under name (as JSON; see [CaptureWith]), and every replay gets that value. take is
// called again if the processing is not committed, because another instance was faster; outputs and
// states that become visible are made of the committed value. take is not called for a duplicate.
//
// An error of take comes as a [CaptureError], which has its text only: that is what is remembered
// if the handler does without the value. Return it, and the message is tried again, unless it was
// [Terminal]. A second Capture of a name gives the first value or error.
func Capture[T any](c *Context, name string, take func() (T, error)) (T, error) {
	return CaptureWith(c, name, JSONCodec[T]{}, take)
}

// CaptureWith is [Capture] of a value that codec encodes.
func CaptureWith[T any](c *Context, name string, codec Codec[T], take func() (T, error)) (v T, err error) {
	for i := range c.captured {
		if c.captured[i].Name == name {
			return decodeCapture(c.captured[i], codec)
		}
	}
	if c.replay {
		c.fault = fmt.Sprintf("it captured %q, which it did not the first time", name)
		return v, errors.New(c.fault)
	}
	if c.inVain == nil && c.isNew != nil {
		c.inVain, c.isNew = c.isNew(), nil // it is asked once
	}
	if c.inVain != nil {
		return v, c.inVain
	}
	c.captured = append(c.captured, newCapture(name, codec, take))
	return decodeCapture(c.captured[len(c.captured)-1], codec) // as the replay will see it
}

func newCapture[T any](name string, codec Codec[T], take func() (T, error)) record.Capture {
	v, err := take()
	if err == nil {
		var value []byte
		if value, err = codec.Encode(v); err == nil {
			return record.Capture{Name: name, Value: value, Outcome: record.Taken}
		}
		err = Terminal(err)
	}
	var terminal *terminalError
	if errors.As(err, &terminal) {
		return record.Capture{Name: name, Value: []byte(err.Error()), Outcome: record.FailedTerminally}
	}
	return record.Capture{Name: name, Value: []byte(err.Error()), Outcome: record.Failed}
}

func decodeCapture[T any](c record.Capture, codec Codec[T]) (v T, err error) {
	switch c.Outcome {
	case record.Failed:
		return v, &CaptureError{Name: c.Name, Text: string(c.Value)}
	case record.FailedTerminally:
		return v, Terminal(&CaptureError{Name: c.Name, Text: string(c.Value)})
	}
	if v, err = codec.Decode(c.Value); err != nil {
		err = Terminal(fmt.Errorf("capture %q: %w", c.Name, err))
	}
	return v, err
}
