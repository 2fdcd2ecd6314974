package txn

import (
	"fmt"
	"math"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
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
		op, err := messages[i].operation()
		if err != nil {
			t.mistake(err)
			return t
		}
		t.messages = append(t.messages, op)
	}
	return t
}

// operation is the message as words (protocol, section 12).
func (m *Message) operation() (transact.Operation, error) {
	o := transact.New("PUBLISH", m.Topic, append([]byte{}, m.Payload...))
	switch m.QoS {
	case AtLeastOnce:
	case AtMostOnce:
		o = o.With("QOS", []byte("0"))
	case ExactlyOnce:
		o = o.With("QOS", []byte("2"))
	default:
		return o, fmt.Errorf("the message to %q has the QoS %d, which there is not", m.Topic, m.QoS)
	}
	if m.Retain {
		o = o.With("RETAIN")
	}
	switch seconds := (m.Expiry + time.Second - 1) / time.Second; {
	case m.Expiry < 0 || seconds > math.MaxUint32:
		return o, fmt.Errorf("the expiry %v of the message to %q: it must be positive, and at most %d seconds", m.Expiry, m.Topic, uint32(math.MaxUint32))
	case m.Expiry > 0:
		o = o.With("EXPIRY", fmt.Appendf(nil, "%d", seconds))
	}
	if m.UTF8 {
		o = o.With("FORMAT", []byte("1"))
	}
	if m.ContentType != "" {
		o = o.With("TYPE", []byte(m.ContentType))
	}
	if m.ResponseTopic != "" {
		o = o.With("RESPONSE", []byte(m.ResponseTopic))
	}
	if m.CorrelationData != nil {
		o = o.With("CORRELATION", append([]byte{}, m.CorrelationData...))
	}
	for _, u := range m.UserProperties {
		o = o.With("USER", []byte(u.Name), []byte(u.Value))
	}
	return o, nil
}
