package consistent

import (
	"context"
	"errors"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/letters"
)

// The user properties that a dead letter has beside those of the message.
const (
	// DeadLetterReason is why the message could not be processed, for a person.
	DeadLetterReason = event.DeadLetterReason
	// DeadLetterCode is the same for a program: a [deadletter.Code].
	DeadLetterCode = event.DeadLetterCode
	// DeadLetterSourceTopic is the topic that the message came by.
	DeadLetterSourceTopic = event.DeadLetterSourceTopic
	// DeadLetterHandler is the name of the handler.
	DeadLetterHandler = event.DeadLetterHandler
	// DeadLetterOmitted is the size of the payload in bytes, if it had to be left out
	// because with the reason it would be larger than the server takes.
	DeadLetterOmitted = event.DeadLetterOmitted
)

// sendDeadLetter stores a dead letter, and publishes it for subscribers of its topic. A message that
// came by the dead-letter topic itself, because a former process has subscribed to it, is
// not published there again.
func (p *Processor) sendDeadLetter(ctx context.Context, f *task) error {
	log := p.log(f)
	var panicked *PanicError
	if errors.As(f.refused, &panicked) {
		log = log.With("stack", string(panicked.Stack))
	}
	if !f.kept {
		log.Error("a message is a dead letter", "dead_letter_topic", f.handler.deadLetter, "code", codeOf(f.refused), "error", f.refused)
		err := p.keepLetter(ctx, f)
		switch {
		case errors.Is(err, letters.ErrNotKept):
			p.log(f).Error("a dead letter is published only: without a subscriber it is lost", "dead_letter_topic", f.handler.deadLetter, "error", err)
			p.count(f, CountUnkept)
		case err != nil:
			return err
		}
		f.kept = true
	}
	if f.Message.Topic == f.handler.deadLetter {
		p.count(f, CountDeadLetter)
		return nil
	}
	err := letters.Publish(p.conn.MaxPacketSize(), func(part event.Part) Message {
		return event.DeadLetter(f.Message, f.handler.deadLetter, f.refused.Error(), string(codeOf(f.refused)), f.Handler, part)
	}, func(letter Message) error {
		return p.bounded(ctx, f, StepPublish, func(ctx context.Context) error { return p.conn.Publish(ctx, letter) })
	})
	if err == nil {
		p.count(f, CountDeadLetter)
	}
	return err
}
