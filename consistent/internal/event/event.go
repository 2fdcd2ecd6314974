// Package event knows messages as events: what identifies one (CloudEvents properties, or
// what stands for them), when it happened, in which trace, and whether it can be published.
package event

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Broken is the name of a user property that marks a message which could not be made of a
// value, and says why.
const Broken = "holdfast-not-encodable"

// TraceContext are the names of the CloudEvents extension for distributed tracing, which has
// them from W3C Trace Context.
var TraceContext = [...]string{"traceparent", "tracestate"}

// ID gives the ID under which the store remembers a message: CloudEvents source and id, or
// what the function of the application returns, which may be nil, or the Response Topic with
// the Correlation Data, which is unique to one requester only; empty without any of them. The
// ID begins with its kind, so that IDs of different kinds differ.
func ID(m *client.Message, application func(*client.Message) string) string {
	id, _ := m.UserProperties.Get("id")
	source, _ := m.UserProperties.Get("source")
	if id != "" && source != "" {
		return "event:" + strconv.Itoa(len(source)) + ":" + source + id
	}
	if application != nil {
		if id := application(m); id != "" {
			return "id:" + id
		}
	}
	if len(m.CorrelationData) > 0 && m.ResponseTopic != "" {
		return fmt.Sprintf("request:%d:%s%s", len(m.ResponseTopic), m.ResponseTopic, m.CorrelationData)
	}
	return ""
}

// maxID is how long the ID of a message may be (protocol, section 9), and maxKey a key of the store
// unless it is set otherwise.
const maxID, maxKey = 1 << 10, 64 << 10

// ErrNoIdentity: nothing tells the message from others.
var ErrNoIdentity = errors.New("the message has no identity: it needs the CloudEvents properties source and id, or a Response Topic with Correlation Data, or the handler the option WithMessageID")

// Identity is the ID of a message, under which the store can remember it.
func Identity(m *client.Message, application func(*client.Message) string) (string, error) {
	id := ID(m, application)
	if id == "" {
		return "", ErrNoIdentity
	}
	return id, CheckID(id)
}

// CheckID tells why the store cannot remember a message under an ID that [ID] has given.
func CheckID(id string) error {
	if len(id) > maxID {
		return fmt.Errorf("its identity has %d bytes, of a kind, source and id, and the store takes %d: give it a shorter one", len(id), maxID)
	}
	return nil
}

// CheckKey tells why the store has no such key.
func CheckKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("the key of its state has %d bytes, and the store takes %d", len(key), maxKey)
	}
	return nil
}

// Time is the CloudEvents time of a message.
func Time(m *client.Message) (time.Time, bool) {
	text, ok := m.UserProperties.Get("time")
	if !ok {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(text))
	return t, err == nil
}

// Same tells whether two messages have the same CloudEvents source and id.
func Same(a, b *client.Message) bool {
	for _, name := range []string{"source", "id"} {
		value, ok := a.UserProperties.Get(name)
		if of, has := b.UserProperties.Get(name); !ok || !has || value != of {
			return false
		}
	}
	return true
}

// Trace is the trace context of a message.
func Trace(m *client.Message) (trace client.UserProperties) {
	for _, name := range TraceContext {
		if value, ok := m.UserProperties.Get(name); ok {
			trace = append(trace, client.UserProperty{Name: name, Value: value})
		}
	}
	return trace
}

