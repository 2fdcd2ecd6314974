package messages

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// messageRecord is a message as one JSON object. What it doesn't have is left out. Its
// slices are views of the message.
type messageRecord struct {
	Received          string         `json:"received"`
	Topic             string         `json:"topic"`
	QoS               byte           `json:"qos"`
	Retain            bool           `json:"retain"`
	Payload           *string        `json:"payload,omitempty"`
	PayloadBase64     []byte         `json:"payload_base64,omitempty"`
	ContentType       string         `json:"content_type,omitempty"`
	ResponseTopic     string         `json:"response_topic,omitempty"`
	CorrelationBase64 []byte         `json:"correlation_base64,omitempty"`
	Expiry            *uint32        `json:"expiry,omitempty"` // in seconds
	UserProperties    []userProperty `json:"user_properties,omitempty"`
}

type userProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func newMessageRecord(m *mqtt.Publish, at time.Time) *messageRecord {
	r := &messageRecord{
		Received: at.UTC().Format(time.RFC3339Nano), Topic: string(m.Topic), QoS: m.QoS, Retain: m.Retain,
		ContentType: string(m.Props.ContentType), ResponseTopic: string(m.Props.ResponseTopic),
		CorrelationBase64: m.Props.CorrelationData,
	}
	if m.Props.HasMessageExpiry {
		r.Expiry = new(m.Props.MessageExpiry)
	}
	if utf8.Valid(m.Payload) {
		r.Payload = new(string(m.Payload))
	} else {
		r.PayloadBase64 = m.Payload
	}
	for name, value := range mqtt.UserProps(m.Props.Raw) {
		r.UserProperties = append(r.UserProperties, userProperty{string(name), string(value)})
	}
	return r
}

// write prints the record as one line.
func (r *messageRecord) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// messageFormat is a flag that says how messages are printed; see the help of sub.
type messageFormat struct {
	text  string
	parts []messagePart
}

// messagePart appends a part of a line.
type messagePart func(dst []byte, m *mqtt.Publish, at time.Time) []byte

var messageParts = map[byte]messagePart{
	't': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte { return append(dst, m.Topic...) },
	'p': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte { return append(dst, m.Payload...) },
	'x': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte { return hex.AppendEncode(dst, m.Payload) },
	'l': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte {
		return strconv.AppendInt(dst, int64(len(m.Payload)), 10)
	},
	'q': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte { return append(dst, '0'+m.QoS) },
	'r': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte {
		if m.Retain {
			return append(dst, '1')
		}
		return append(dst, '0')
	},
	'I': func(dst []byte, _ *mqtt.Publish, at time.Time) []byte {
		return at.UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z07:00")
	},
	'U': func(dst []byte, _ *mqtt.Publish, at time.Time) []byte {
		return fmt.Appendf(dst, "%d.%06d", at.Unix(), at.Nanosecond()/1000)
	},
	'C': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte { return append(dst, m.Props.ContentType...) },
	'R': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte {
		return append(dst, m.Props.ResponseTopic...)
	},
	'D': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte {
		return append(dst, m.Props.CorrelationData...)
	},
	'E': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte {
		if !m.Props.HasMessageExpiry {
			return dst
		}
		return strconv.AppendUint(dst, uint64(m.Props.MessageExpiry), 10)
	},
	'P': func(dst []byte, m *mqtt.Publish, _ time.Time) []byte {
		separator := ""
		for name, value := range mqtt.UserProps(m.Props.Raw) {
			dst = append(append(append(append(dst, separator...), name...), '='), value...)
			separator = " "
		}
		return dst
	},
	'%': literalPart("%"),
}

var escapes = map[byte]string{'n': "\n", 'r': "\r", 't': "\t", '0': "\x00", '\\': "\\"}

func literalPart(s string) messagePart {
	return func(dst []byte, _ *mqtt.Publish, _ time.Time) []byte { return append(dst, s...) }
}

// Set implements pflag.Value.
func (f *messageFormat) Set(s string) error {
	parts := []messagePart{}
	for rest := s; rest != ""; {
		c := rest[0]
		if c != '%' && c != '\\' {
			n := 1
			for n < len(rest) && rest[n] != '%' && rest[n] != '\\' {
				n++
			}
			parts, rest = append(parts, literalPart(rest[:n])), rest[n:]
			continue
		}
		if len(rest) < 2 {
			return fmt.Errorf("want a letter after the last %c; holdfast sub --help lists them", c)
		}
		if c == '%' {
			part, ok := messageParts[rest[1]]
			if !ok {
				return fmt.Errorf("there is no %s; want %%t, %%p or another that holdfast sub --help lists", rest[:2])
			}
			parts = append(parts, part)
		} else {
			escape, ok := escapes[rest[1]]
			if !ok {
				return fmt.Errorf(`there is no %s; want \n, \r, \t, \0 or \\`, rest[:2])
			}
			parts = append(parts, literalPart(escape))
		}
		rest = rest[2:]
	}
	f.text, f.parts = s, parts
	return nil
}

func (f *messageFormat) String() string { return f.text }

// Type implements pflag.Value.
func (f *messageFormat) Type() string { return "FORMAT" }

func (f *messageFormat) append(dst []byte, m *mqtt.Publish, at time.Time) []byte {
	for _, part := range f.parts {
		dst = part(dst, m, at)
	}
	return dst
}
