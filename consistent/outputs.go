package consistent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
)

// complete gives outputs the CloudEvents properties that they lack, and checks that they can be
// published: before the commit, for after it there is no way back.
func (p *Processor) complete(c *Context, f *task, outputs []Message) ([]Message, error) {
	outputs = slices.Clone(outputs) // a handler may return the same slice every time
	d := event.Defaults{Input: c.message, ID: c.ID, Source: p.o.source, Type: c.name, Time: c.now, Trace: f.trace()}
	if d.Source == "" {
		d.Source = strings.TrimPrefix(c.handler, "/")
	}
	for i := range outputs {
		m := &outputs[i]
		if id, cancels := timed.Cancels(m); cancels {
			if err := timed.CheckID(id); err != nil {
				return nil, fmt.Errorf("output %d of %d: %w: %w", i+1, len(outputs), ErrInvalidOutput, err)
			}
			continue
		}
		d.Complete(m)
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
