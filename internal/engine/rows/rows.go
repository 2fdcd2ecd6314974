package rows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
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
// What is remembered for a message has the row r|, the length of the key
// (uvarint), the key and the message ID; its value is
//
//	format      1 byte, 1
//	flags       1 byte: 1 done, 2 there was a value before, 4 there is a context, 8 stepped,
//	            16 its deadline is in a row with those of others
//	version     of the message, as above
//	deadline    ms since the Unix epoch (uvarint)
//	run, step   if stepped: see below (uvarint, varint)
//	value       its length (uvarint) and the value before, if flagged
//	context     the rest, if flagged
//
// and there is a row without a value, x|, the deadline (8 bytes, big-endian), and
// what follows r| in the other: the index in which the clean-up finds what is due. The messages
// that one transaction remembers share a row of the index; see index.go.
// The deadline is in the time of the wall clock, like a key's, but it is read again
// by the server that wrote it. If that server's wall clock has been stepped since
// its start, the row also has that start (run) and how far (step), and within the
// run the deadline is where it was before the step.
//
// The meta record is described in meta.go.
const (
	KeyPrefix    = "k|"
	AfterKeys    = "k}" // the first row that is not a key's
	entryFormat  = 1
	flagToken    = 1
	flagDeadline = 2
	knownFlags   = flagToken | flagDeadline

	MemoPrefix      = "r|"
	AfterMemos      = "r}" // the first row that is not a message's
	IndexPrefix     = "x|"
	AfterIndex      = "x}" // the first row that is not of the index
	indexHead       = len(IndexPrefix) + 8
	memoFormat      = 1
	flagDone        = 1
	flagState       = 2
	flagContext     = 4
	flagStepped     = 8
	flagShared      = 16
	knownMemoFlags  = flagDone | flagState | flagContext | flagStepped | flagShared
	memoFixedFields = 2
)

// Memo is what is remembered under one row.
type Memo struct {
	What   *statestore.Memo // nil: forgotten
	DiskMs int64            // the deadline by which the index has it
	Shared bool             // the row of the index is one of several messages
}

var errTruncated = errors.New("it ends too early")

// EntrySize is the length of what AppendEntry writes.
func EntrySize(entry *statestore.Entry, deadlineMs int64) int {
	n := 2 + stampSize(entry.Version) + len(entry.Value)
	if !entry.Token.IsZero() {
		n += stampSize(entry.Token)
	}
	if deadlineMs != 0 {
		n += uvarintSize(uint64(deadlineMs))
	}
	return n
}

// AppendEntry appends the entry, with the deadline as given, to dst.
func AppendEntry(dst []byte, entry *statestore.Entry, deadlineMs int64) []byte {
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

// Write appends a key's row to the journal: its entry, with the deadline as given, or if
// that is nil its deletion.
func Write(a journal.Append, row []byte, entry *statestore.Entry, deadlineMs int64) {
	if entry == nil {
		a.Delete(row)
		return
	}
	k, v := a.SetDeferred(len(row), EntrySize(entry, deadlineMs))
	copy(k, row)
	AppendEntry(v[:0], entry, deadlineMs)
}

// DecodeEntry fills entry with what b says. The value is a view of b; nodes holds one
// copy of each node ID.
func DecodeEntry(b []byte, nodes map[string]string, entry *statestore.Entry) error {
	if len(b) < 2 {
		return errTruncated
	}
	format, flags := b[0], b[1]
	if format != entryFormat || flags&^knownFlags != 0 {
		return fmt.Errorf("format %d with flags %#x is not known to this version of the program", format, flags)
	}
	*entry = statestore.Entry{}
	b = b[2:]
	var err error
	if entry.Version, b, err = readStamp(b, nodes); err != nil {
		return err
	}
	if flags&flagToken != 0 {
		if entry.Token, b, err = readStamp(b, nodes); err != nil {
			return err
		}
	}
	if flags&flagDeadline != 0 {
		var ms uint64
		if ms, b, err = readUvarint(b); err != nil {
			return err
		}
		if ms == 0 || ms > math.MaxInt64 {
			return fmt.Errorf("deadline %d is out of range", ms)
		}
		entry.DeadlineMs = int64(ms)
	}
	entry.Value = b
	return nil
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
		if nodes != nil {
			nodes[node] = node
		}
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

// MaxMemoRow is how long the row of a memo is at most, in bytes.
func MaxMemoRow(key, message []byte) int {
	return len(MemoPrefix) + binary.MaxVarintLen64 + len(key) + len(message)
}

// AppendMemoRow appends the row under which a message of a key is remembered.
func AppendMemoRow(dst, key, message []byte) []byte {
	dst = append(dst, MemoPrefix...)
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	return append(append(dst, key...), message...)
}

func (m *Memo) flags() (flags byte) {
	if m.What.Done {
		flags |= flagDone
	}
	if m.What.State != nil {
		flags |= flagState
	}
	if m.What.Context != nil {
		flags |= flagContext
	}
	if m.step() != 0 {
		flags |= flagStepped
	}
	if m.Shared {
		flags |= flagShared
	}
	return flags
}

// step is how far the deadline on disk is from the one in memory.
func (m *Memo) step() int64 { return m.DiskMs - m.What.DeadlineMs }

// MemoSize is the length of what AppendMemo writes.
func MemoSize(m *Memo, run int64) int {
	n := memoFixedFields + stampSize(m.What.Version) + uvarintSize(uint64(m.DiskMs))
	flags := m.flags()
	if flags&flagStepped != 0 {
		n += uvarintSize(uint64(run)) + uvarintSize(zigzag(m.step()))
	}
	if flags&flagState != 0 {
		n += uvarintSize(uint64(len(m.What.State))) + len(m.What.State)
	}
	return n + len(m.What.Context)
}

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

// AppendMemo appends what is remembered to dst; run says which run of the server
// this is.
func AppendMemo(dst []byte, m *Memo, run int64) []byte {
	flags := m.flags()
	dst = append(dst, memoFormat, flags)
	dst = appendStamp(dst, m.What.Version)
	dst = binary.AppendUvarint(dst, uint64(m.DiskMs))
	if flags&flagStepped != 0 {
		dst = binary.AppendUvarint(dst, uint64(run))
		dst = binary.AppendVarint(dst, m.step())
	}
	if flags&flagState != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(m.What.State)))
		dst = append(dst, m.What.State...)
	}
	return append(dst, m.What.Context...)
}

