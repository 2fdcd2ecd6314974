package consistent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// complete gives outputs the CloudEvents properties that they lack – so that their
// consumers can tell them apart – and checks that they can be published: before
// the commit, for after it there is no way back.
func (p *Processor) complete(c *Context, f *task, outputs []Message) ([]Message, error) {
	outputs = slices.Clone(outputs) // a handler may return the same slice every time
	source := p.o.source
	if source == "" {
		source = strings.TrimPrefix(c.handler, "/")
	}
	for i := range outputs {
		m := &outputs[i]
		m.UserProperties = slices.Clone(m.UserProperties)
		// The handler passes the message on. It may do so twice, and another handler, too,
		// and their consumers would take one for a duplicate of the other; so each gets an
		// identity of its own.
		if event.Same(m, c.message) {
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
		for _, u := range f.trace() {
			add(u.Name, func() string { return u.Value })
		}
		if err := p.checkOutput(f.handler, m); err != nil {
			return nil, fmt.Errorf("output %d of %d, to %q: %w", i+1, len(outputs), m.Topic, err)
		}
	}
	return outputs, nil
}

// trace is the trace context that the outputs carry. It is in no digest: a duplicate may have
// been sent in another trace.
func (f *task) trace() UserProperties {
	if f.Trace != nil {
		return f.Trace
	}
	return event.Trace(f.Message)
}

func (p *Processor) checkOutput(h *handler, m *Message) error {
	err := event.Check(m, p.conn.MaxPacketSize())
	switch {
	case errors.Is(err, client.ErrTooLarge):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrInvalidOutput, err)
	case m.Topic == h.deadLetter:
		return fmt.Errorf("%w: that is the handler's dead-letter topic; for a dead letter of the input, return an error that is Terminal", ErrInvalidOutput)
	}
	return nil
}

func (p *Processor) log(f *task) *slog.Logger {
	return p.o.logger.With("processor", p.o.name, "handler", f.Handler, "key", f.Key, "message_id", f.MessageID, "topic", f.Message.Topic)
}
