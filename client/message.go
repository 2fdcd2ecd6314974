package client

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/message"
)

// Message is an application message: what a [Session] publishes and receives
// [MQTT-3.3]. Only Topic must be given.
type Message struct {
	Topic           string
	Payload         []byte
	ContentType     string         // "": none
	ResponseTopic   string         // "": none
	CorrelationData []byte         // nil: none
	UserProperties  UserProperties // in order; a name may occur more than once
	UTF8            bool           // Payload Format Indicator: the payload is text
	Retain          bool
	Expiry          time.Duration // in whole seconds, rounded up; 0: none
}

// UserProperty is a name and a value that travel with a message [MQTT-3.3.2-17].
type UserProperty struct{ Name, Value string }

// UserProperties are the user properties of a message, in order.
type UserProperties []UserProperty

// Get returns the first value of a name.
func (u UserProperties) Get(name string) (value string, ok bool) {
	for _, p := range u {
		if p.Name == name {
			return p.Value, true
		}
	}
	return "", false
}

// SizeBytes is an upper bound of the message's MQTT packet at QoS 1.
func (m *Message) SizeBytes() int64 {
	const fixed = 64 // header, lengths, identifiers, and what has a fixed size
	n := fixed + len(m.Topic) + len(m.Payload) + len(m.ContentType) + len(m.ResponseTopic) + len(m.CorrelationData)
	for _, p := range m.UserProperties {
		n += 5 + len(p.Name) + len(p.Value)
	}
	return int64(n)
}

// wireMessage is a [Message] as it is written to and read from a PUBLISH.
type wireMessage = message.Message[UserProperties, UserProperty]
