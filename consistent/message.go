package consistent

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Message is an MQTT application message, in or out.
type Message = client.Message

// UserProperty is a name and a value that travel with a [Message].
type UserProperty = client.UserProperty

// Delivery is a message that was received, and its acknowledgement.
type Delivery = client.Delivery

// Conn is what a [Processor] stands on: the three commands of the store (protocol,
// section 8), and messages at QoS 1. [Dial] makes the real one; package
// consistenttest has one in memory. It is safe for concurrent use.
type Conn interface {
	// Load is [client.Client.Load].
	Load(ctx context.Context, key, messageID string) (client.LoadResult, error)
	// Store is [client.Client.Store]. After an error it may or may not have been executed.
	Store(ctx context.Context, r StoreRequest) (client.StoreResult, error)
	// Done is [client.Client.Done].
	Done(ctx context.Context, key, messageID string) (remembered bool, err error)
	// Publish sends messages in this order and returns nil when all of them are
	// acknowledged, as [client.Session.Publish].
	Publish(ctx context.Context, messages ...Message) error
	// Subscribe is [client.Session.Subscribe].
	Subscribe(ctx context.Context, filters ...string) error
	// Messages is [client.Session.Messages].
	Messages(ctx context.Context) iter.Seq2[Delivery, error]
	// MaxPacketSize is the largest packet, in bytes, that the server takes; 0: any.
	MaxPacketSize() uint32
}

// StoreRequest asks for a STORE.
type StoreRequest struct {
	Key       string
	State     []byte
	MessageID string
	Version   hlc.Timestamp // that of the state which the message was processed on; zero: there was none
	Captured  []byte        // what Load is to give back to a duplicate
	Keep      time.Duration // for how long the message is remembered
}

// JSON makes a message of a value, with the content type application/json and the name
// of its Go type as CloudEvents type. A value that JSON can't express makes a message
// that [Processor] refuses to send, so that its input becomes a dead letter.
func JSON(topic string, v any) Message {
	payload, err := json.Marshal(v)
	if err != nil {
		return Message{UserProperties: client.UserProperties{{Name: brokenProperty, Value: err.Error()}}}
	}
	m := Message{Topic: topic, Payload: payload, ContentType: "application/json", UTF8: true}
	if name := typeName(reflect.TypeOf(v)); name != "" {
		m.UserProperties = append(m.UserProperties, UserProperty{Name: "type", Value: name})
	}
	return m
}

// brokenProperty marks a message that JSON could not make.
const brokenProperty = "holdfast-not-encodable"

func typeName(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return ""
	}
	return t.Name()
}

// identify gives the ID under which the store remembers a message: CloudEvents source
// and id, or what WithMessageID returns, or the Correlation Data; empty without any of
// them. The ID begins with its kind, so that IDs of different kinds differ.
func identify(m *Message, application func(*Message) string) string {
	id, _ := m.UserProperties.Get("id")
	source, _ := m.UserProperties.Get("source")
	if id != "" && source != "" {
		return fmt.Sprintf("event:%d:%s%s", len(source), source, id)
	}
	if application != nil {
		if id := application(m); id != "" {
			return "id:" + id
		}
	}
	if len(m.CorrelationData) > 0 {
		return "correlation:" + string(m.CorrelationData)
	}
	return ""
}

// eventTime is the CloudEvents time of a message.
func eventTime(m *Message) (time.Time, bool) {
	text, ok := m.UserProperties.Get("time")
	if !ok {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(text))
	return t, err == nil
}
