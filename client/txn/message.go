package txn

import (
	"fmt"
	"math"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
)

// QoS says how often a subscriber gets a message.
type QoS uint8

const (
	AtLeastOnce QoS = iota // QoS 1
	AtMostOnce             // QoS 0: a client that is away, or takes no more at the moment, misses it
	ExactlyOnce            // QoS 2
)

// Message is a message that a transaction publishes.
type Message struct {
	Topic           string
	Payload         []byte
	QoS             QoS            // AtLeastOnce without it
	Retain          bool           // with an empty payload: delete what is retained
	Expiry          time.Duration  // in whole seconds, rounded up; 0: none
	UTF8            bool           // Payload Format Indicator: the payload is text
	ContentType     string         // "": none
	ResponseTopic   string         // "": none
	CorrelationData []byte         // nil: none
	UserProperties  []UserProperty // in order; a name may occur more than once
}

// UserProperty is a name and a value that travel with a message [MQTT-3.3.2-17].
type UserProperty struct{ Name, Value string }

// Publish adds messages. They are published when all else is done, in the order in which they
// were added: before that is durable no subscriber gets one. If the queue of a subscriber is
// full, or the client may not publish to a topic, nothing of the transaction is done (client:
// ErrQueueFull, ErrNotAuthorized).
func (t *Txn) Publish(messages ...Message) *Txn {
	for i := range messages {
		if err := messages[i].appendTo(&t.messages); err != nil {
			t.mistake(err)
			return t
		}
	}
	return t
}

// Cancel cancels timers by their IDs (protocol, section 14): messages that the server was to
// deliver later are not delivered, if the transaction is done. An ID has from 1 to 256 bytes;
// there need not be such a timer ([Result.Cancelled]). A message that the transaction publishes
// must not have the ID of a timer that it cancels: by its ID alone it takes the timer's place.
func (t *Txn) Cancel(ids ...string) *Txn {
	for _, id := range ids {
		if len(id) == 0 || len(id) > delay.MaxID {
			t.mistake(fmt.Errorf("Cancel of a timer whose ID has %d bytes: it has from 1 to %d", len(id), delay.MaxID))
			return t
		}
		t.cancels.Begin("CANCEL", id)
	}
	return t
}

// appendTo adds the message as an operation (protocol, section 12).
func (m *Message) appendTo(o *transact.Operations) error {
	seconds := int64(m.Expiry / time.Second)
	if m.Expiry%time.Second > 0 {
		seconds++
	}
	switch {
	case m.QoS > ExactlyOnce:
		return fmt.Errorf("the message to %q has the QoS %d, which there is not", m.Topic, m.QoS)
	case m.Expiry < 0 || seconds > math.MaxUint32:
		return fmt.Errorf("the expiry %v of the message to %q: it must be positive, and at most %d seconds", m.Expiry, m.Topic, uint32(math.MaxUint32))
	}
	if _, reason := delay.ParsePairs(m.UserProperties); reason != "" { // it would be refused as a timer (protocol, section 14)
		return fmt.Errorf("the message to %q: %s", m.Topic, reason)
	}
	o.Begin("PUBLISH", m.Topic)
	o.Bytes(m.Payload)
	if m.QoS != AtLeastOnce {
		o.Word("QOS")
		o.Word([...]string{AtMostOnce: "0", ExactlyOnce: "2"}[m.QoS])
	}
	if m.Retain {
		o.Word("RETAIN")
	}
	if seconds > 0 {
		o.Word("EXPIRY")
		o.Number(seconds)
	}
	if m.UTF8 {
		o.Word("FORMAT")
		o.Word("1")
	}
	if m.ContentType != "" {
		o.Word("TYPE")
		o.Word(m.ContentType)
	}
	if m.ResponseTopic != "" {
		o.Word("RESPONSE")
		o.Word(m.ResponseTopic)
	}
	if m.CorrelationData != nil {
		o.Word("CORRELATION")
		o.Bytes(m.CorrelationData)
	}
	for _, u := range m.UserProperties {
		o.Word("USER")
		o.Word(u.Name)
		o.Word(u.Value)
	}
	return nil
}
