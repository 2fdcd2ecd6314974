// Package deadletter reads the dead letters that processors of package consistent keep in
// the store: messages that could not be processed, as they came, with the reason. The
// commands of holdfast dead-letters use it.
//
//	for letter, err := range deadletter.List(ctx, c, "range") {
//		if err != nil { … }
//		fmt.Println(letter.ID, letter.Code, letter.Reason)
//	}
//
// A letter is the value of the key dead-letters/PROCESSOR/ID, as one JSON object. It
// expires (consistent.WithKeptDeadLetters). Its ID is made of the handler and the message,
// so that a message which is dead-lettered twice is kept once.
package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Code says why a message is a dead letter, for programs.
type Code string

// The codes.
const (
	NoHandler        Code = "no-handler"        // no handler of the processor wants the topic
	NoIdentity       Code = "no-identity"       // nothing tells the message from others
	IdentityReused   Code = "identity-reused"   // another message was processed under its identity
	NoKey            Code = "no-key"            // the key function gave the empty string
	Undecodable      Code = "undecodable"       // the payload is not what the handler takes
	StateUndecodable Code = "state-undecodable" // the state is not what the handler takes
	TooOld           Code = "too-old"           // it may be a duplicate of a forgotten message
	TimeAhead        Code = "time-ahead"        // its time is too far ahead
	InvalidOutput    Code = "invalid-output"    // the handler returned a message that can't be published
	TooLarge         Code = "too-large"         // a state or an output is larger than the server takes
	NonDeterministic Code = "non-deterministic" // a replay returned something else
	Panicked         Code = "panic"             // the handler panicked
	Terminal         Code = "terminal"          // the handler returned a terminal error
	Attempts         Code = "attempts"          // the last attempt of the handler failed
	Refused          Code = "refused"           // the server refuses the state or an output
)

// Prefix begins the keys of all dead letters.
const Prefix = "dead-letters/"

// Letter is a dead letter.
type Letter struct {
	Processor string // with its namespace before it, if it has one: "plant/range"
	ID        string // 32 hexadecimal digits
	Code      Code
	Reason    string // for a person
	Handler   string
	Key       string // the business key; empty if there was none
	MessageID string // the identity; empty if there was none
	Time      time.Time
	Message   client.Message // as it came
	Omitted   int            // bytes that had to be left out, because the letter would be larger than the server takes: the payload; or the message, if its properties are too large, too

	// Version is that of the key: set by List and Get.
	Version hlc.Timestamp

	value []byte // as it was read
}

// StoreKey is the key of the letter.
func (l *Letter) StoreKey() string { return Prefix + l.Processor + "/" + l.ID }

