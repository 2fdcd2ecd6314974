package fromserver

import (
	"bytes"
	"io"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

const (
	// readBytes is the size of a reader's first buffer.
	readBytes = 16 << 10
	// roomBytes is the least room with which a reader reads from its source.
	roomBytes = 2 << 10
	// keepBytes is the largest buffer that a reader keeps when it is empty.
	keepBytes = 1 << 20
)

// Frame is a whole packet: views that are valid until the next one is read.
type Frame struct {
	Header byte
	Body   []byte // what follows the fixed header
	Bytes  []byte // all of it
}

// Type is the packet's type.
func (f Frame) Type() mqtt.Type { return mqtt.TypeOf(f.Header) }

// Clone returns a packet of its own.
func (f Frame) Clone() Frame {
	whole := bytes.Clone(f.Bytes)
	return Frame{f.Header, whole[len(whole)-len(f.Body):], whole}
}

// Reader cuts a stream into packets. It belongs to one goroutine. Its buffer grows with
// the bytes that have arrived, to at most twice as many, and not with the length that a
// packet claims.
type Reader struct {
	from      io.Reader
	maxPacket int    // in bytes
	in        []byte // read from the stream
	taken     int    // of in: handed out as packets
}

// NewReader reads packets of up to maxPacket bytes.
func NewReader(from io.Reader, maxPacket int) *Reader {
	return &Reader{from: from, maxPacket: maxPacket}
}

// Buffered returns the next packet if it has been read whole; ok is false if not. The
// error is an [*mqtt.Error]: bytes that are no packet, or a packet that is too large, which
// is refused by its length alone.
func (r *Reader) Buffered() (f Frame, ok bool, err error) {
	unread := r.in[r.taken:]
	header, body, n, _, err := mqtt.Split(unread, r.maxPacket)
	if err != nil || n == 0 {
		return Frame{}, false, err
	}
	r.taken += n
	return Frame{header, body, unread[:n]}, true, nil
}

// Unread is the first bytes of what has not been returned: for messages about an error.
func (r *Reader) Unread() []byte {
	unread := r.in[r.taken:]
	return unread[:min(len(unread), 32)]
}

// Fill reads once from the stream. What was returned before is valid no longer.
func (r *Reader) Fill() error {
	unread := len(r.in) - r.taken
	switch size := cap(r.in); {
	case unread == 0 && (size == 0 || size > keepBytes):
		r.in = make([]byte, 0, readBytes)
	case size-unread < roomBytes:
		r.in = append(make([]byte, 0, 2*size), r.in[r.taken:]...)
	default:
		r.in = append(r.in[:0], r.in[r.taken:]...)
	}
	r.taken = 0
	n, err := r.from.Read(r.in[len(r.in):cap(r.in)])
	r.in = r.in[:len(r.in)+n]
	if n > 0 {
		return nil
	}
	return err
}

// Next waits for the next packet. What has arrived of a packet at an error of the stream,
// such as a deadline, is kept.
func (r *Reader) Next() (Frame, error) {
	for {
		if f, ok, err := r.Buffered(); ok || err != nil {
			return f, err
		}
		if err := r.Fill(); err != nil {
			return Frame{}, err
		}
	}
}
