package client

import (
	"math"
	"time"

	"github.com/eclipse/paho.golang/paho"
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

// packet is the PUBLISH of a message.
func (m *Message) packet() *paho.Publish {
	p := &paho.Publish{QoS: 1, Retain: m.Retain, Topic: m.Topic, Payload: m.Payload, Properties: &paho.PublishProperties{
		ContentType:     m.ContentType,
		ResponseTopic:   m.ResponseTopic,
		CorrelationData: m.CorrelationData,
	}}
	if m.UTF8 {
		p.Properties.PayloadFormat = ptr(byte(1))
	}
	if m.Expiry > 0 {
		seconds := math.Ceil(m.Expiry.Seconds())
		p.Properties.MessageExpiry = ptr(uint32(min(seconds, math.MaxUint32)))
	}
	if len(m.UserProperties) > 0 {
		p.Properties.User = make(paho.UserProperties, len(m.UserProperties))
		for i, u := range m.UserProperties {
			p.Properties.User[i] = paho.UserProperty{Key: u.Name, Value: u.Value}
		}
	}
	return p
}

func toMessage(p *paho.Publish) Message {
	m := Message{
		Topic:           p.Topic,
		Payload:         p.Payload,
		ContentType:     p.Properties.ContentType,
		ResponseTopic:   p.Properties.ResponseTopic,
		CorrelationData: p.Properties.CorrelationData,
		Retain:          p.Retain,
	}
	m.UTF8 = p.Properties.PayloadFormat != nil && *p.Properties.PayloadFormat == 1
	if p.Properties.MessageExpiry != nil {
		m.Expiry = time.Duration(*p.Properties.MessageExpiry) * time.Second
	}
	if n := len(p.Properties.User); n > 0 {
		m.UserProperties = make(UserProperties, n)
		for i, u := range p.Properties.User {
			m.UserProperties[i] = UserProperty{Name: u.Key, Value: u.Value}
		}
	}
	return m
}