// MakeID makes the ID of a letter of its handler, its key, its message ID and its message's
// topic and payload.
func (l *Letter) MakeID() string {
	h := sha256.New()
	for _, s := range []string{l.Handler, l.Key, l.MessageID, l.Message.Topic, string(l.Message.Payload)} {
		h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// stored is a letter as JSON. Byte strings that need not be UTF-8 are in base 64.
type stored struct {
	Format    int       `json:"format"`
	Code      Code      `json:"code"`
	Reason    string    `json:"reason"`
	Handler   string    `json:"handler"`
	Key       []byte    `json:"key_base64,omitempty"`
	MessageID []byte    `json:"message_id_base64,omitempty"`
	Time      time.Time `json:"time"`
	Omitted   int       `json:"omitted_bytes,omitempty"`
	Message   struct {
		Topic           string      `json:"topic"`
		Payload         []byte      `json:"payload_base64"`
		ContentType     string      `json:"content_type,omitempty"`
		ResponseTopic   string      `json:"response_topic,omitempty"`
		CorrelationData []byte      `json:"correlation_data_base64,omitempty"`
		UserProperties  [][2]string `json:"user_properties,omitempty"`
		UTF8            bool        `json:"utf8,omitempty"`
		Retain          bool        `json:"retain,omitempty"`
	} `json:"message"`
}

const format = 1

// Encode makes the value of the letter's key. With withPayload false the payload is left
// out, and Omitted says its size.
func (l *Letter) Encode(withPayload bool) ([]byte, error) {
	m := &l.Message
	s := stored{Format: format, Code: l.Code, Reason: l.Reason, Handler: l.Handler, Key: []byte(l.Key), MessageID: []byte(l.MessageID), Time: l.Time, Omitted: l.Omitted}
	s.Message.Topic, s.Message.Payload, s.Message.ContentType = m.Topic, m.Payload, m.ContentType
	s.Message.ResponseTopic, s.Message.CorrelationData = m.ResponseTopic, m.CorrelationData
	s.Message.UTF8, s.Message.Retain = m.UTF8, m.Retain
	for _, u := range m.UserProperties {
		s.Message.UserProperties = append(s.Message.UserProperties, [2]string{u.Name, u.Value})
	}
	if !withPayload {
		s.Message.Payload, s.Omitted = nil, len(m.Payload)
	}
	return json.Marshal(&s)
}

// Decode reads what Encode has made.
func Decode(processor, id string, value []byte) (Letter, error) {
	var s stored
	if err := json.Unmarshal(value, &s); err != nil {
		return Letter{}, fmt.Errorf("dead letter %s of %s cannot be read: %w", id, processor, err)
	}
	if s.Format != format {
		return Letter{}, fmt.Errorf("dead letter %s of %s has format %d, which this version of the program does not know", id, processor, s.Format)
	}
	l := Letter{Processor: processor, ID: id, Code: s.Code, Reason: s.Reason, Handler: s.Handler, Key: string(s.Key), MessageID: string(s.MessageID), Time: s.Time, Omitted: s.Omitted, value: value}
	l.Message = client.Message{Topic: s.Message.Topic, Payload: s.Message.Payload, ContentType: s.Message.ContentType,
		ResponseTopic: s.Message.ResponseTopic, CorrelationData: s.Message.CorrelationData, UTF8: s.Message.UTF8, Retain: s.Message.Retain}
	for _, u := range s.Message.UserProperties {
		l.Message.UserProperties = append(l.Message.UserProperties, client.UserProperty{Name: u[0], Value: u[1]})
	}
	return l, nil
}

// List gives the dead letters of a processor, of all if processor is empty, in the order of
// their keys. A letter that can't be read is an error and does not end the sequence;
// any other error does.
func List(ctx context.Context, c *client.Client, processor string) iter.Seq2[Letter, error] {
	pattern := client.LiteralPattern(Prefix) + "*"
	if processor != "" {
		pattern = client.LiteralPattern(Prefix+processor+"/") + "*"
	}
	return func(yield func(Letter, error) bool) {
		for e, err := range c.ScanValues(ctx, pattern) {
			if err != nil {
				yield(Letter{}, err)
				return
			}
			owner, id, ok := split(e.Key)
			if !ok || processor != "" && owner != processor {
				continue
			}
			l, err := Decode(owner, id, e.Bytes)
			l.Version = e.Version
			if !yield(l, err) {
				return
			}
		}
	}
}

// split takes a key apart.
func split(key string) (processor, id string, ok bool) {
	rest, ok := strings.CutPrefix(key, Prefix)
	i := strings.LastIndexByte(rest, '/')
	if !ok || i <= 0 || len(rest)-i-1 != 32 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

// ErrNotFound: there is no such dead letter. It may have expired.
var ErrNotFound = errors.New("there is no such dead letter")

// Get reads one letter.
func Get(ctx context.Context, c *client.Client, processor, id string) (Letter, error) {
	l := Letter{Processor: processor, ID: id}
	v, found, err := c.Get(ctx, l.StoreKey())
	switch {
	case err != nil:
		return Letter{}, err
	case !found:
		return Letter{}, fmt.Errorf("%w: %s of processor %s", ErrNotFound, id, processor)
	}
	l, err = Decode(processor, id, v.Bytes)
	l.Version = v.Version
	return l, err
}

// Replay publishes the message of a letter, which List or Get has read, to the topic by
// which it came, as it came, and then drops the letter, unless the message has become a dead
// letter again meanwhile. The message keeps its identity: handlers that have processed it
// take it for a duplicate, and so does the handler that could not, if it was interrupted
// between the two. A letter without its payload is an error.
func Replay(ctx context.Context, c *client.Client, s *client.Session, l *Letter) error {
	if l.Omitted > 0 {
		return fmt.Errorf("dead letter %s of %s is kept without its payload of %d bytes: publish the message again at its source", l.ID, l.Processor, l.Omitted)
	}
	m := l.Message
	m.Retain = false // what came live is not retained again
	if err := s.Publish(ctx, m); err != nil {
		return err
	}
	_, err := c.Del(ctx, l.StoreKey(), client.IfValue(l.value))
	if errors.Is(err, client.ErrNotApplied) {
		return nil
	}
	return err
}

// Drop deletes a letter; one that is gone is no error.
func Drop(ctx context.Context, c *client.Client, l *Letter) error {
	_, err := c.Del(ctx, l.StoreKey())
	return err
}
