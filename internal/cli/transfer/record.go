// Package transfer has the commands export and import: keys as JSON lines, out of a server
// and into one. It reaches servers over MQTT only, as any client does.
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
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// record is a key in a file, a line of JSON. Keys and values that are not UTF-8 are in
// base 64, which encoding/json makes of bytes.
type record struct {
	Key         *string    `json:"key,omitempty"`
	KeyBase64   []byte     `json:"key_base64,omitempty"`
	Value       *string    `json:"value,omitempty"`
	ValueBase64 []byte     `json:"value_base64,omitempty"`
	Version     string     `json:"version,omitempty"`
	Expires     *time.Time `json:"expires,omitempty"` // when the key expires
	Token       string     `json:"fencing_token,omitempty"`
}

// newRecord makes the record of a key that was read at now.
func newRecord(e *client.Entry, now time.Time) *record {
	r := &record{Version: e.Version.String()}
	if utf8.ValidString(e.Key) {
		r.Key = &e.Key
	} else {
		r.KeyBase64 = []byte(e.Key)
	}
	if utf8.Valid(e.Bytes) {
		value := string(e.Bytes)
		r.Value = &value
	} else {
		r.ValueBase64 = e.Bytes
	}
	if e.Expiry > 0 {
		expires := now.Add(e.Expiry).UTC().Truncate(time.Millisecond)
		r.Expires = &expires
	}
	if !e.FencingToken.IsZero() {
		r.Token = e.FencingToken.String()
	}
	return r
}

// entry is a key to be written.
type entry struct {
	line    int64 // in the file, from 1
	key     string
	value   []byte
	expires time.Time // zero: never
	token   hlc.Timestamp
}

// readRecord reads a line. The error says what is wrong with it.
func readRecord(line []byte) (e entry, err error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return e, fmt.Errorf("not a line of an export: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return e, errors.New("something follows the object")
	}
	switch {
	case (r.Key == nil) == (r.KeyBase64 == nil):
		return e, errors.New("want one of key and key_base64")
	case r.Value != nil && r.ValueBase64 != nil:
		return e, errors.New("want one of value and value_base64")
	case r.Key != nil:
		e.key = *r.Key
	default:
		e.key = string(r.KeyBase64)
	}
	if e.value = r.ValueBase64; r.Value != nil {
		e.value = []byte(*r.Value)
	}
	if r.Expires != nil {
		e.expires = *r.Expires
	}
	if r.Token != "" {
		if e.token, err = hlc.Parse(r.Token); err != nil {
			return e, fmt.Errorf("fencing_token: %w", err)
		}
	}
	return e, nil
}
