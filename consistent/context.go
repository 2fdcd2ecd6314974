package consistent

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Context gives a handler the values that do not follow from its state and its message,
// such as the time. When the message is processed again it gives the same values. It
// belongs to one run of the handler: it must not be kept, nor used by several goroutines.
type Context struct {
	ctx     context.Context
	handler string
	key     string // business key
	id      string
	message *Message
	logger  *slog.Logger

	version  uint32
	now      time.Time
	captured []capture
	replay   bool   // captured is what the first run took
	ordinal  uint64 // how many IDs were given out
	rand     *rand.Rand
	fault    string // what makes the handler not deterministic, if it was seen here
}

// capture is a value from outside, as JSON.
type capture struct {
	name  string
	value []byte
}

// Context returns a context that ends when the processor has to stop, for calls that take
// time.
func (c *Context) Context() context.Context { return c.ctx }

// Key returns the business key of the message.
func (c *Context) Key() string { return c.key }

// MessageID returns what the message is remembered by.
func (c *Context) MessageID() string { return c.id }

// Message returns the message as it came; it must not be changed. A duplicate may
// differ from the first one in its expiry, which counts down, so that must not enter
// the results.
func (c *Context) Message() *Message { return c.message }

// Logger logs with the handler, the key and the message's ID. Log lines come again when
// the message is processed again.
func (c *Context) Logger() *slog.Logger { return c.logger }

// Version returns the version of the handler's code ([WithVersion]) by which the message
// was first processed: the current one, unless this is a replay.
func (c *Context) Version() uint32 { return c.version }

// Now returns the time of the first processing, in UTC.
func (c *Context) Now() time.Time { return c.now }

// ID returns a UUID (version 8, RFC 9562) that is unique to the handler, its key, the
// message, and how often ID was called before: the first call of a replay returns what
// the first call of the first run did.
func (c *Context) ID() string {
	h := c.seed("id", c.ordinal)
	c.ordinal++
	h[6] = h[6]&0x0F | 0x80
	h[8] = h[8]&0x3F | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// Rand returns the message's own source of random numbers (ChaCha8).
func (c *Context) Rand() *rand.Rand {
	if c.rand == nil {
		c.rand = rand.New(rand.NewChaCha8(c.seed("rand", 0)))
	}
	return c.rand
}

// seed hashes what identifies the processing. Lengths come first, so that no two
// processings look the same.
func (c *Context) seed(purpose string, ordinal uint64) [sha256.Size]byte {
	b := make([]byte, 0, 64+len(c.handler)+len(c.key)+len(c.id))
	for _, s := range []string{purpose, c.handler, c.key, c.id} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return sha256.Sum256(binary.AppendUvarint(b, ordinal))
}

// Capture takes a value from outside: take is called in the first processing, its value is
// remembered under name (as JSON), and every replay gets that value. take is called again
// if the processing is not committed, because another instance was faster; outputs and
// states that become visible are made of the committed value. An error of take is not
// remembered: return it, and the message is tried again. A second Capture of a name gives
// the first value.
func Capture[T any](c *Context, name string, take func() (T, error)) (T, error) {
	var v T
	for i := range c.captured {
		if c.captured[i].name == name {
			return v, decodeCapture(c.captured[i], &v)
		}
	}
	if c.replay {
		c.fault = fmt.Sprintf("it captured %q, which it did not the first time", name)
		return v, errors.New(c.fault)
	}
	taken, err := take()
	if err != nil {
		return v, err
	}
	value, err := json.Marshal(taken)
	if err != nil {
		return v, Terminal(fmt.Errorf("capture %q: %w", name, err))
	}
	c.captured = append(c.captured, capture{name, value})
	return v, decodeCapture(c.captured[len(c.captured)-1], &v) // as the replay will see it
}

func decodeCapture(c capture, v any) error {
	if err := json.Unmarshal(c.value, v); err != nil {
		return Terminal(fmt.Errorf("capture %q: %w", c.name, err))
	}
	return nil
}
