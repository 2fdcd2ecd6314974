package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"holdfast/hlc"
	"holdfast/internal/statestore"
)

// On disk a key's row is k| and the key; its value is
//
//	format      1 byte, 1
//	flags       1 byte: 1 there is a token, 2 there is a deadline
//	version     wall, counter (uvarints), length of the node ID (uvarint), node ID
//	token       the same, if flagged
//	deadline    ms since the Unix epoch (uvarint), if flagged
//	value       the rest
//
// Pebble keeps checksums of its blocks and of its log, so there is none here.
// The deadline is in the time of the wall clock when it was written, while the
// one in memory is on a clock that does not step: a machine that started with a
// wrong clock and was set right does not come back with deadlines long past.
//
// The meta record is the format byte and the text of the last version issued.
const (
	keyPrefix    = "k|"
	afterKeys    = "k}" // the first row that is not a key's
	entryFormat  = 1
	metaFormat   = 1
	flagToken    = 1
	flagDeadline = 2
	knownFlags   = flagToken | flagDeadline
)

var errTruncated = errors.New("it ends too early")

// encodedSize is the length of what encodeEntry writes.
func encodedSize(entry *statestore.Entry, deadlineMs int64) int {
	n := 2 + stampSize(entry.Version) + len(entry.Value)
	if !entry.Token.IsZero() {
		n += stampSize(entry.Token)
	}
	if deadlineMs != 0 {
		n += uvarintSize(uint64(deadlineMs))
	}
	return n
}

// encodeEntry appends the entry, with the deadline as given, to dst.
func encodeEntry(dst []byte, entry *statestore.Entry, deadlineMs int64) []byte {
	var flags byte
	if !entry.Token.IsZero() {
		flags |= flagToken
	}
	if deadlineMs != 0 {
		flags |= flagDeadline
	}
	dst = append(dst, entryFormat, flags)
	dst = appendStamp(dst, entry.Version)
	if flags&flagToken != 0 {
		dst = appendStamp(dst, entry.Token)
	}
	if flags&flagDeadline != 0 {
		dst = binary.AppendUvarint(dst, uint64(deadlineMs))
	}
	return append(dst, entry.Value...)
}

// decodeEntry copies what it keeps of b. nodes holds one copy of each node ID.
func decodeEntry(b []byte, nodes map[string]string) (*statestore.Entry, error) {
	if len(b) < 2 {
		return nil, errTruncated
	}
	format, flags := b[0], b[1]
	if format != entryFormat || flags&^knownFlags != 0 {
		return nil, fmt.Errorf("format %d with flags %#x is not known to this version of the program", format, flags)
	}
	entry := &statestore.Entry{}
	b = b[2:]
	var err error
	if entry.Version, b, err = readStamp(b, nodes); err != nil {
		return nil, err
	}
	if flags&flagToken != 0 {
		if entry.Token, b, err = readStamp(b, nodes); err != nil {
			return nil, err
		}
	}
	if flags&flagDeadline != 0 {
		var ms uint64
		if ms, b, err = readUvarint(b); err != nil {
			return nil, err
		}
		if ms == 0 || ms > math.MaxInt64 {
			return nil, fmt.Errorf("deadline %d is out of range", ms)
		}
		entry.DeadlineMs = int64(ms)
	}
	entry.Value = append([]byte{}, b...)
	return entry, nil
}

func uvarintSize(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func stampSize(ts hlc.Timestamp) int {
	return uvarintSize(ts.Wall) + uvarintSize(ts.Counter) + uvarintSize(uint64(len(ts.Node))) + len(ts.Node)
}

func appendStamp(dst []byte, ts hlc.Timestamp) []byte {
	dst = binary.AppendUvarint(dst, ts.Wall)
	dst = binary.AppendUvarint(dst, ts.Counter)
	dst = binary.AppendUvarint(dst, uint64(len(ts.Node)))
	return append(dst, ts.Node...)
}

func readStamp(b []byte, nodes map[string]string) (ts hlc.Timestamp, rest []byte, err error) {
	if ts.Wall, b, err = readUvarint(b); err != nil {
		return ts, nil, err
	}
	if ts.Counter, b, err = readUvarint(b); err != nil {
		return ts, nil, err
	}
	n, b, err := readUvarint(b)
	if err != nil {
		return ts, nil, err
	}
	if n == 0 || n > uint64(len(b)) {
		return ts, nil, errTruncated
	}
	node, known := nodes[string(b[:n])]
	if !known {
		node = string(b[:n])
		nodes[node] = node
	}
	ts.Node = node
	return ts, b[n:], nil
}

func readUvarint(b []byte) (v uint64, rest []byte, err error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errTruncated
	}
	return v, b[n:], nil
}

func encodeMeta(dst []byte, last hlc.Timestamp) []byte {
	if last.IsZero() {
		return dst // nothing was issued yet
	}
	return last.Append(append(dst, metaFormat))
}

func decodeMeta(b []byte) (hlc.Timestamp, error) {
	if len(b) == 0 {
		return hlc.Timestamp{}, nil
	}
	if b[0] != metaFormat {
		return hlc.Timestamp{}, fmt.Errorf("the record of the last version has format %d, which is not known to this version of the program", b[0])
	}
	last, err := hlc.Parse(string(b[1:]))
	if err != nil {
		return hlc.Timestamp{}, fmt.Errorf("the record of the last version, %q, cannot be read: %w", b[1:], err)
	}
	return last, nil
}
