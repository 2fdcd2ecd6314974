package consistent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// Codec makes bytes of values and values of bytes: of states ([WithStateCodec]), messages
// ([WithMessageCodec], [Encoded]) and captured values ([CaptureWith]). Encoding the same
// value twice must give the same bytes. It is safe for concurrent use. Package
// consistent/protobuf has one for Protocol Buffers.
type Codec[T any] interface {
	Encode(T) ([]byte, error)
	// Decode must not keep the bytes.
	Decode([]byte) (T, error)
}

// ContentTyper is implemented by codecs that say what content type their bytes have.
type ContentTyper interface{ ContentType() string }

// JSONCodec is the [Codec] that is used without another.
type JSONCodec[T any] struct{}

// Encode implements Codec.
func (JSONCodec[T]) Encode(v T) ([]byte, error) { return json.Marshal(v) }

// Decode implements Codec.
func (JSONCodec[T]) Decode(b []byte) (v T, err error) { return v, json.Unmarshal(b, &v) }

// ContentType implements ContentTyper.
func (JSONCodec[T]) ContentType() string { return "application/json" }

// BytesCodec is the [Codec] of bytes that are passed on as they are.
type BytesCodec struct{}

// Encode implements Codec.
func (BytesCodec) Encode(b []byte) ([]byte, error) { return b, nil }

// Decode implements Codec. It copies.
func (BytesCodec) Decode(b []byte) ([]byte, error) { return append([]byte{}, b...), nil }

// EventTyper is implemented by values that say what their CloudEvents type is.
type EventTyper interface{ EventType() string }

// JSON makes a message of a value, with the content type application/json: see [Encoded].
func JSON(topic string, v any) Message { return Encoded(topic, JSONCodec[any]{}, v) }

// Encoded makes a message of a value that codec encodes, with the content type of the codec
// if it is a [ContentTyper]. If the value is an [EventTyper], the message has its CloudEvents
// type; otherwise it gets the name of the handler that returns it. The name of the Go type
// does not matter, so that renaming it changes no message. A value that can't be encoded
// makes a message that [Processor] refuses to send, so that its input becomes a dead letter.
func Encoded[T any](topic string, codec Codec[T], v T) Message {
	payload, err := codec.Encode(v)
	if err != nil {
		return Message{UserProperties: UserProperties{{Name: event.Broken, Value: fmt.Sprintf("%T cannot be encoded: %v", v, err)}}}
	}
	m := Message{Topic: topic, Payload: payload}
	if t, ok := codec.(ContentTyper); ok {
		m.ContentType = t.ContentType()
		m.UTF8 = m.ContentType == "application/json" || strings.HasPrefix(m.ContentType, "text/")
	}
	if t, ok := any(v).(EventTyper); ok {
		m.UserProperties = append(m.UserProperties, UserProperty{Name: "type", Value: t.EventType()})
	}
	return m
}

// Event makes a message with a CloudEvents identity, for programs that are no processor: the
// topic is still to be set. v is its payload as JSON; a [Message], from [Encoded] for
// example, is taken as it is. Sent again, by a program that was started again for example, it
// must have the same source, ID and payload: then it is processed once. An eventType of ""
// leaves the type that v has. The time is now.
//
// The error is [client.ErrInvalidOption] and says what is missing, or why v can't be encoded.
func Event(source, id, eventType string, v any) (Message, error) {
	m, ok := v.(Message)
	if !ok {
		m = JSON("", v)
	}
	return event.Of(m, source, id, eventType)
}

// Reply makes an output that answers the message: v as JSON, or a [Message] from [Encoded]
// for example, to the message's Response Topic with its Correlation Data. Without a Response
// Topic ok is false: the sender wants no answer.
func Reply(c *Context, v any) (m Message, ok bool) {
	if m, ok = v.(Message); !ok {
		m = JSON("", v)
	}
	m.Topic, m.CorrelationData = c.message.ResponseTopic, bytes.Clone(c.message.CorrelationData)
	return m, m.Topic != ""
}
