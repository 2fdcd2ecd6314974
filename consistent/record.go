package consistent

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// The state is not part of it: code that adds a field to the state returns another one,
// and the same outputs.
//
// record is what STORE remembers of a processing, as its CTX: what the handler took
// from outside, and digests of what it returned, for a replay to be compared with.
//
//	format          1 byte
//	version         uvarint, of the handler
//	now             varint, ns since 1970
//	input           8 bytes of the SHA-256 of its payload
//	captures        uvarint; each: name, value, with their lengths (uvarint) before them,
//	                and 1 byte: 0 a value, 1 the text of an error, 2 that of a Terminal one
//	outputs         uvarint; each: size of the payload (uvarint), and 8 bytes each of the
//	                SHA-256 of topic, payload, and everything else
type record struct {
	version  uint32
	now      time.Time
	input    digest
	captured []capture
	outputs  []outputDigest
}

const recordFormat = 2

// digest is the beginning of a SHA-256.
type digest [8]byte

// What DONE leaves of a message is a format (1 byte) and the digest of its payload, by
// which another message with the same identity is told from a duplicate.
const confirmedFormat = 1

func (d digest) confirmed() []byte { return append([]byte{confirmedFormat}, d[:]...) }

// isOther tells whether what was left of a confirmed message is of another one. A message
// that was confirmed otherwise, by a transaction for example, is taken for the same.
func (d digest) isOther(left []byte) bool {
	return len(left) == 1+len(d) && left[0] == confirmedFormat && !bytes.Equal(left[1:], d[:])
}

type outputDigest struct {
	topic, payload, rest digest
	size                 int // of the payload, bytes
}

func digestOf(b []byte) (d digest) {
	h := sha256.Sum256(b)
	copy(d[:], h[:])
	return d
}

func digestOutput(m *Message) outputDigest {
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
		text(p.Name)
		text(p.Value)
	}
	return outputDigest{digestOf([]byte(m.Topic)), digestOf(m.Payload), digestOf(b), len(m.Payload)}
}

func newRecord(c *Context, input digest, outputs []Message) *record {
	r := &record{version: c.version, now: c.now, input: input, captured: c.captured}
	for i := range outputs {
		r.outputs = append(r.outputs, digestOutput(&outputs[i]))
	}
	return r
}

func (r *record) encode() []byte {
	b := []byte{recordFormat}
	b = binary.AppendUvarint(b, uint64(r.version))
	b = binary.AppendVarint(b, r.now.UnixNano())
	b = append(b, r.input[:]...)
	b = binary.AppendUvarint(b, uint64(len(r.captured)))
	for _, c := range r.captured {
		b = binary.AppendUvarint(b, uint64(len(c.name)))
		b = append(b, c.name...)
		b = binary.AppendUvarint(b, uint64(len(c.value)))
		b = append(b, c.value...)
		b = append(b, byte(c.outcome))
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

// decodeRecord reads what encode wrote. It allocates no more than b holds.
func decodeRecord(b []byte) (*record, error) {
	d := decoder{b: b, ok: true}
	if format := d.take(1); !d.ok || format[0] != recordFormat {
		return nil, errNotARecord
	}
	r := &record{}
	version := d.uvarint()
	r.now = time.Unix(0, d.varint()).UTC()
	copy(r.input[:], d.take(8))
	for n := d.uvarint(); n > 0 && d.ok; n-- {
		name := d.take(d.uvarint())
		c := capture{name: string(name), value: d.take(d.uvarint())}
		if outcome := d.take(1); d.ok {
			c.outcome = captureOutcome(outcome[0])
			d.ok = c.outcome <= takeFailedTerminally
		}
		r.captured = append(r.captured, c)
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
	r.version = uint32(version)
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

// difference describes the first difference of a replay from the first processing, r;
// empty: there is none.
func (r *record) difference(again *record) string {
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
