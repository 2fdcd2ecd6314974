// Package record is what STORE and DONE remember of a processing, as bytes: what a handler
// took from outside, and digests of the payload and of what it returned.
package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// Record is what STORE remembers of a processing, as its CTX: what the handler took
// from outside, and digests of what it returned, for a replay to be compared with. The
// state is not part of it: code that adds a field to the state returns another one, and the
// same outputs.
//
//	format          1 byte
//	version         uvarint, of the handler
//	now             varint, ns since 1970
//	input           8 bytes of the SHA-256 of its payload
//	before          with FormatBefore only: the state that it was processed on, with its
//	                length (uvarint) before it
//	captures        uvarint; each: name, value, with their lengths (uvarint) before them,
//	                and 1 byte: 0 a value, 1 the text of an error, 2 that of a Terminal one
//	outputs         uvarint; each: size of the payload (uvarint), and 8 bytes each of the
//	                SHA-256 of topic, payload, and everything else but the trace context
type Record struct {
	Version  uint32
	Now      time.Time
	Input    Digest
	Before   []byte // the state that it was processed on; nil: it is that which LOAD returns
	Captured []Capture
	outputs  []outputDigest
}

// Format is the first byte of a record, and FormatBefore that of one with the state before.
const Format, FormatBefore = 2, 3

// Digest is the beginning of a SHA-256.
type Digest [8]byte

// What DONE leaves of a message is a format (1 byte) and the digest of its payload, by
// which another message with the same identity is told from a duplicate.
const confirmedFormat = 1

// Confirmed makes that of a payload's digest.
func (d Digest) Confirmed() []byte { return append([]byte{confirmedFormat}, d[:]...) }

// IsOther tells whether what was left of a confirmed message is of another one. A message
// that was confirmed otherwise, by a transaction for example, is taken for the same.
func (d Digest) IsOther(left []byte) bool {
	return len(left) == 1+len(d) && left[0] == confirmedFormat && !bytes.Equal(left[1:], d[:])
}

type outputDigest struct {
	topic, payload, rest Digest
	size                 int // of the payload, bytes
}

// DigestOf makes the digest of bytes.
func DigestOf(b []byte) (d Digest) {
	h := sha256.Sum256(b)
	copy(d[:], h[:])
	return d
}

func digestOutput(m *client.Message) outputDigest {
	var b []byte
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	text(m.ContentType)
	text(m.ResponseTopic)
	text(string(m.CorrelationData))
	flags := byte(0)
	if m.Retain {
		flags |= 1
	}
	if m.UTF8 {
		flags |= 2
	}
	b = append(b, flags)
	b = binary.AppendVarint(b, int64(m.Expiry))
	for _, p := range m.UserProperties {
		if !slices.Contains(event.TraceContext[:], p.Name) {
			text(p.Name)
			text(p.Value)
		}
	}
	return outputDigest{DigestOf([]byte(m.Topic)), DigestOf(m.Payload), DigestOf(b), len(m.Payload)}
}

// Capture is a value from outside as JSON, or the text of an error.
type Capture struct {
	Name    string
	Value   []byte
	Outcome Outcome
}

// Outcome says what came of a capture.
type Outcome byte

// The outcomes.
const (
	Taken Outcome = iota
	Failed
	FailedTerminally
)

// New makes the record of a processing.
func New(version uint32, now time.Time, captured []Capture, input Digest, outputs []client.Message) *Record {
	r := &Record{Version: version, Now: now, Input: input, Captured: captured}
	for i := range outputs {
		r.outputs = append(r.outputs, digestOutput(&outputs[i]))
	}
	return r
}

// StateBefore is the state that the message was processed on, of which LOAD has returned loaded.
func (r *Record) StateBefore(loaded []byte) []byte {
	if r.Before != nil {
		return r.Before
	}
	return loaded
}

