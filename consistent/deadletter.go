package consistent

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/client"
)

// The user properties that a dead letter has beside those of the message.
const (
	// DeadLetterReason is why the message could not be processed, for a person.
	DeadLetterReason = "dead-letter-reason"
	// DeadLetterCode is the same for a program: a [deadletter.Code].
	DeadLetterCode = "dead-letter-code"
	// DeadLetterSourceTopic is the topic that the message came by.
	DeadLetterSourceTopic = "dead-letter-topic"
	// DeadLetterHandler is the name of the handler.
	DeadLetterHandler = "dead-letter-handler"
	// DeadLetterOmitted is the size of the payload in bytes, if it had to be left out
	// because with the reason it would be larger than the server takes.
	DeadLetterOmitted = "dead-letter-omitted-bytes"
)

// reasonBytes bounds the text of a reason.
const reasonBytes = 1024

// sendDeadLetter stores a dead letter, and publishes it for those who listen. A message that
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
		case errors.Is(err, errNotKept):
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
	letter := deadLetter(f, f.refused, true)
	if limit := p.conn.MaxPacketSize(); limit > 0 && letter.SizeBytes() > int64(limit) {
		letter = deadLetter(f, f.refused, false)
	}
	publish := func() error {
		return p.bounded(ctx, f, StepPublish, func(ctx context.Context) error { return p.conn.Publish(ctx, letter) })
	}
	err := publish()
	if errors.Is(err, client.ErrTooLarge) && len(letter.Payload) > 0 {
		letter = deadLetter(f, f.refused, false) // the server's limit was not known before
		err = publish()
	}
	if err == nil {
		p.count(f, CountDeadLetter)
	}
	return err
}

// deadLetter is the message as it came, under another topic, with the reason.
func deadLetter(f *task, reason error, whole bool) Message {
	m := *f.Message
	m.Topic, m.Retain, m.Expiry = f.handler.deadLetter, false, 0
	m.UserProperties = append(slices.Clone(m.UserProperties),
		UserProperty{Name: DeadLetterReason, Value: text(reason.Error())},
		UserProperty{Name: DeadLetterCode, Value: string(codeOf(reason))},
		UserProperty{Name: DeadLetterSourceTopic, Value: f.Message.Topic},
		UserProperty{Name: DeadLetterHandler, Value: f.Handler})
	if !whole {
		m.UserProperties = append(m.UserProperties, UserProperty{Name: DeadLetterOmitted, Value: strconv.Itoa(len(m.Payload))})
		m.Payload = nil
	}
	return m
}

// text makes a valid MQTT string of an error's text.
func text(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "�"), "�")
	if len(s) > reasonBytes {
		s = strings.ToValidUTF8(s[:reasonBytes], "") + "…"
	}
	return s
}
