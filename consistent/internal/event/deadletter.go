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

// DeadLetter is the message as it came, under another topic, with the reason; if it is not to be
// whole, without the payload.
func DeadLetter(came *client.Message, topic, reason, code, handler string, whole bool) client.Message {
	m := *came
	m.Topic, m.Retain, m.Expiry = topic, false, 0
	m.UserProperties = append(slices.Clone(m.UserProperties),
		client.UserProperty{Name: DeadLetterReason, Value: Text(reason)},
		client.UserProperty{Name: DeadLetterCode, Value: code},
		client.UserProperty{Name: DeadLetterSourceTopic, Value: came.Topic},
		client.UserProperty{Name: DeadLetterHandler, Value: handler})
	if !whole {
		m.UserProperties = append(m.UserProperties, client.UserProperty{Name: DeadLetterOmitted, Value: strconv.Itoa(len(m.Payload))})
		m.Payload = nil
	}
	return m
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