// WriteMemo appends the row of a memo to the journal, and its row of the index unless indexMs is 0
// or it shares one. run is as for AppendMemo.
func WriteMemo(a journal.Append, row []byte, m *Memo, indexMs, run int64) {
	k, v := a.SetDeferred(len(row), MemoSize(m, run))
	copy(k, row)
	AppendMemo(v[:0], m, run)
	if indexMs != 0 && !m.Shared {
		k, _ = a.SetDeferred(indexHead+len(row)-len(MemoPrefix), 0)
		AppendIndexRow(k[:0], m.DiskMs, row)
	}
}

// DecodeMemo makes views of b.
func DecodeMemo(b []byte, run int64) (m Memo, err error) {
	if len(b) < memoFixedFields {
		return Memo{}, errTruncated
	}
	format, flags := b[0], b[1]
	if format != memoFormat || flags&^knownMemoFlags != 0 {
		return Memo{}, fmt.Errorf("format %d with flags %#x is not known to this version of the program", format, flags)
	}
	what := &statestore.Memo{Done: flags&flagDone != 0}
	m.What, m.Shared = what, flags&flagShared != 0
	if what.Version, b, err = readStamp(b[memoFixedFields:], nil); err != nil {
		return Memo{}, err
	}
	if b, err = m.readDeadline(b, flags, run); err != nil {
		return Memo{}, err
	}
	if flags&flagState != 0 {
		var n uint64
		if n, b, err = readUvarint(b); err != nil {
			return Memo{}, err
		}
		if n > uint64(len(b)) {
			return Memo{}, errTruncated
		}
		what.State, b = b[:n:n], b[n:]
	}
	switch {
	case flags&flagContext != 0:
		what.Context = b[:len(b):len(b)]
	case len(b) > 0:
		return Memo{}, fmt.Errorf("%d bytes are left over", len(b))
	}
	return m, nil
}

func (m *Memo) readDeadline(b []byte, flags byte, run int64) (rest []byte, err error) {
	ms, b, err := readUvarint(b)
	if err != nil {
		return nil, err
	}
	if ms == 0 || ms > math.MaxInt64 {
		return nil, fmt.Errorf("deadline %d is out of range", ms)
	}
	m.DiskMs, m.What.DeadlineMs = int64(ms), int64(ms)
	if flags&flagStepped == 0 {
		return b, nil
	}
	written, b, err := readUvarint(b)
	if err != nil {
		return nil, err
	}
	step, n := binary.Varint(b)
	if n <= 0 {
		return nil, errTruncated
	}
	if written == uint64(run) {
		m.What.DeadlineMs -= step
	}
	return b[n:], nil
}
