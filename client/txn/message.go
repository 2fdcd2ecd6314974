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
		op, err := messages[i].operation()
		if err != nil {
			t.mistake(err)
			return t
		}
		t.messages = append(t.messages, op)
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
		t.cancels = append(t.cancels, transact.New("CANCEL", id))
	}
	return t
}

// Words of operations that are made often; they are never changed.
var (
	wordOnce        = []byte("ONCE")
	wordKeep        = []byte("KEEP")
	wordContext     = []byte("CTX")
	wordPublish     = []byte("PUBLISH")
	wordQoS         = []byte("QOS")
	wordRetain      = []byte("RETAIN")
	wordExpiry      = []byte("EXPIRY")
	wordFormat      = []byte("FORMAT")
	wordType        = []byte("TYPE")
	wordResponse    = []byte("RESPONSE")
	wordCorrelation = []byte("CORRELATION")
	wordUser        = []byte("USER")
	wordOne         = []byte("1")
)

// operation is the message as words (protocol, section 12).
func (m *Message) operation() (transact.Operation, error) {
	o := transact.Operation{Name: "PUBLISH", About: m.Topic, Words: make([][]byte, 0, 16+3*len(m.UserProperties))}
	add := func(words ...[]byte) { o.Words = append(o.Words, words...) } // which stay on the stack
	add(wordPublish, []byte(m.Topic), append([]byte{}, m.Payload...))
	switch m.QoS {
	case AtLeastOnce:
	case AtMostOnce:
		add(wordQoS, []byte("0"))
	case ExactlyOnce:
		add(wordQoS, []byte("2"))
	default:
		return o, fmt.Errorf("the message to %q has the QoS %d, which there is not", m.Topic, m.QoS)
	}
	if m.Retain {
		add(wordRetain)
	}
	switch seconds := (m.Expiry + time.Second - 1) / time.Second; {
	case m.Expiry < 0 || seconds > math.MaxUint32:
		return o, fmt.Errorf("the expiry %v of the message to %q: it must be positive, and at most %d seconds", m.Expiry, m.Topic, uint32(math.MaxUint32))
	case m.Expiry > 0:
		add(wordExpiry, fmt.Appendf(nil, "%d", seconds))
	}
	if m.UTF8 {
		add(wordFormat, wordOne)
	}
	if m.ContentType != "" {
		add(wordType, []byte(m.ContentType))
	}
	if m.ResponseTopic != "" {
		add(wordResponse, []byte(m.ResponseTopic))
	}
	if m.CorrelationData != nil {
		add(wordCorrelation, append([]byte{}, m.CorrelationData...))
	}
	for _, u := range m.UserProperties {
		add(wordUser, []byte(u.Name), []byte(u.Value))
	}
	return o, nil
}
