package consistent

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// complete gives outputs the CloudEvents properties that they lack – so that their
// consumers can tell them apart – and checks that they can be published: before
// the commit, for after it there is no way back.
func (p *Processor) complete(c *Context, outputs []Message) ([]Message, error) {
	outputs = slices.Clone(outputs) // a handler may return the same slice every time
	source := p.o.source
	if source == "" {
		source = strings.TrimPrefix(c.handler, "/")
	}
	for i := range outputs {
		m := &outputs[i]
		m.UserProperties = slices.Clone(m.UserProperties)
		if sameEvent(m, c.message) {
			m.UserProperties = slices.DeleteFunc(m.UserProperties, func(u UserProperty) bool {
				return u.Name == "id" || u.Name == "source" || u.Name == "time"
			})
		}
		add := func(name string, value func() string) {
			if _, ok := m.UserProperties.Get(name); !ok {
				m.UserProperties = append(m.UserProperties, UserProperty{Name: name, Value: value()})
			}
		}
		add("specversion", func() string { return "1.0" })
		add("id", c.ID)
		add("source", func() string { return source })
		add("type", func() string { return c.name })
		add("time", func() string { return c.now.Format(time.RFC3339Nano) })
		if err := p.checkOutput(m); err != nil {
			return nil, fmt.Errorf("output %d of %d, to %q: %w", i+1, len(outputs), m.Topic, err)
		}
	}
	return outputs, nil
}

// sameEvent tells whether an output has the CloudEvents identity of the input: the handler
// passes the message on. It may do so twice, and another handler, too, and their consumers
// would take one for a duplicate of the other; so each gets an identity of its own.
func sameEvent(output, input *Message) bool {
	for _, name := range []string{"source", "id"} {
		value, ok := output.UserProperties.Get(name)
		if of, has := input.UserProperties.Get(name); !ok || !has || value != of {
			return false
		}
	}
	return true
}

func (p *Processor) checkOutput(m *Message) error {
	if reason, broken := m.UserProperties.Get(brokenProperty); broken {
		return fmt.Errorf("%w: JSON: %s", ErrInvalidOutput, reason)
	}
	switch {
	case !validText(m.Topic) || !topic.ValidName([]byte(m.Topic)):
		return fmt.Errorf("%w: that is not the name of a topic: it must be UTF-8, not empty, without wildcards", ErrInvalidOutput)
	case m.ResponseTopic != "" && (!validText(m.ResponseTopic) || !topic.ValidName([]byte(m.ResponseTopic))):
		return fmt.Errorf("%w: the response topic %q is not the name of a topic", ErrInvalidOutput, m.ResponseTopic)
	case !validText(m.ContentType) || len(m.CorrelationData) > math.MaxUint16:
		return fmt.Errorf("%w: its content type or Correlation Data", ErrInvalidOutput)
	case m.UTF8 && !utf8.Valid(m.Payload):
		return fmt.Errorf("%w: it says that its payload is text, which it is not", ErrInvalidOutput)
	case m.Expiry < 0:
		return fmt.Errorf("%w: its expiry is negative", ErrInvalidOutput)
	}
	for _, u := range m.UserProperties {
		if !validText(u.Name) || !validText(u.Value) {
			return fmt.Errorf("%w: its user property %q", ErrInvalidOutput, u.Name)
		}
	}
	if limit := p.conn.MaxPacketSize(); limit > 0 && m.SizeBytes() > int64(limit) {
		return fmt.Errorf("%w: %d bytes, the limit is %d bytes", client.ErrTooLarge, m.SizeBytes(), limit)
	}
	return nil
}

// validText tells whether s can be a string of MQTT [MQTT-1.5.4].
func validText(s string) bool { return len(s) <= math.MaxUint16 && wire.ValidUTF8([]byte(s)) }

func (p *Processor) log(f *task) *slog.Logger {
	return p.o.logger.With("processor", p.o.name, "handler", f.Handler, "key", f.Key, "message_id", f.MessageID, "topic", f.Message.Topic)
}
