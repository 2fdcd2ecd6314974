package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/delayed"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/jsontext"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Message is what is to be published.
type Message struct {
	Topic         string     `json:"topic"`
	Payload       *string    `json:"payload,omitempty"` // as text
	PayloadBase64 *string    `json:"payloadBase64,omitempty"`
	QoS           int        `json:"qos,omitempty"`
	Retain        bool       `json:"retain,omitempty"`
	Properties    Properties `json:"properties,omitzero"`
}

// Properties are those of MQTT 5 that a message may have.
type Properties struct {
	PayloadFormatIndicator *int           `json:"payloadFormatIndicator,omitempty"` // 0 or 1
	MessageExpiryInterval  *uint32        `json:"messageExpiryInterval,omitempty"`  // seconds
	ContentType            *string        `json:"contentType,omitempty"`
	ResponseTopic          *string        `json:"responseTopic,omitempty"`
	CorrelationData        *string        `json:"correlationData,omitempty"` // in base 64
	UserProperties         UserProperties `json:"userProperties,omitempty"`
}

// UserProperty is a name and a value.
type UserProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// UserProperties are those of a message, at most maxUserProperties.
type UserProperties []UserProperty

// maxUserProperties is how many user properties a message may have here. A body of some megabytes
// could name millions, which would take a hundred times as much memory before they are counted.
const maxUserProperties = 65535

// UnmarshalJSON implements json.Unmarshaler. It stops at the bound.
func (u *UserProperties) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	switch begin, err := d.Token(); {
	case err != nil:
		return err
	case begin == nil: // null
		return nil
	case begin != json.Delim('['):
		return errors.New("userProperties must be an array")
	}
	for *u = nil; d.More(); {
		var one UserProperty
		if len(*u) == maxUserProperties {
			return fmt.Errorf("userProperties has more than %d items", maxUserProperties)
		}
		if err := d.Decode(&one); err != nil {
			return err
		}
		*u = append(*u, one)
	}
	return nil
}

// Published says what came of a message.
type Published struct {
	ReasonCode int    `json:"reasonCode"` // MQTT's
	Reason     string `json:"reason"`     // its name
	Matched    int    `json:"matched"`    // sessions and shared subscriptions that get the message
	Delayed    bool   `json:"delayed,omitempty"`
}

const maxText = 65535 // bytes of a string in MQTT

