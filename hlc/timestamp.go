package hlc

import (
	"cmp"
	"errors"
	"math"
	"strconv"
	"strings"
	"unsafe"
)

// MaxCounter is the highest counter that is ever issued: issued counters stay
// below 2^31-2, which is what .NET clients can read (protocol, section 4).
// Parsing accepts any unsigned 64-bit counter.
const MaxCounter = 1<<31 - 3

// ErrMalformed is returned for a text that isn't a timestamp.
var ErrMalformed = errors.New("malformed timestamp: want {wall clock ms}:{counter}:{node ID}, two unsigned 64-bit decimals and a node ID that isn't empty and has no colon")

// Timestamp is one reading of a hybrid logical clock: a version or a fencing
// token. The zero value means that there is none. Its text is
// {Wall}:{Counter}:{Node}.
type Timestamp struct {
	Wall    uint64 // milliseconds since the Unix epoch
	Counter uint64 // tells apart what happened within one millisecond
	Node    string // the clock that issued it; neither empty nor with a colon in it
}

// Parse reads {wall}:{counter}:{node}: exactly three parts, two unsigned 64-bit
// decimals (leading zeros are accepted, SDKs pad) and a node ID that isn't empty.
// It returns ErrMalformed for anything else. Node is a part of s.
func Parse(s string) (Timestamp, error) {
	wall, i := decimal(s, 0)
	if i < 0 {
		return Timestamp{}, ErrMalformed
	}
	counter, i := decimal(s, i)
	if i < 0 {
		return Timestamp{}, ErrMalformed
	}
	node := s[i:]
	if node == "" || strings.IndexByte(node, ':') >= 0 {
		return Timestamp{}, ErrMalformed
	}
	return Timestamp{Wall: wall, Counter: counter, Node: node}, nil
}

// ParseBytes is Parse without an allocation: Node is a view of b. It is only
// valid as long as b isn't written to; Clone the timestamp to keep it.
func ParseBytes(b []byte) (Timestamp, error) {
	return Parse(unsafe.String(unsafe.SliceData(b), len(b)))
}

// decimal reads the digits of s from i up to a colon and returns their value
// and the index after the colon, or a negative index.
func decimal(s string, i int) (value uint64, next int) {
	start := i
	for ; i < len(s); i++ {
		digit := uint64(s[i]) - '0'
		if digit > 9 {
			break
		}
		if value > math.MaxUint64/10 || value*10 > math.MaxUint64-digit {
			return 0, -1
		}
		value = value*10 + digit
	}
	if i == start || i == len(s) || s[i] != ':' {
		return 0, -1
	}
	return value, i + 1
}

// Clone returns a copy that shares no memory with whatever t was parsed from.
func (t Timestamp) Clone() Timestamp {
	t.Node = strings.Clone(t.Node)
	return t
}

// Compare orders by wall clock, then counter, then the bytes of the node ID. The
// result is negative if t is older than u, zero if they are equal, else positive.
func (t Timestamp) Compare(u Timestamp) int {
	if t.Wall != u.Wall {
		return cmp.Compare(t.Wall, u.Wall)
	}
	if t.Counter != u.Counter {
		return cmp.Compare(t.Counter, u.Counter)
	}
	return strings.Compare(t.Node, u.Node)
}

// IsZero reports whether t is the zero value, which stands for "no timestamp".
// No text parses to it.
func (t Timestamp) IsZero() bool {
	return t == Timestamp{}
}

// String returns the text of t, numbers without padding. The zero value prints
// as "-", which is how the VER option of SET says "there is no such key".
func (t Timestamp) String() string {
	return string(t.Append(nil))
}

// Append appends the text of t, as String gives it, to dst.
func (t Timestamp) Append(dst []byte) []byte {
	if t.IsZero() {
		return append(dst, '-')
	}
	dst = strconv.AppendUint(dst, t.Wall, 10)
	dst = append(dst, ':')
	dst = strconv.AppendUint(dst, t.Counter, 10)
	dst = append(dst, ':')
	return append(dst, t.Node...)
}

// AppendText is Append as an [encoding.TextAppender]; the error is always nil.
func (t Timestamp) AppendText(dst []byte) ([]byte, error) {
	return t.Append(dst), nil
}

// Next issues the timestamp that follows both last, the last one issued, and ts,
// the one that asks for it; either may be the zero value. wallMs is the machine's
// clock in milliseconds since the Unix epoch. It is the issuing rule of the
// protocol, section 4: the latest of the three wall parts, and a counter one
// above the largest that goes with it, hence at least 1. At MaxCounter the wall
// part advances by one millisecond instead. The result is later than ts and last.
//
// Next doesn't judge: a ts that is too far ahead must be refused before.
func Next(wallMs uint64, last, ts Timestamp, node string) Timestamp {
	wall := max(wallMs, ts.Wall, last.Wall)
	var counter uint64
	if last.Wall == wall {
		counter = last.Counter
	}
	if ts.Wall == wall {
		counter = max(counter, ts.Counter)
	}
	if counter >= MaxCounter {
		return Timestamp{Wall: wall + 1, Counter: 1, Node: node}
	}
	return Timestamp{Wall: wall, Counter: counter + 1, Node: node}
}
