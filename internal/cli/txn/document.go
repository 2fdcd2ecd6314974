package txn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/jsontext"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// document is a transaction as JSON. Bytes that are not UTF-8 come in the fields that end
// with _base64.
type document struct {
	If      []condition
	Once    []once
	Then    []write
	Publish []message
	Done    []done
	Cancel  []string // IDs of timers
}

// outline is the JSON object with its items unread. Each is read by itself, so that an error
// can say which it is about.
type outline struct {
	If      []json.RawMessage `json:"if"`
	Once    json.RawMessage   `json:"once"` // one, or a list of them
	Then    []json.RawMessage `json:"then"`
	Publish []json.RawMessage `json:"publish"`
	Done    []json.RawMessage `json:"done"`
	Cancel  []json.RawMessage `json:"cancel"`
}

// text is a string, or bytes in base 64; which of the two fields it is in says the struct
// around it.
type text struct {
	name   string // of the field, for errors
	plain  *string
	base64 []byte
}

func (t text) given() bool { return t.plain != nil || t.base64 != nil }

func (t text) bytes() ([]byte, error) {
	switch {
	case t.plain != nil && t.base64 != nil:
		return nil, fmt.Errorf("%s and %s_base64 exclude each other: give one of them", t.name, t.name)
	case t.plain != nil:
		return []byte(*t.plain), nil
	case t.base64 != nil:
		return t.base64, nil
	}
	return nil, fmt.Errorf("%s is missing", t.name)
}

// condition is one on a key: exactly one of its demands must be given.
type condition struct {
	Key          *string `json:"key"`
	KeyBase64    []byte  `json:"key_base64"`
	Exists       *bool   `json:"exists"` // false: there must be no such key
	Value        *string `json:"value"`
	ValueBase64  []byte  `json:"value_base64"`
	Version      *string `json:"version"` // "-": there must be no such key
	MadeBy       *string `json:"made_by"` // a message ID
	MadeByBase64 []byte  `json:"made_by_base64"`
}

// write is a SET if Set or SetBase64 is given, a DEL if Del or DelBase64 is.
type write struct {
	Set          *string `json:"set"` // the key
	SetBase64    []byte  `json:"set_base64"`
	Value        *string `json:"value"`
	ValueBase64  []byte  `json:"value_base64"`
	PX           string  `json:"px"`  // a duration, for example "30s"
	Del          *string `json:"del"` // the key
	DelBase64    []byte  `json:"del_base64"`
	FencingToken string  `json:"fencing_token"`
}

type once struct {
	Key             *string `json:"key"`
	KeyBase64       []byte  `json:"key_base64"`
	MessageID       *string `json:"message_id"`
	MessageIDBase64 []byte  `json:"message_id_base64"`
	Keep            string  `json:"keep"` // a duration; empty: as long as the server says

	Context       *string `json:"context"` // what LOAD gives back
	ContextBase64 []byte  `json:"context_base64"`
	Digest        *string `json:"digest"`
	DigestBase64  []byte  `json:"digest_base64"`
	Open          bool    `json:"open"` // its outputs are still to be published
}

// done is a message whose outputs are published.
type done struct {
	Key             *string `json:"key"`
	KeyBase64       []byte  `json:"key_base64"`
	MessageID       *string `json:"message_id"`
	MessageIDBase64 []byte  `json:"message_id_base64"`
	Version         string  `json:"version"` // that it has produced; empty: any

	Context       *string `json:"context"` // what LOAD gives back
	ContextBase64 []byte  `json:"context_base64"`
}

// message is one to be published.
type message struct {
	Topic             string      `json:"topic"`
	Payload           *string     `json:"payload"`
	PayloadBase64     []byte      `json:"payload_base64"`
	QoS               *int        `json:"qos"` // 1 without it
	Retain            bool        `json:"retain"`
	Expiry            string      `json:"expiry"` // a duration
	UTF8              bool        `json:"utf8"`
	ContentType       string      `json:"content_type"`
	ResponseTopic     string      `json:"response_topic"`
	Correlation       *string     `json:"correlation_data"`
	CorrelationBase64 []byte      `json:"correlation_data_base64"`
	User              [][]*string `json:"user"` // pairs of a name and a value
}