// Check tells why a server would refuse a message, or its receiver could not tell it from
// others. limit is the largest packet in bytes; 0: any.
func Check(m *client.Message, limit uint32) error {
	if reason, broken := m.UserProperties.Get(Broken); broken {
		return errors.New(reason)
	}
	switch {
	case !ValidText(m.Topic) || !topic.ValidName([]byte(m.Topic)):
		return errors.New("that is not the name of a topic: it must be UTF-8, not empty, without wildcards")
	case m.ResponseTopic != "" && (!ValidText(m.ResponseTopic) || !topic.ValidName([]byte(m.ResponseTopic))):
		return fmt.Errorf("the response topic %q is not the name of a topic", m.ResponseTopic)
	case !ValidText(m.ContentType) || len(m.CorrelationData) > math.MaxUint16:
		return errors.New("its content type or Correlation Data")
	case m.UTF8 && !utf8.Valid(m.Payload):
		return errors.New("it says that its payload is text, which it is not")
	case m.Expiry < 0:
		return errors.New("its expiry is negative")
	case len(m.UserProperties) > MaxProperties:
		return fmt.Errorf("it has %d user properties, and a server takes %d", len(m.UserProperties), MaxProperties)
	}
	for _, name := range []string{"id", "source"} {
		if value, ok := m.UserProperties.Get(name); ok && value == "" {
			return fmt.Errorf("its CloudEvents %s is empty", name)
		}
	}
	for _, u := range m.UserProperties {
		if !ValidText(u.Name) || !ValidText(u.Value) {
			return fmt.Errorf("its user property %q", u.Name)
		}
	}
	if err := timed.Check(m); err != nil {
		return err
	}
	if limit > 0 && m.SizeBytes() > int64(limit) {
		return fmt.Errorf("%w: %d bytes, the limit is %d bytes", client.ErrTooLarge, m.SizeBytes(), limit)
	}
	return nil
}

// MaxProperties is how many user properties a message has at most: what the server takes by default
// (--max-user-properties). It ends the connection of a client that sends more.
const MaxProperties = 1000

// ValidText tells whether s can be a string of MQTT [MQTT-1.5.4].
func ValidText(s string) bool { return len(s) <= math.MaxUint16 && wire.ValidText(s) }

// Defaults are the CloudEvents properties of an output that it does not have itself.
type Defaults struct {
	Input        *client.Message // an output with its source and id gets others
	ID           func() string
	Source, Type string
	Time         time.Time
	Trace        client.UserProperties

	text string // Time, once it is needed
}

// added is how many properties Complete adds at most, beside the trace context.
const added = 5

// Complete gives an output the properties that it lacks, so that its consumers can tell it from
// others.
func (d *Defaults) Complete(m *client.Message) {
	m.UserProperties = append(make(client.UserProperties, 0, len(m.UserProperties)+added+len(d.Trace)), m.UserProperties...)
	// The handler passes the message on. It may do so twice, and another handler, too,
	// and their consumers would take one for a duplicate of the other; so each gets an
	// identity of its own.
	if Same(m, d.Input) {
		m.UserProperties = slices.DeleteFunc(m.UserProperties, func(u client.UserProperty) bool {
			return u.Name == "id" || u.Name == "source" || u.Name == "time"
		})
	}
	lacks := func(name string) bool { _, has := m.UserProperties.Get(name); return !has }
	add := func(name, value string) {
		m.UserProperties = append(m.UserProperties, client.UserProperty{Name: name, Value: value})
	}
	if lacks("specversion") {
		add("specversion", "1.0")
	}
	if lacks("id") {
		add("id", d.ID())
	}
	if lacks("source") {
		add("source", d.Source)
	}
	if lacks("type") {
		add("type", d.Type)
	}
	if lacks("time") {
		if d.text == "" {
			d.text = d.Time.Format(time.RFC3339Nano)
		}
		add("time", d.text)
	}
	Postpone(m, d.Time)
	for _, u := range d.Trace {
		if lacks(u.Name) {
			add(u.Name, u.Value)
		}
	}
}

// Postpone gives the message of a timer that is set now the CloudEvents time at which it is due, if
// it has an earlier one: the message's age, when it comes, counts from there.
func Postpone(m *client.Message, now time.Time) {
	due, timer := timed.Due(m, now)
	if of, ok := Time(m); !timer || !ok || !due.After(of) {
		return
	}
	m.UserProperties = slices.Clone(m.UserProperties)
	at := slices.IndexFunc(m.UserProperties, func(u client.UserProperty) bool { return u.Name == "time" })
	m.UserProperties[at].Value = due.UTC().Format(time.RFC3339Nano)
}