// Encode makes the CTX of STORE.
func (r *Record) Encode() []byte {
	b := append(make([]byte, 0, 64+len(r.Before)+32*len(r.outputs)), Format)
	b = binary.AppendUvarint(b, uint64(r.Version))
	b = binary.AppendVarint(b, r.Now.UnixNano())
	b = append(b, r.Input[:]...)
	if r.Before != nil {
		b[0] = FormatBefore
		b = binary.AppendUvarint(b, uint64(len(r.Before)))
		b = append(b, r.Before...)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Captured)))
	for _, c := range r.Captured {
		b = binary.AppendUvarint(b, uint64(len(c.Name)))
		b = append(b, c.Name...)
		b = binary.AppendUvarint(b, uint64(len(c.Value)))
		b = append(b, c.Value...)
		b = append(b, byte(c.Outcome))
	}
	b = binary.AppendUvarint(b, uint64(len(r.outputs)))
	for _, o := range r.outputs {
		b = binary.AppendUvarint(b, uint64(o.size))
		b = append(b, o.topic[:]...)
		b = append(b, o.payload[:]...)
		b = append(b, o.rest[:]...)
	}
	return b
}

var errNotARecord = errors.New("what is remembered with the message was not written by this library, or by a newer one")

// Decode reads what Encode wrote. It allocates no more than b holds.
func Decode(b []byte) (*Record, error) {
	d := decoder{b: b, ok: true}
	format := d.take(1)
	if !d.ok || format[0] != Format && format[0] != FormatBefore {
		return nil, errNotARecord
	}
	r := &Record{}
	version := d.uvarint()
	r.Now = time.Unix(0, d.varint()).UTC()
	copy(r.Input[:], d.take(8))
	if format[0] == FormatBefore {
		r.Before = append([]byte{}, d.take(d.uvarint())...)
	}
	for n := d.uvarint(); n > 0 && d.ok; n-- {
		name := d.take(d.uvarint())
		c := Capture{Name: string(name), Value: d.take(d.uvarint())}
		if outcome := d.take(1); d.ok {
			c.Outcome = Outcome(outcome[0])
			d.ok = c.Outcome <= FailedTerminally
		}
		r.Captured = append(r.Captured, c)
	}
	for n := d.uvarint(); n > 0 && d.ok; n-- {
		var o outputDigest
		size := d.uvarint()
		copy(o.topic[:], d.take(8))
		copy(o.payload[:], d.take(8))
		copy(o.rest[:], d.take(8))
		o.size = int(min(size, math.MaxInt))
		r.outputs = append(r.outputs, o)
	}
	if !d.ok || len(d.b) > 0 || version > math.MaxUint32 {
		return nil, errNotARecord
	}
	r.Version = uint32(version)
	return r, nil
}

// decoder takes bytes from the front until they run out.
type decoder struct {
	b  []byte
	ok bool
}

func (d *decoder) take(n uint64) []byte {
	if !d.ok || n > uint64(len(d.b)) {
		d.ok = false
		return nil
	}
	taken := d.b[:n]
	d.b = d.b[n:]
	return taken
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	d.skip(n)
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	d.skip(n)
	return v
}

func (d *decoder) skip(n int) {
	if n <= 0 || !d.ok {
		d.ok, d.b = false, nil
		return
	}
	d.b = d.b[n:]
}

// Difference describes the first difference of a replay from the first processing, r;
// empty: there is none.
func (r *Record) Difference(again *Record) string {
	if len(again.outputs) != len(r.outputs) {
		return fmt.Sprintf("it returned %d outputs; the first time, %d", len(again.outputs), len(r.outputs))
	}
	for i := range r.outputs {
		first, now := r.outputs[i], again.outputs[i]
		which := fmt.Sprintf("output %d of %d", i+1, len(r.outputs))
		switch {
		case first.topic != now.topic:
			return fmt.Sprintf("%s has another topic (digest %x; the first time, %x)", which, now.topic, first.topic)
		case first.payload != now.payload || first.size != now.size:
			return fmt.Sprintf("%s has another payload (%d bytes, digest %x; the first time, %d bytes, digest %x)", which, now.size, now.payload, first.size, first.payload)
		case first.rest != now.rest:
			return fmt.Sprintf("%s has other properties (digest %x; the first time, %x)", which, now.rest, first.rest)
		}
	}
	return ""
}