// parse reads a document; there must be nothing behind it, and no field that it does not
// know.
func parse(data []byte) (*document, error) {
	var o outline
	if err := strictly(data, &o); err != nil {
		return nil, fmt.Errorf("the transaction is not the JSON that it should be: %w; see holdfast txn --help", err)
	}
	messages := []json.RawMessage{o.Once}
	switch one := bytes.TrimSpace(o.Once); {
	case len(one) == 0 || string(one) == "null":
		messages = nil
	case one[0] == '[':
		if err := strictly(one, &messages); err != nil {
			return nil, fmt.Errorf("once: %w", err)
		}
	}
	doc := new(document)
	for _, read := range []func() error{
		func() error { return items("if", o.If, &doc.If) },
		func() error { return items("once", messages, &doc.Once) },
		func() error { return items("then", o.Then, &doc.Then) },
		func() error { return items("publish", o.Publish, &doc.Publish) },
		func() error { return items("done", o.Done, &doc.Done) },
		func() error { return items("cancel", o.Cancel, &doc.Cancel) },
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	if len(doc.If)+len(doc.Once)+len(doc.Then)+len(doc.Publish)+len(doc.Done)+len(doc.Cancel) == 0 {
		return nil, errors.New("the transaction is empty: give it a condition, a write or a message; see holdfast txn --help")
	}
	return doc, nil
}

// items reads each item of a list.
func items[T any](field string, raw []json.RawMessage, to *[]T) error {
	*to = make([]T, len(raw))
	for i := range raw {
		if err := strictly(raw[i], &(*to)[i]); err != nil {
			return fmt.Errorf("%s, item %d: %w", field, i+1, err)
		}
	}
	return nil
}

// strictly reads one JSON value, with nothing behind it and no field that it does not know.
func strictly(data []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		read := data[:min(int64(len(data)), syntax.Offset)]
		return fmt.Errorf("line %d, column %d: %w", 1+bytes.Count(read, []byte("\n")), len(read)-1-bytes.LastIndexByte(read, '\n'), err)
	case errors.As(err, &kind) && kind.Field != "":
		return fmt.Errorf("%s must not be a JSON %s", kind.Field, kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("a JSON %s, where there must be another type", kind.Value)
	case err != nil:
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one transaction")
	}
	if err := jsontext.Check(data); err != nil {
		return fmt.Errorf("%w: give bytes that are no text in base 64, as key_base64 or value_base64", err)
	}
	return unique(data)
}

// unique refuses a JSON object that has a field twice: only the last would count. The objects in it
// are read by themselves.
func unique(object []byte) error {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return err // there are no fields
	}
	var fields []string // fewer than there are of a document, as all of them are known
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name := t.(string) // the decoder has found no other
		if slices.ContainsFunc(fields, func(f string) bool { return strings.EqualFold(f, name) }) {
			return fmt.Errorf("the field %q is there twice: give it once", name)
		}
		fields = append(fields, name)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}

// place says which item of the document an operation of its transaction is, from 0.
func (doc *document) place(operation int) string {
	for _, list := range []struct {
		field string
		items int
	}{{"if", len(doc.If)}, {"once", len(doc.Once)}, {"then", len(doc.Then)}, {"publish", len(doc.Publish)}, {"done", len(doc.Done)}, {"cancel", len(doc.Cancel)}} {
		if 0 <= operation && operation < list.items {
			return fmt.Sprintf("%s, item %d", list.field, operation+1)
		}
		operation -= list.items
	}
	return "the transaction"
}