// packet makes a PUBLISH of the message, and decodes it as if a client had sent it: whatever a
// client may not say is refused with the same words.
func (m *Message) packet(bounds mqtt.Bounds, maxSize int) (*mqtt.Publish, error) {
	bad := func(format string, args ...any) (*mqtt.Publish, error) {
		return nil, failed(http.StatusBadRequest, format, args...)
	}
	if m.QoS < 0 || m.QoS > 2 {
		return bad("qos is %d: want 0, 1 or 2", m.QoS)
	}
	p := mqtt.Publish{QoS: byte(m.QoS), Retain: m.Retain, PacketID: 1, Topic: []byte(m.Topic)}
	switch {
	case m.Payload != nil && m.PayloadBase64 != nil:
		return bad("there are payload and payloadBase64: give one of them")
	case m.Payload != nil:
		p.Payload = []byte(*m.Payload)
	case m.PayloadBase64 != nil:
		var err error
		if p.Payload, err = base64.StdEncoding.DecodeString(*m.PayloadBase64); err != nil {
			return bad("payloadBase64 is no base 64 as RFC 4648 has it: %v", err)
		}
	}
	props := &m.Properties
	texts := map[string]string{"topic": m.Topic}
	if f := props.PayloadFormatIndicator; f != nil {
		if *f != 0 && *f != 1 {
			return bad("payloadFormatIndicator is %d: want 0 or 1", *f)
		}
		p.Props.PayloadFormat, p.Props.HasPayloadFormat = byte(*f), true
	}
	if e := props.MessageExpiryInterval; e != nil {
		p.Props.MessageExpiry, p.Props.HasMessageExpiry = *e, true
	}
	if t := props.ContentType; t != nil {
		p.Props.ContentType, p.Props.HasContentType, texts["contentType"] = []byte(*t), true, *t
	}
	if t := props.ResponseTopic; t != nil {
		if *t == "" {
			return bad("responseTopic is empty: leave it out, or give a topic name")
		}
		p.Props.ResponseTopic, p.Props.HasResponseTopic, texts["responseTopic"] = []byte(*t), true, *t
	}
	if c := props.CorrelationData; c != nil {
		data, err := base64.StdEncoding.DecodeString(*c)
		if err != nil {
			return bad("correlationData is no base 64 as RFC 4648 has it: %v", err)
		}
		p.Props.CorrelationData, p.Props.HasCorrelationData, texts["correlationData"] = data, true, string(data)
	}
	for i, u := range props.UserProperties {
		if len(u.Name) > maxText || len(u.Value) > maxText {
			return bad("the name of user property %d has %d bytes, its value %d: MQTT allows %d", i+1, len(u.Name), len(u.Value), maxText)
		}
		p.Props.Raw = mqtt.AppendUserProp(p.Props.Raw, u.Name, u.Value)
	}
	for name, text := range texts {
		if len(text) > maxText {
			return bad("%s has %d bytes: MQTT allows %d", name, len(text), maxText)
		}
	}
	raw := mqtt.AppendPublish(nil, mqtt.V5, &p)
	header, body, n, _, err := mqtt.Split(raw, maxSize)
	if err != nil || n == 0 {
		return nil, &failure{http.StatusRequestEntityTooLarge, fmt.Sprintf("the message makes a packet of %d bytes, and --max-packet-size is %d", len(raw), maxSize), mqtt.PacketTooLarge}
	}
	p = mqtt.Publish{Bounds: bounds}
	var e *mqtt.Error
	if err := p.Decode(mqtt.V5, header, body); errors.As(err, &e) {
		return nil, refusal(e.Code, e.Reason)
	}
	return &p, nil
}

// refusal is the failure for a message that was refused.
func refusal(code mqtt.ReasonCode, reason string) error {
	status := http.StatusBadRequest
	switch code {
	case mqtt.NotAuthorized:
		status = http.StatusForbidden
	case mqtt.QuotaExceeded, mqtt.UnspecifiedError:
		status = http.StatusServiceUnavailable
	case mqtt.PacketTooLarge:
		status = http.StatusRequestEntityTooLarge
	}
	return &failure{status, reason, code}
}

func (a *API) publish(q *request) (any, error) {
	var m Message
	if err := decode(q.body, &m); err != nil {
		return nil, err
	}
	q.detail = "topic " + m.Topic
	l := a.o.Sessions.Limits()
	p, err := m.packet(l.Packet(), l.MaxPacketSize)
	if err != nil {
		return nil, err
	}
	by := known(q.by)
	var code mqtt.ReasonCode
	var reason string
	var when delay.Request
	if p.Topic, when, code, reason = delay.Of(p.Topic, p.Props.Raw); code != mqtt.Success {
		return nil, refusal(code, reason)
	}
	if code, reason = a.judge(by, p); code != mqtt.Success {
		return nil, refusal(code, reason)
	}
	o := message.Outgoing{Topic: p.Topic, Payload: p.Payload, RawProps: p.Props.Raw, QoS: p.QoS, Retain: p.Retain, Quota: access.QuotaOf(a.o.May, by)}
	if by.Owner != "" {
		o.Owner = &by.Owner
	}
	if when.Asked {
		return a.publishLater(by, p, &o, when)
	}
	return a.publishNow(p, &o)
}

