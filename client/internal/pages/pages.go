// Package pages is SCAN on the wire (protocol, section 7), as a client writes and reads it:
// the words of a request, and the entries of a page. Package client has the API.
package pages

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Options say what a page has. Details needs Values.
type Options struct{ Values, Details, Binary bool }

// Entry is a key of a page; what the Options don't ask for is zero.
type Entry struct {
	Key      string
	Value    []byte // nil if TooLarge
	TooLarge bool   // the value doesn't fit in a packet that the client takes
	Version  hlc.Timestamp
	Expiry   time.Duration // until the key expires; 0: it never does
	Token    hlc.Timestamp // the fencing token; zero: none
}

// Words are those of the request for a page; token is nil for the first.
func (o Options) Words(pattern string, token []byte) [][]byte {
	words := [][]byte{[]byte("SCAN"), []byte(pattern)}
	if token != nil {
		words = append(words, token)
	}
	for _, option := range []struct {
		asked bool
		word  string
	}{{o.Values, "VALUES"}, {o.Details, "DETAILS"}, {o.Binary, "BINARY"}} {
		if option.asked {
			words = append(words, []byte(option.word))
		}
	}
	return words
}

// Read takes a page apart: *1 *n entries, and if more may follow *2 *n entries $token.
func (o Options) Read(r *protocol.Response) (entries []Entry, next []byte, ok bool) {
	if r.Kind != protocol.Array || len(r.Array) < 1 || len(r.Array) > 2 || r.Array[0].Kind != protocol.Array {
		return nil, nil, false
	}
	entries = make([]Entry, len(r.Array[0].Array))
	for i := range entries {
		if !o.readEntry(&entries[i], &r.Array[0].Array[i]) {
			return nil, nil, false
		}
	}
	if len(r.Array) == 1 {
		return entries, nil, true
	}
	if r.Array[1].Kind != protocol.Blob {
		return nil, nil, false
	}
	return entries, r.Array[1].Blob, true
}

// readEntry reads a key, or an array of key, value and version, with expiry and token behind
// them if details are asked for.
func (o Options) readEntry(e *Entry, r *protocol.Response) bool {
	if !o.Values {
		e.Key = string(r.Blob)
		return r.Kind == protocol.Blob
	}
	elements := 3
	if o.Details {
		elements = 5
	}
	if r.Kind != protocol.Array || len(r.Array) != elements || r.Array[0].Kind != protocol.Blob {
		return false
	}
	e.Key = string(r.Array[0].Blob)
	switch value := &r.Array[1]; value.Kind {
	case protocol.Blob:
		e.Value = append([]byte{}, value.Blob...) // not a view of the whole page
	case protocol.Nil:
		e.TooLarge = true
	default:
		return false
	}
	var err error
	if e.Version, err = hlc.ParseBytes(r.Array[2].Blob); err != nil {
		return false
	}
	return !o.Details || e.readDetails(&r.Array[3], &r.Array[4])
}

func (e *Entry) readDetails(expiry, token *protocol.Response) bool {
	const longest = int64(1<<63-1) / int64(time.Millisecond)
	if expiry.Kind != protocol.Int || expiry.Int < -1 || expiry.Int == 0 {
		return false
	}
	if expiry.Int > 0 {
		e.Expiry = time.Duration(min(expiry.Int, longest)) * time.Millisecond
	}
	if token.Kind == protocol.Nil {
		return true
	}
	var err error
	e.Token, err = hlc.ParseBytes(token.Blob)
	return err == nil
}
