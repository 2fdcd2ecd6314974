package rows

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// The index of deadlines
//
// A message has a row in it, as rows.go says. Those that one transaction remembers anew have the
// same deadline, and one row:
//
//	x|          and the deadline (8 bytes, big-endian)
//	0           1 byte, where another row has the length of a key, which is never 0
//	version     of the first message, as in rows.go: no other row has it
//
// whose value is what follows r| in the row of each message, behind its length (uvarint). It stays
// until all of its messages are due. What one of them is remembered by may have another deadline,
// and another row, by then: then this row has its name for nothing.

// AppendIndexRow appends the row of the index that goes with a memo's row.
func AppendIndexRow(dst []byte, diskMs int64, memoRow []byte) []byte {
	return append(appendIndexHead(dst, diskMs), memoRow[len(MemoPrefix):]...)
}

func appendIndexHead(dst []byte, diskMs int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, IndexPrefix...), uint64(diskMs))
}

// WriteSharedIndex appends the row of the index to the journal that messages share: they have the
// rows and the deadline; first is the version of the first of them.
func WriteSharedIndex(a journal.Append, diskMs int64, first hlc.Timestamp, memoRows [][]byte) {
	size := 0
	for _, row := range memoRows {
		n := len(row) - len(MemoPrefix)
		size += uvarintSize(uint64(n)) + n
	}
	k, v := a.SetDeferred(indexHead+1+stampSize(first), size)
	appendStamp(append(appendIndexHead(k[:0], diskMs), 0), first)
	v = v[:0]
	for _, row := range memoRows {
		v = binary.AppendUvarint(v, uint64(len(row)-len(MemoPrefix)))
		v = append(v, row[len(MemoPrefix):]...)
	}
}

// Index is a row of the index.
type Index struct {
	Row        []byte
	DiskMs     int64
	Names      [][]byte // of its messages: what follows r| in their rows
	Shared     bool
	Unreadable error // of ReadIndex: why the row cannot be decoded
}

// ReadIndex reads the index from one row to before another, until it has so many messages or
// bytes, about; then there may be more.
func ReadIndex(j *journal.Journal, from, to []byte, messages, size int) (all []Index, more bool, err error) {
	err = j.Iterate(from, to, func(row, value []byte) bool {
		x, err := DecodeIndex(bytes.Clone(row), bytes.Clone(value))
		if x.Row = bytes.Clone(row); err != nil {
			x.Unreadable = fmt.Errorf("the row %q of the index cannot be read: %w", row, err)
		}
		all = append(all, x)
		messages, size = messages-max(1, len(x.Names)), size-len(row)-len(value)
		more = messages <= 0 || size <= 0
		return !more
	})
	return all, more, err
}

// DecodeIndex makes views of a row of the index, without Row.
func DecodeIndex(row, value []byte) (x Index, err error) {
	if len(row) <= indexHead {
		return x, errTruncated
	}
	ms := binary.BigEndian.Uint64(row[len(IndexPrefix):])
	if ms > math.MaxInt64 {
		return x, fmt.Errorf("deadline %d is out of range", ms)
	}
	x.DiskMs = int64(ms)
	rest := row[indexHead:]
	if x.Shared = rest[0] == 0; !x.Shared {
		x.Names = [][]byte{rest}
		_, err = KeyOf(rest)
		return x, err
	}
	for len(value) > 0 {
		n, behind, err := readUvarint(value)
		if err != nil || n > uint64(len(behind)) {
			return x, errTruncated
		}
		if _, err := KeyOf(behind[:n]); err != nil {
			return x, err
		}
		x.Names, value = append(x.Names, behind[:n]), behind[n:]
	}
	return x, nil
}

// KeyOf is the key in what follows r| in a memo's row.
func KeyOf(name []byte) ([]byte, error) {
	n, key, err := readUvarint(name)
	if err != nil || n > uint64(len(key)) {
		return nil, errTruncated
	}
	return key[:n], nil
}
