package statestore

import (
	"bytes"
	"strings"

	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Entry is what is stored under one key. The rules never write to one that they are
// given; replies share its value.
type Entry struct {
	Value      []byte
	Version    hlc.Timestamp
	Token      hlc.Timestamp // the fencing token that protects the key; zero: none
	DeadlineMs int64         // on the clock of Env.NowMs: from then on the key is absent; 0: never
}

// Clone returns a copy that shares nothing with e, for callers that keep entries; nil
// of nil.
func (e *Entry) Clone() *Entry {
	if e == nil {
		return nil
	}
	c := *e
	c.Value = bytes.Clone(e.Value)
	c.Version.Node, c.Token.Node = strings.Clone(e.Version.Node), strings.Clone(e.Token.Node)
	return &c
}

// Memo is what is remembered for one message of one key (protocol, section 8). It
// is immutable once it is in a cell: replies share its bytes.
type Memo struct {
	Version    hlc.Timestamp // that the message produced
	Done       bool          // its outputs are confirmed: State is dropped
	State      []byte        // the value before the message; nil: there was no such key
	Context    []byte        // what STORE captured, or once it is done what DONE left; nil: nothing
	DeadlineMs int64         // on the clock of Env.NowMs: from then on the message is new again
}

// memoOverhead is what a remembered message counts besides its own bytes: version, deadline
// and lengths in its two rows, and about what the database adds to each row.
const memoOverhead = 64

// Size is what the message counts against the bound MaxRemembered, in bytes: its key and its
// ID, which have name bytes together, twice, as two rows on disk have them (protocol,
// section 9). Of nil, which is not remembered, it is 0.
func (m *Memo) Size(name int) int64 {
	if m == nil {
		return 0
	}
	return 2*int64(name) + int64(len(m.State)) + int64(len(m.Context)) + memoOverhead
}

// Remembered is how many messages are remembered, and the bytes that they count ([Memo.Size]);
// or a difference of both.
type Remembered struct{ Messages, Bytes int64 }

// Add adds a difference.
func (r *Remembered) Add(d Remembered) {
	r.Messages += d.Messages
	r.Bytes += d.Bytes
}

// MemoChange is the difference that a memo makes which takes the place of another one; either
// may be nil. name is as of [Memo.Size].
func MemoChange(before, now *Memo, name int) (d Remembered) {
	if before != nil {
		d.Messages--
	}
	if now != nil {
		d.Messages++
	}
	d.Bytes = now.Size(name) - before.Size(name)
	return d
}

// Own gives the memo, unless it is nil, bytes of its own, for a caller that keeps it.
// Apply doesn't call it, as Apply may run under a lock that other goroutines wait for.
func (m *Memo) Own() {
	if m != nil {
		m.State, m.Context = bytes.Clone(m.State), bytes.Clone(m.Context)
	}
}

// Cell is everything that the rules may look at for one command. Memo is that of
// the message which a LOAD, STORE or DONE names; the other commands don't look
// at it.
type Cell struct {
	Entry *Entry // nil: no such key
	Memo  *Memo  // nil: not remembered
}

// Room is how much the store may still grow. Negative means that it is over its
// quota already; a write that doesn't grow it is allowed all the same, unless
// there is none at all.
type Room struct {
	Keys    int64
	Bytes   int64 // of keys and values
	BytesBy Bound // what bounds Bytes; zero: MaxBytes
	Memos   int64 // bytes of remembered messages (Memo.Size)

	Disk DiskRoom

	// Client is the room of the client that writes, within that of the store.
	Client ClientRoom
}

// DiskRoom says what the free space on the disk allows.
type DiskRoom uint8

const (
	DiskFree   DiskRoom = iota
	DiskLow             // writes that don't grow the store
	DiskScarce          // no SET or STORE: even one that replaces a value takes space first
)

// ClientRoom is the room of one client, whose keys are those that it has written last.
type ClientRoom struct {
	Bounded bool
	Own     bool // the stored key is the client's
	Keys    int64
	Bytes   int64
}

// Bound is what a command has run into that is refused with QuotaExceeded. Its text
// is the name of the setting.
type Bound uint8

const (
	NoBound Bound = iota
	MaxKeys
	MaxBytes
	MaxKeysOfClient
	MaxBytesOfClient
	MaxRemembered
	MaxWatches
	MaxWatchBytes
	MaxMemory
	DiskReserve
	MaxTxnOperations
	MaxTxnDeliveries
	MaxRetained
	MaxTimers
	MaxTimersOfClient
	MaxDelay
	Bounds // how many there are
)

var boundNames = [...]string{
	NoBound:          "none",
	MaxKeys:          "max-keys",
	MaxBytes:         "max-store-bytes",
	MaxKeysOfClient:  "max-keys-per-client",
	MaxBytesOfClient: "max-key-bytes-per-client",
	MaxRemembered:    "max-remembered-bytes",
	MaxWatches:       "max-watches",
	MaxWatchBytes:    "max-watch-bytes",
	MaxMemory:        "max-memory",
	DiskReserve:      "disk-reserve",
	MaxTxnOperations: "max-txn-operations",
	MaxTxnDeliveries: "max-txn-deliveries",
	MaxRetained:      "max-retained-messages",

	MaxTimers:         "max-timers",
	MaxTimersOfClient: "max-timers-per-client",
	MaxDelay:          "max-delay",
}

// String returns the name of the setting, for example "max-keys".
func (b Bound) String() string { return boundNames[b] }

// Env is the world as a command sees it.
type Env struct {
	NowMs     int64         // the clock of the deadlines, which doesn't follow steps of the wall clock
	CutMs     int64         // 1 if NowMs was cut to a whole millisecond, else 0: new deadlines count from the next
	WallMs    int64         // the machine's wall clock, ms since the Unix epoch: for versions and skew
	Last      hlc.Timestamp // the last version that the store issued
	Node      string        // the store's node ID
	MaxSkewMs int64         // how far ahead of the wall clock a request's timestamps may be
	KeepMs    int64         // how long a message is remembered that doesn't say
	MaxKeepMs int64         // … and at the most, whatever it says
	Room      Room
}

// ReplyKind says which form a reply has. The zero value is no reply.
type ReplyKind uint8

const (
	OK         ReplyKind = iota + 1
	NotApplied           // a condition of SET or VDEL isn't met
	Value                // GET hit
	Nil                  // GET miss
	Count                // DEL, VDEL, KEYNOTIFY STOP, DONE; STORE of a remembered message
	Error                // see Fault
	Page                 // SCAN
	Conflict             // STORE: the key's version is another
	Loaded               // LOAD
	Transacted           // TXN
	TimerPage            // TIMERS
)

// What a Loaded reply's Count says of the message.
const (
	NewMessage = iota // never stored, or forgotten since
	Duplicate         // stored
	Confirmed         // stored, and done: its outputs were all published
)

// What a Transacted reply's Count says of the transaction.
const (
	ConditionFailed = -1 // that of the operation Op; Value and Version are the key's
	AlreadyDone     = 0  // its ONCE is remembered; Version is the one that the first made
	Committed       = 1  // Values has the version that each write has made
)

// Reply is the answer to a command.
type Reply struct {
	Kind    ReplyKind
	Fault   Fault         // of an Error
	Bound   Bound         // of an Error with QuotaExceeded
	Count   int           // of a Count; of a Loaded: NewMessage, Duplicate or Confirmed; of a Transacted: see ConditionFailed
	Op      int           // of a Transacted, or an Error of TXN: the number of the operation that it is about, from 1; 0: none
	Value   []byte        // of a Value, Loaded or Transacted: the record's own bytes, not to be written to. Nil in a Loaded or Transacted: no such key
	Context []byte        // of a Loaded: what STORE captured, or DONE left; nil: nothing
	Version hlc.Timestamp // what goes out as __ts; zero: none
	KeepMs  int64         // of a STORE or TXN: for how long its message is remembered, if that is not what it has asked for
	TimeMs  int64         // of an Error with TimestampAhead: the machine's wall clock; 0: not said
	Keys    [][]byte      // of a Page
	Details bool          // of a Page: Values have tokens and expiries as well
	Values  []PageValue   // of a Page that was asked for values, one for each of Keys; of a Transacted: versions, one for each write; else nil
	Lasting bool          // the bytes of Value never change: the reply may refer to them for as long as it likes
	Next    []byte        // of a Page: the token of the next one; of a TimerPage the last ID; empty: this is the last
	Timers  []TimerEntry  // of a TimerPage
	Ended   []bool        // of a Transacted: for each CANCEL, whether there was such a timer, and then for each DONE, whether there is such a message; nil: it has neither
}

// TimerEntry is a timer in a TimerPage.
type TimerEntry struct {
	ID    []byte
	DueMs int64 // when it is due, by the wall clock
	Topic string
}

// PageValue is what a Page says of a key besides its name.
type PageValue struct {
	Bytes   []byte        // nil: the value doesn't fit in a packet that the client takes
	Version hlc.Timestamp // of the value

	// Of a Page that was asked for details:
	Token    hlc.Timestamp // the fencing token that protects the key; zero: none
	ExpiryMs int64         // until the key expires; 0: it never does
}

// EventKind says what happened to a key. The zero value is no event.
type EventKind uint8

const (
	KeySet EventKind = iota + 1
	KeyDeleted
)

// Event is the notification of one change.
type Event struct {
	Kind    EventKind
	Key     []byte // the command's
	Value   []byte // of KeySet: the command's
	Lasting bool   // the bytes of Value never change: a notification may refer to them for as long as it likes
	Version hlc.Timestamp
}

// Result is the outcome of a command. It may be reused for the next one.
type Result struct {
	Reply     Reply
	Changed   bool   // the key's record is now Entry
	Entry     *Entry // nil: no such key. Without a change, what was there before. Good until res is used again
	Events    [2]Event
	NumEvents int           // how many of Events there are, in this order
	Last      hlc.Timestamp // the last version issued, now

	MemoChanged bool  // what is remembered for the message is now Memo
	Memo        *Memo // nil: nothing. Without a change, what was there before

	next Entry // what Entry points to after a change
}
