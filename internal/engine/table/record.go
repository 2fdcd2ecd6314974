package table

import (
	"encoding/binary"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/slab"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Record is what is known of one key: an entry, or a deletion that is not durable yet (a
// tombstone). The zero Record stands for a key of which nothing is known. It is good until
// the next change of its table. A record stands in a slot of slab.Slots:
//
//	 0  8 bytes   the batch where the last change rides (48 bits), flags
//	 8  8 bytes   wall part of the version (48 bits), length of the key (16)
//	16  4 bytes   counter of the version
//	20  4 bytes   length of the value, unless it is on the Go heap (15 bits), owner (17)
//	24  8 bytes   deadline in ms, on the caller's clock   ┐ if it has one
//	32  4 bytes   place in the heap of deadlines          ┘
//	 …  key, value
//	 …  version   if its head has no room for it: see appendStamp
//	 …  token     if there is one, likewise
//
// A record too large for a slot has all that follows its head on the Go heap, and
// there the number of its place in table.large (4 bytes).
//
// The version of a tombstone is that of the deletion.
type Record struct {
	ref slab.Ref // 0: there is none
	b   []byte   // its slot
}

const (
	recordHead   = 24
	deadlineHead = 8 + 4
	largeBody    = 4
	low48        = 1<<48 - 1
	maxShortKey  = 1<<16 - 1

	ownerBits     = 17
	maxShortValue = 1<<(32-ownerBits) - 1 // more than a slot holds
)

const (
	// MaxOwner is the highest number of an owner.
	MaxOwner = 1<<ownerBits - 1
	// Cost is about what a key takes in memory besides its bytes and its value's: the
	// head of its record, the rest of its slot, its place in the index.
	Cost = recordHead + 24
)

// Flags of a record, in the upper bits of its first word.
const (
	recordTombstone = 1 << (48 + iota)
	recordDeadline
	recordLarge
	recordVersion // the version stands behind the value
	recordToken
	recordByWall // the deadline was read from disk: it follows the wall clock forward
)

func (r Record) word(at int) uint64 { return binary.LittleEndian.Uint64(r.b[at:]) }

func (r Record) has(flag uint64) bool { return r.word(0)&flag != 0 }

// Exists reports whether anything is known of the key.
func (r Record) Exists() bool { return r.ref != 0 }

// Lasting reports whether the record is too large for a slot: then the bytes of its key
// and value never change.
func (r Record) Lasting() bool { return r.has(recordLarge) }

// Live reports whether there is an entry.
func (r Record) Live() bool { return r.ref != 0 && !r.has(recordTombstone) }

// Batch is the number that SetBatch has given last, 0 for none.
func (r Record) Batch() uint64 {
	if r.ref == 0 {
		return 0
	}
	return r.word(0) & low48
}

// Owner is the number that SetOwner has given, 0 for none.
func (r Record) Owner() uint32 {
	if r.ref == 0 {
		return 0
	}
	return binary.LittleEndian.Uint32(r.b[20:]) >> (32 - ownerBits)
}

// SetOwner gives a record that Put has just made an owner, at most MaxOwner.
func (r Record) SetOwner(number uint32) {
	binary.LittleEndian.PutUint32(r.b[20:], binary.LittleEndian.Uint32(r.b[20:])&maxShortValue|number<<(32-ownerBits))
}

// SetBatch gives the record a number of 48 bits; Put resets it to 0.
func (r Record) SetBatch(batch uint64) {
	binary.LittleEndian.PutUint64(r.b, r.word(0)&^low48|batch&low48)
}

// DeadlineMs is the entry's deadline, 0 for none.
func (r Record) DeadlineMs() int64 {
	if !r.has(recordDeadline) {
		return 0
	}
	return int64(r.word(recordHead))
}

func (r Record) setDeadlineMs(ms int64) {
	binary.LittleEndian.PutUint64(r.b[recordHead:], uint64(ms))
}

// SetByWall marks a record that has a deadline as one that BringForward is about.
func (r Record) SetByWall() { binary.LittleEndian.PutUint64(r.b, r.word(0)|recordByWall) }

// place is the record's in the heap of deadlines, if it has a deadline.
func (r Record) place() int { return int(binary.LittleEndian.Uint32(r.b[recordHead+8:])) }

func (r Record) setPlace(place int) {
	binary.LittleEndian.PutUint32(r.b[recordHead+8:], uint32(place))
}

// body is where the record goes on behind its head.
func (r Record) body() int {
	if r.has(recordDeadline) {
		return recordHead + deadlineHead
	}
	return recordHead
}

// large is what follows the head of a record that is too large for a slot. It is
// immutable.
type large struct{ key, value, tail []byte }

// parts are views of a record's key and value, and of what stands behind them.
// While those of a slot are good for as long as the shard is locked and nothing is
// put into its table, those of a large record stay.
func (t *Table) parts(r Record) (key, value, tail []byte) {
	at := r.body()
	if r.has(recordLarge) {
		l := &t.large[binary.LittleEndian.Uint32(r.b[at:])]
		return l.key, l.value, l.tail
	}
	toValue := at + int(r.word(8)>>48)
	toTail := toValue + int(binary.LittleEndian.Uint32(r.b[20:])&maxShortValue)
	return r.b[at:toValue:toValue], r.b[toValue:toTail:toTail], r.b[toTail:]
}

// Entry fills e with the record's entry, but for its token. The value is a view, as
// parts gives it.
func (t *Table) Entry(r Record, e *statestore.Entry) {
	var tail []byte
	_, e.Value, tail = t.parts(r)
	e.Version, _ = t.version(r, tail)
	e.DeadlineMs = r.DeadlineMs()
}

// FencedEntry is the same with the token, which only a write looks at.
func (t *Table) FencedEntry(r Record, e *statestore.Entry) {
	var tail []byte
	_, e.Value, tail = t.parts(r)
	e.Version, tail = t.version(r, tail)
	e.DeadlineMs = r.DeadlineMs()
	if r.has(recordToken) {
		e.Token, _ = t.readStamp(tail)
	}
}

// Key is a view of the record's key, and Value of its value: good until the next change of
// the table, unless the record is lasting.
func (t *Table) Key(r Record) []byte {
	key, _, _ := t.parts(r)
	return key
}

// Value is told with Key.
func (t *Table) Value(r Record) []byte {
	_, value, _ := t.parts(r)
	return value
}

// Version is the entry's, or that of the deletion.
func (t *Table) Version(r Record) hlc.Timestamp {
	_, _, tail := t.parts(r)
	v, _ := t.version(r, tail)
	return v
}

// version returns the record's, and what stands behind it.
func (t *Table) version(r Record, tail []byte) (hlc.Timestamp, []byte) {
	if r.has(recordVersion) {
		return t.readStamp(tail)
	}
	counter := binary.LittleEndian.Uint32(r.b[16:])
	return hlc.Timestamp{Wall: r.word(8) & low48, Counter: uint64(counter), Node: t.ownNode}, tail
}

// appendStamp appends wall, counter and the length of the node ID (uvarints), and the
// node ID.
func appendStamp(dst []byte, ts hlc.Timestamp) []byte {
	dst = binary.AppendUvarint(dst, ts.Wall)
	dst = binary.AppendUvarint(dst, ts.Counter)
	dst = binary.AppendUvarint(dst, uint64(len(ts.Node)))
	return append(dst, ts.Node...)
}

// readStamp reads a stamp that appendStamp has written.
func (t *Table) readStamp(b []byte) (ts hlc.Timestamp, rest []byte) {
	var n int
	ts.Wall, n = binary.Uvarint(b)
	b = b[n:]
	ts.Counter, n = binary.Uvarint(b)
	b = b[n:]
	length, n := binary.Uvarint(b)
	ts.Node = t.node(b[n:][:length])
	return ts, b[n:][length:]
}

// maxNodes bounds what a table keeps of other node IDs than its own: those of
// tokens, and of versions from when the store was called otherwise.
const maxNodes = 8

// node returns a node ID that may be kept, without an allocation for the first few.
func (t *Table) node(view []byte) string {
	if node, known := t.nodes[string(view)]; known {
		return node
	}
	node := string(view)
	if len(t.nodes) < maxNodes {
		if t.nodes == nil {
			t.nodes = map[string]string{}
		}
		t.nodes[node] = node
	}
	return node
}

// shape is what a record will look like.
type shape struct {
	flags    uint64
	size     int
	version  hlc.Timestamp
	deadline int64
	key      []byte
	value    []byte
	tail     []byte
}

// shape prepares a record for the key: of the entry, or if that is nil a tombstone
// with this version.
func (t *Table) shape(key []byte, e *statestore.Entry, deletion hlc.Timestamp) shape {
	s := shape{version: deletion, key: key, flags: recordTombstone, tail: t.tail[:0]}
	if e != nil {
		s.version, s.value, s.deadline, s.flags = e.Version, e.Value, e.DeadlineMs, 0
	}
	if s.version.Node != t.ownNode || s.version.Wall > low48 || s.version.Counter>>32 != 0 {
		s.flags |= recordVersion
		s.tail = appendStamp(s.tail, s.version)
	}
	if e != nil && !e.Token.IsZero() {
		s.flags |= recordToken
		s.tail = appendStamp(s.tail, e.Token)
	}
	s.size = recordHead
	if s.deadline != 0 {
		s.flags |= recordDeadline
		s.size += deadlineHead
	}
	if body := len(key) + len(s.value) + len(s.tail); s.size+body > MaxSlot || len(key) > maxShortKey {
		s.flags |= recordLarge
		s.size += largeBody
	} else {
		s.size += body
	}
	t.tail = s.tail[:0]
	return s
}

// write fills the slot of a record of this shape. number is the place in table.large
// if it needs one. The batch is 0, and so is the owner.
func (s *shape) write(b []byte, number int) {
	binary.LittleEndian.PutUint64(b, s.flags)
	binary.LittleEndian.PutUint64(b[8:], s.version.Wall&low48|uint64(len(s.key)&maxShortKey)<<48)
	binary.LittleEndian.PutUint32(b[16:], uint32(s.version.Counter))
	binary.LittleEndian.PutUint32(b[20:], uint32(len(s.value)&maxShortValue))
	at := recordHead
	if s.flags&recordDeadline != 0 {
		binary.LittleEndian.PutUint64(b[at:], uint64(s.deadline))
		at += deadlineHead
	}
	if s.flags&recordLarge != 0 {
		binary.LittleEndian.PutUint32(b[at:], uint32(number))
		return
	}
	at += copy(b[at:], s.key)
	at += copy(b[at:], s.value)
	copy(b[at:], s.tail)
}
