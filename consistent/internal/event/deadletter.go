package event

import (
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/client"
)

// The user properties of a dead letter; package consistent describes them.
const (
	DeadLetterReason      = "dead-letter-reason"
	DeadLetterCode        = "dead-letter-code"
	DeadLetterSourceTopic = "dead-letter-topic"
	DeadLetterHandler     = "dead-letter-handler"
	DeadLetterOmitted     = "dead-letter-omitted-bytes"
)

// Part is how much of a message a dead letter has.
type Part int

// The parts, from all of a message to hardly anything of it: what a server takes also of a message
// that is as large as it may be, or has as many user properties.
const (
	Whole          Part = iota
	WithoutPayload      // and with properties
	Bare                // without its properties either
)

// Parts are all parts.
var Parts = [...]Part{Whole, WithoutPayload, Bare}

// DeadLetter is a part of the message as it came, under another topic, with the reason.
func DeadLetter(came *client.Message, topic, reason, code, handler string, part Part) client.Message {
	m := *came
	if part == Bare {
		m = client.Message{}
	}
	m.Topic, m.Retain, m.Expiry = topic, false, 0
	m.UserProperties = append(slices.Clone(m.UserProperties),
		client.UserProperty{Name: DeadLetterReason, Value: Text(reason)},
		client.UserProperty{Name: DeadLetterCode, Value: code},
		client.UserProperty{Name: DeadLetterSourceTopic, Value: came.Topic},
		client.UserProperty{Name: DeadLetterHandler, Value: handler})
	if part != Whole {
		m.UserProperties = append(m.UserProperties, client.UserProperty{Name: DeadLetterOmitted, Value: strconv.Itoa(len(came.Payload))})
		m.Payload = nil
	}
	return m
}

// Fits tells whether a server takes a message, as far as is known. limit is its largest packet in
// bytes; 0: any.
func Fits(m *client.Message, limit uint32) bool {
	return len(m.UserProperties) <= MaxProperties && (limit == 0 || m.SizeBytes() <= int64(limit))
}

// reasonBytes bounds the text of a reason.
const reasonBytes = 1024

// Text makes a valid MQTT string of an error's text.
func Text(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "�"), "�")
	if len(s) > reasonBytes {
		s = strings.ToValidUTF8(s[:reasonBytes], "") + "…"
	}
	return s
}