// judge says whether the administrator may publish this, and if not, why.
func (a *API) judge(by *access.Identity, p *mqtt.Publish) (code mqtt.ReasonCode, reason string) {
	levels := a.o.Sessions.Limits().MaxTopicLevels
	switch may := a.o.May; {
	case reserved.TooManyLevels(p.Topic, levels):
		return mqtt.TopicNameInvalid, "the topic name has too many levels"
	case reserved.TooManyLevels(p.Props.ResponseTopic, levels):
		return mqtt.TopicNameInvalid, "the response topic has too many levels"
	case p.Props.NotAsFormatted(p.Payload):
		return mqtt.PayloadFormatInvalid, "the Payload Format Indicator promises UTF-8 and the payload is not"
	case a.o.Reserved.Handled(p.Topic):
		return mqtt.NotAuthorized, "this topic is for requests to the state store, which are made over MQTT"
	case a.o.Reserved.Protected(p.Topic):
		return mqtt.NotAuthorized, "only the server publishes to this topic"
	case may != nil && !may.MayPublish(by, p.Topic):
		return mqtt.NotAuthorized, "the policy does not allow this administrator to publish to this topic"
	case may != nil && len(p.Props.ResponseTopic) > 0 && !may.MaySubscribe(by, p.Props.ResponseTopic):
		return mqtt.NotAuthorized, "the response topic must be one that the administrator may subscribe to"
	}
	return mqtt.Success, ""
}

// publishNow publishes a message, and waits until it is durable.
func (a *API) publishNow(p *mqtt.Publish, o *message.Outgoing) (any, error) {
	r := a.o.Sessions
	if p.Props.HasMessageExpiry {
		o.ExpiresAt = r.Now() + int64(p.Props.MessageExpiry)*1000
	}
	r.Journal.Admit()
	var matched int
	var batch journal.Seq
	var code mqtt.ReasonCode
	with := new(message.PublishRows)
	low := false
	r.Do(func(t *session.Turn) {
		if low = r.Journal.Low() && r.NeedsDisk(t, o, with); !low {
			matched, batch, code = r.Publish(t, o, with)
		}
		o.Done()
	})
	if low {
		return nil, refusal(mqtt.QuotaExceeded, "the server's disk is nearly full (--disk-reserve)")
	}
	r.WaitDurable(batch)
	switch {
	case with.Unretained:
		return nil, refusal(code, "the message was delivered, but not retained: the server holds as many retained messages as it may (--max-retained-messages, --max-retained-bytes, --max-retained-per-client)")
	case code.Failed():
		return nil, refusal(code, "no room for this message in the queue of a subscriber (--max-queued-bytes, --max-queued-messages, --max-total-queued-bytes)")
	case matched == 0:
		code = mqtt.NoMatchingSubscribers
	}
	return Published{ReasonCode: int(code), Reason: code.String(), Matched: matched}, nil
}

// publishLater has a message be published later, and waits until that is durable.
func (a *API) publishLater(by *access.Identity, p *mqtt.Publish, o *message.Outgoing, when delay.Request) (any, error) {
	r := a.o.Sessions
	if reason := r.Timers.Judge(when); reason != "" {
		return nil, refusal(mqtt.QuotaExceeded, reason)
	}
	t := delayed.Timer{Request: when, Message: o, Identity: by}
	if p.Props.HasMessageExpiry {
		t.ExpiryMs = max(1, int64(p.Props.MessageExpiry)*1000)
	}
	batch, why := r.Timers.Set(t, nil, nil)
	if code, reason := why.Answer(); code != mqtt.Success {
		return nil, refusal(code, reason)
	}
	r.WaitDurable(batch)
	return Published{Reason: mqtt.Success.String(), Delayed: true}, nil
}

// decode reads one JSON value, and refuses fields that there are not.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return failed(http.StatusBadRequest, "the body is not what /api/v1/openapi.json describes: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return failed(http.StatusBadRequest, "the body has more than one JSON value")
	}
	if err := jsontext.Check(body); err != nil {
		return failed(http.StatusBadRequest, "the body is no text: %v: give payloadBase64 for a payload that is none", err)
	}
	return nil
}