// build adds what the document says to a transaction.
func (doc *document) build(t *txn.Txn) error {
	for i := range doc.If {
		c, err := doc.If[i].build()
		if err != nil {
			return fmt.Errorf("if, item %d: %w", i+1, err)
		}
		t.If(c)
	}
	for i := range doc.Once {
		if err := doc.Once[i].build(t); err != nil {
			return fmt.Errorf("once, item %d: %w", i+1, err)
		}
	}
	for i := range doc.Then {
		w, err := doc.Then[i].build()
		if err != nil {
			return fmt.Errorf("then, item %d: %w", i+1, err)
		}
		t.Then(w)
	}
	for i := range doc.Publish {
		m, err := doc.Publish[i].build()
		if err != nil {
			return fmt.Errorf("publish, item %d: %w", i+1, err)
		}
		t.Publish(m)
	}
	for i := range doc.Done {
		if err := doc.Done[i].build(t); err != nil {
			return fmt.Errorf("done, item %d: %w", i+1, err)
		}
	}
	for i, id := range doc.Cancel {
		if len(id) == 0 || len(id) > delay.MaxID {
			return fmt.Errorf("cancel, item %d: the ID of the timer has %d bytes: it must have 1 to %d", i+1, len(id), delay.MaxID)
		}
		t.Cancel(id)
	}
	return nil
}

func (c *condition) build() (condition txn.Condition, err error) {
	name, err := text{"key", c.Key, c.KeyBase64}.bytes()
	if err != nil {
		return condition, err
	}
	key, value, madeBy := txn.Key(name), text{"value", c.Value, c.ValueBase64}, text{"made_by", c.MadeBy, c.MadeByBase64}
	given := 0
	for _, is := range []bool{c.Exists != nil, value.given(), c.Version != nil, madeBy.given()} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return condition, errors.New("give exactly one of exists, value, version and made_by")
	case c.Exists != nil && *c.Exists:
		return key.Exists(), nil
	case c.Exists != nil:
		return key.Absent(), nil
	case madeBy.given():
		id, err := madeBy.bytes()
		return key.MadeBy(string(id)), err
	case c.Version != nil && *c.Version == "-":
		return key.Absent(), nil
	case c.Version != nil:
		version, err := hlc.Parse(*c.Version)
		if err != nil {
			return condition, fmt.Errorf("version %q: %w", *c.Version, err)
		}
		return key.HasVersion(version), nil
	}
	v, err := value.bytes()
	return key.HasValue(v), err
}

func (w *write) build() (built txn.Write, err error) {
	set, del := text{"set", w.Set, w.SetBase64}, text{"del", w.Del, w.DelBase64}
	value := text{"value", w.Value, w.ValueBase64}
	switch {
	case set.given() == del.given():
		return built, errors.New("give one of set and del, with the key")
	case del.given() && (value.given() || w.PX != ""):
		return built, errors.New("del has neither value nor px")
	case del.given():
		key, err := del.bytes()
		if err != nil {
			return built, err
		}
		return w.fence(txn.Key(key).Del())
	}
	key, err := set.bytes()
	if err != nil {
		return built, err
	}
	v, err := value.bytes()
	if err != nil {
		return built, err
	}
	built = txn.Key(key).Set(v)
	if w.PX != "" {
		px, err := duration("px", w.PX)
		if err != nil {
			return built, err
		}
		built = built.Expire(px)
	}
	return w.fence(built)
}

// fence gives the write its fencing token, if there is one.
func (w *write) fence(built txn.Write) (txn.Write, error) {
	if w.FencingToken == "" {
		return built, nil
	}
	token, err := hlc.Parse(w.FencingToken)
	if err != nil {
		return built, fmt.Errorf("fencing_token %q: %w", w.FencingToken, err)
	}
	return built.Fence(token), nil
}

// nameOf is the key and the ID of a message.
func nameOf(keyText, idText text) (key, id string, err error) {
	k, err := keyText.bytes()
	if err != nil {
		return "", "", err
	}
	m, err := idText.bytes()
	if err != nil {
		return "", "", err
	}
	if len(m) == 0 || len(m) > protocol.MaxMessageID {
		return "", "", fmt.Errorf("message_id has %d bytes: it must have 1 to %d", len(m), protocol.MaxMessageID)
	}
	return string(k), string(m), nil
}

