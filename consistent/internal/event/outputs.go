package event

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
)

// ErrInvalidOutput means that a handler returned a message that can't be published.
var ErrInvalidOutput = errors.New("the handler returned a message that cannot be published")

// Outputs are what a handler has returned, with the properties that they lack, or why one of them
// cannot be published. deadLetter is the handler's dead-letter topic, and limit the largest packet
// that the server takes, in bytes; 0: any.
func (d *Defaults) Outputs(outputs []client.Message, deadLetter string, limit uint32) ([]client.Message, error) {
	if d.Trace == nil {
		d.Trace = Trace(d.Input)
	}
	outputs = slices.Clone(outputs) // a handler may return the same slice every time
	for i := range outputs {
		m := &outputs[i]
		if id, cancels := timed.Cancels(m); cancels {
			if err := timed.CheckID(id); err != nil {
				return nil, fmt.Errorf("output %d of %d: %w: %w", i+1, len(outputs), ErrInvalidOutput, err)
			}
			continue
		}
		d.Complete(m)
		if err := checkOutput(m, deadLetter, limit); err != nil {
			return nil, fmt.Errorf("output %d of %d, to %q: %w", i+1, len(outputs), m.Topic, err)
		}
	}
	return outputs, nil
}

// leadsTo is the topic to which the server delivers a message with this one.
func leadsTo(topic string) string {
	to, _, _ := delay.SplitTopic([]byte(topic))
	return string(to)
}

func checkOutput(m *client.Message, deadLetter string, limit uint32) error {
	err := Check(m, limit)
	switch {
	case errors.Is(err, client.ErrTooLarge):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrInvalidOutput, err)
	case leadsTo(m.Topic) == deadLetter:
		return fmt.Errorf("%w: that is the handler's dead-letter topic; for a dead letter of the input, return an error that is Terminal", ErrInvalidOutput)
	}
	return nil
}
