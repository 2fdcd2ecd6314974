// Package transfer has the commands export and import: keys and retained messages as JSON lines,
// out of a server and into one, and keys out of dumps of Redis and etcd. It reaches servers over
// MQTT only, as any client does.
package transfer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/jsontext"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// record is a key or a retained message in a file, a line of JSON. Bytes that are not UTF-8
// are in base 64, which encoding/json makes of them.
type record struct {
	Key         *string `json:"key,omitempty"`
	KeyBase64   []byte  `json:"key_base64,omitempty"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
	Version     string  `json:"version,omitempty"`
	Token       string  `json:"fencing_token,omitempty"`

	Topic             *string     `json:"topic,omitempty"`
	Payload           *string     `json:"payload,omitempty"`
	PayloadBase64     []byte      `json:"payload_base64,omitempty"`
	QoS               *byte       `json:"qos,omitempty"` // 1 without it
	UTF8              bool        `json:"utf8,omitempty"`
	ContentType       string      `json:"content_type,omitempty"`
	ResponseTopic     string      `json:"response_topic,omitempty"`
	Correlation       *string     `json:"correlation_data,omitempty"`
	CorrelationBase64 []byte      `json:"correlation_data_base64,omitempty"`
	User              [][2]string `json:"user,omitempty"` // names and values

	Expires *time.Time `json:"expires,omitempty"` // when it expires
}

// text gives bytes as a string, or in base 64 if they are not UTF-8.
func text(b []byte) (plain *string, base64 []byte) {
	if utf8.Valid(b) {
		return new(string(b)), nil
	}
	return nil, b
}

// expiry is the time at which something expires that has so long to live at now.
func expiry(now time.Time, left time.Duration) *time.Time {
	return new(now.Add(left).UTC().Truncate(time.Millisecond))
}

// newRecord makes the record of a key that was read at now.
func newRecord(e *client.Entry, now time.Time) *record {
	r := &record{Version: e.Version.String()}
	r.Key, r.KeyBase64 = text([]byte(e.Key))
	r.Value, r.ValueBase64 = text(e.Bytes)
	if e.Expiry > 0 {
		r.Expires = expiry(now, e.Expiry)
	}
	if !e.FencingToken.IsZero() {
		r.Token = e.FencingToken.String()
	}
	return r
}

// newMessageRecord makes the record of a retained message that came at now. Its slices are views of
// the message.
func newMessageRecord(m *mqtt.Publish, now time.Time) *record {
	p := &m.Props
	r := &record{
		Topic: new(string(m.Topic)), QoS: new(m.QoS), UTF8: p.HasPayloadFormat && p.PayloadFormat == 1,
		ContentType: string(p.ContentType), ResponseTopic: string(p.ResponseTopic),
	}
	r.Payload, r.PayloadBase64 = text(m.Payload)
	if p.HasCorrelationData {
		r.Correlation, r.CorrelationBase64 = text(p.CorrelationData)
	}
	if p.HasMessageExpiry {
		r.Expires = expiry(now, time.Duration(p.MessageExpiry)*time.Second)
	}
	for name, value := range mqtt.UserProps(p.Raw) {
		r.User = append(r.User, [2]string{string(name), string(value)})
	}
	return r
}

// entry is a key or a retained message to be written.
type entry struct {
	line    int64     // in the file, from 1; of a dump its number
	expires time.Time // zero: never

	key   string
	value []byte
	token hlc.Timestamp

	message *txn.Message // nil: it is a key
	bytes   []byte       // of a message: its line

	remark string // what the summary says of keys such as this; empty: nothing
	wrong  error  // why it cannot be read, if the import goes on all the same
	skip   bool   // it is not written
	named  bool   // it is named on standard error
}

// name says what it is, for errors.
func (e *entry) name() string {
	if e.message != nil {
		return fmt.Sprintf("topic %.200q", e.message.Topic)
	}
	return fmt.Sprintf("key %.200q", e.key)
}

// likeThis is what a line may be, for errors.
const likeThis = `want an object such as {"key":"k","value":"v"} or {"topic":"t","payload":"p"}, as holdfast export writes it`

// readRecord reads a line. The error says what is wrong with it.
func readRecord(line []byte) (e entry, err error) {
	if k, ok := readKeyLine(line); ok {
		if e, ok := k.entry(); ok {
			return e, nil
		}
	}
	return decodeRecord(line)
}

// decodeRecord reads any line.
func decodeRecord(line []byte) (e entry, err error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return e, fmt.Errorf("not a line of an export: %w; %s", err, likeThis)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return e, errors.New("something follows the object; " + likeThis)
	}
	if err := jsontext.Check(line); err != nil {
		return e, fmt.Errorf("%w: bytes that are no text are in base 64, as key_base64, value_base64 or payload_base64", err)
	}
	if r.Expires != nil {
		e.expires = *r.Expires
	}
	if r.Topic != nil {
		e.bytes = line
		e.message, err = r.message()
		return e, err
	}
	return e, r.key(&e)
}

func (r *record) key(e *entry) (err error) {
	switch {
	case r.Payload != nil || r.PayloadBase64 != nil || r.QoS != nil || r.UTF8 || r.ContentType != "" || r.ResponseTopic != "" || r.Correlation != nil || r.CorrelationBase64 != nil || r.User != nil:
		return errors.New("a message without topic; " + likeThis)
	case r.Key != nil && r.KeyBase64 != nil, r.Key == nil && r.KeyBase64 == nil:
		return errors.New("want one of key and key_base64")
	case r.Value != nil && r.ValueBase64 != nil, r.Value == nil && r.ValueBase64 == nil:
		return errors.New("want one of value and value_base64")
	case r.Key != nil:
		e.key = *r.Key
	default:
		e.key = string(r.KeyBase64)
	}
	if e.key == "" {
		return errors.New("the key is empty: a key has at least one byte")
	}
	if e.value = r.ValueBase64; r.Value != nil {
		e.value = []byte(*r.Value)
	}
	if r.Token != "" {
		if e.token, err = hlc.Parse(r.Token); err != nil {
			return fmt.Errorf("fencing_token: %w", err)
		}
	}
	return nil
}

func (r *record) message() (*txn.Message, error) {
	m := &txn.Message{Topic: *r.Topic, Retain: true, UTF8: r.UTF8, ContentType: r.ContentType, ResponseTopic: r.ResponseTopic}
	switch {
	case r.Key != nil || r.KeyBase64 != nil || r.Value != nil || r.ValueBase64 != nil || r.Token != "" || r.Version != "":
		return nil, errors.New("want a key or a topic, and not both")
	case !topic.ValidName([]byte(m.Topic)):
		return nil, fmt.Errorf("topic %.200q: want UTF-8 that is not empty, without +, # and NUL", m.Topic)
	case r.Payload != nil && r.PayloadBase64 != nil:
		return nil, errors.New("want one of payload and payload_base64")
	case r.Correlation != nil && r.CorrelationBase64 != nil:
		return nil, errors.New("want one of correlation_data and correlation_data_base64")
	case r.Payload != nil:
		m.Payload = []byte(*r.Payload)
	default:
		m.Payload = r.PayloadBase64
	}
	if len(m.Payload) == 0 {
		return nil, errors.New("the payload is empty: no server retains such a message")
	}
	if m.CorrelationData = r.CorrelationBase64; r.Correlation != nil {
		m.CorrelationData = []byte(*r.Correlation)
	}
	if r.QoS != nil {
		qos := [...]txn.QoS{txn.AtMostOnce, txn.AtLeastOnce, txn.ExactlyOnce}
		if int(*r.QoS) >= len(qos) {
			return nil, fmt.Errorf("qos %d: want 0, 1 or 2", *r.QoS)
		}
		m.QoS = qos[*r.QoS]
	}
	for _, u := range r.User {
		m.UserProperties = append(m.UserProperties, txn.UserProperty{Name: u[0], Value: u[1]})
	}
	return m, nil
}