func (d *done) build(t *txn.Txn) error {
	key, id, err := nameOf(text{"key", d.Key, d.KeyBase64}, text{"message_id", d.MessageID, d.MessageIDBase64})
	if err != nil {
		return err
	}
	var version hlc.Timestamp
	if d.Version != "" {
		if version, err = hlc.Parse(d.Version); err != nil {
			return fmt.Errorf("version %q: %w", d.Version, err)
		}
	}
	var left []byte
	if given := (text{"context", d.Context, d.ContextBase64}); given.given() {
		if left, err = given.bytes(); err != nil {
			return err
		}
	}
	t.Done(key, id, version, left)
	return nil
}

func (o *once) build(t *txn.Txn) error {
	key, id, err := nameOf(text{"key", o.Key, o.KeyBase64}, text{"message_id", o.MessageID, o.MessageIDBase64})
	if err != nil {
		return err
	}
	keep := time.Duration(0)
	if o.Keep != "" {
		if keep, err = duration("keep", o.Keep); err != nil {
			return err
		}
	}
	left, digest := text{"context", o.Context, o.ContextBase64}, text{"digest", o.Digest, o.DigestBase64}
	switch {
	case left.given() && digest.given():
		return errors.New("context and digest exclude each other: give one of them")
	case o.Open && digest.given():
		return errors.New("open and digest exclude each other: an open message has a context")
	case !digest.given():
		var b []byte
		if left.given() {
			if b, err = left.bytes(); err != nil {
				return err
			}
		}
		if o.Open {
			t.OnceOpen(key, id, keep, b)
		} else {
			t.OnceWith(key, id, keep, b)
		}
		return nil
	}
	b, err := digest.bytes()
	if err != nil {
		return err
	}
	if len(b) == 0 || len(b) > protocol.MaxDigest {
		return fmt.Errorf("digest has %d bytes: it must have 1 to %d", len(b), protocol.MaxDigest)
	}
	t.Once(key, id, keep).Digest(b)
	return nil
}

func (m *message) build() (built txn.Message, err error) {
	if m.Topic == "" {
		return built, errors.New("topic is missing")
	}
	built = txn.Message{Topic: m.Topic, Retain: m.Retain, UTF8: m.UTF8, ContentType: m.ContentType, ResponseTopic: m.ResponseTopic}
	if built.Payload, err = (text{"payload", m.Payload, m.PayloadBase64}).bytes(); err != nil {
		return built, err
	}
	if correlation := (text{"correlation_data", m.Correlation, m.CorrelationBase64}); correlation.given() {
		if built.CorrelationData, err = correlation.bytes(); err != nil {
			return built, err
		}
	}
	if m.QoS != nil {
		qos, known := map[int]txn.QoS{0: txn.AtMostOnce, 1: txn.AtLeastOnce, 2: txn.ExactlyOnce}[*m.QoS]
		if !known {
			return built, fmt.Errorf("qos %d: want 0, 1 or 2", *m.QoS)
		}
		built.QoS = qos
	}
	if m.Expiry != "" {
		if built.Expiry, err = duration("expiry", m.Expiry); err != nil {
			return built, err
		}
		if built.Expiry > math.MaxUint32*time.Second {
			return built, fmt.Errorf("expiry %q: want at most %d seconds", m.Expiry, uint32(math.MaxUint32))
		}
	}
	for i, u := range m.User {
		if len(u) != 2 || u[0] == nil || u[1] == nil {
			return built, fmt.Errorf("user, pair %d: want two strings, a name and a value", i+1)
		}
		built.UserProperties = append(built.UserProperties, txn.UserProperty{Name: *u[0], Value: *u[1]})
	}
	if _, reason := delay.ParsePairs(built.UserProperties); reason != "" {
		return built, errors.New(reason)
	}
	return built, nil
}

func duration(field, text string) (time.Duration, error) {
	d, err := units.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s %q: want a positive duration such as 1.5s or 2h", field, text)
	}
	return d, nil
}
