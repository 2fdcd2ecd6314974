// Package message turns application messages into PUBLISH packets and back. The struct of a
// message is that of package client, which converts to it; the package knows no connection.
package message

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/valid"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// UserProperty is the type of a user property.
type UserProperty interface{ ~struct{ Name, Value string } }

type pair struct{ Name, Value string }

// Message has the fields of client.Message, and the same meaning. S is a list of user
// properties.
type Message[S ~[]E, E UserProperty] struct {
	Topic           string
	Payload         []byte
	ContentType     string
	ResponseTopic   string
	CorrelationData []byte
	UserProperties  S
	UTF8            bool
	Retain          bool
	Expiry          time.Duration
}

// Check finds what cannot be said in a PUBLISH, and what every server would refuse.
func (m *Message[S, E]) Check() error {
	if err := valid.Publish(m.Topic, m.ResponseTopic, m.Expiry); err != nil {
		return err
	}
	switch {
	case !ValidText(m.ContentType):
		return fmt.Errorf("the content type: it must be UTF-8 of up to %d bytes without NUL", wire.MaxString)
	case len(m.CorrelationData) > wire.MaxString:
		return fmt.Errorf("the correlation data has %d bytes, the limit is %d", len(m.CorrelationData), wire.MaxString)
	}
	for i, u := range m.UserProperties {
		if pair := pair(u); !ValidText(pair.Name) || !ValidText(pair.Value) {
			return fmt.Errorf("user property %d: name and value must each be UTF-8 of up to %d bytes without NUL", i+1, wire.MaxString)
		}
	}
	return nil
}

// ValidText reports whether s can be a string of MQTT [MQTT-1.5.4].
func ValidText(s string) bool { return len(s) <= wire.MaxString && wire.ValidUTF8([]byte(s)) }

// Append appends the PUBLISH of a message that was checked.
func (m *Message[S, E]) Append(dst []byte, packetID uint16) []byte {
	var room [1 << 10]byte // on the stack; more is on the heap
	props := append(room[:0], m.Topic...)
	if m.UTF8 {
		props = mqtt.AppendByteProp(props, mqtt.PropPayloadFormat, 1)
	}
	if m.ContentType != "" {
		props = mqtt.AppendStringProp(props, mqtt.PropContentType, m.ContentType)
	}
	if m.ResponseTopic != "" {
		props = mqtt.AppendStringProp(props, mqtt.PropResponseTopic, m.ResponseTopic)
	}
	if m.CorrelationData != nil {
		props = mqtt.AppendStringProp(props, mqtt.PropCorrelationData, m.CorrelationData)
	}
	for _, u := range m.UserProperties {
		props = mqtt.AppendUserProp(props, pair(u).Name, pair(u).Value)
	}
	return mqtt.AppendDelivery(dst, mqtt.V5, &mqtt.Delivery{
		QoS: 1, Retain: m.Retain, PacketID: packetID, Topic: props[:len(m.Topic)], Props: props[len(m.Topic):], Payload: m.Payload,
		HasExpiry: m.Expiry > 0, Expiry: uint32(min(math.Ceil(m.Expiry.Seconds()), math.MaxUint32)),
	})
}

// Of copies a message: its strings to one piece of memory, payload and correlation data to
// another.
func Of[S ~[]E, E UserProperty](p *mqtt.Publish) Message[S, E] {
	var t texts
	t.Grow(len(p.Topic) + len(p.Props.Raw))
	data := make([]byte, 0, len(p.Payload)+len(p.Props.CorrelationData))
	data = append(append(data, p.Payload...), p.Props.CorrelationData...)
	m := Message[S, E]{
		Topic:         t.add(p.Topic),
		Payload:       data[:len(p.Payload):len(p.Payload)],
		ContentType:   t.add(p.Props.ContentType),
		ResponseTopic: t.add(p.Props.ResponseTopic),
		UTF8:          p.Props.PayloadFormat == 1,
		Retain:        p.Retain,
		Expiry:        time.Duration(p.Props.MessageExpiry) * time.Second,
	}
	if p.Props.HasCorrelationData {
		m.CorrelationData = data[len(p.Payload):]
	}
	n := 0
	for range mqtt.UserProps(p.Props.Raw) {
		n++
	}
	if n > 0 {
		m.UserProperties = make(S, 0, n)
		for name, value := range mqtt.UserProps(p.Props.Raw) {
			m.UserProperties = append(m.UserProperties, E(pair{t.add(name), t.add(value)}))
		}
	}
	return m
}

// texts makes strings that are parts of one.
type texts struct{ strings.Builder }

func (t *texts) add(s []byte) string {
	start := t.Len()
	t.Write(s)
	return t.String()[start:]
}
