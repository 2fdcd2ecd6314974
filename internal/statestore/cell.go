package statestore

import "holdfast/hlc"

// Entry is what is stored under one key. It is immutable once it is in a cell:
// replies and events share its value.
type Entry struct {
	Value      []byte
	Version    hlc.Timestamp
	Token      hlc.Timestamp // the fencing token that protects the key; zero: none
	DeadlineMs int64         // on the clock of Env.NowMs: from then on the key is absent; 0: never
}

// Cell is everything that the rules may look at for one key. (What is remembered
// for a message joins the entry here with protocol, section 8.)
type Cell struct {
	Entry *Entry // nil: no such key
}

// Room is how much the store may still grow. Negative means that it is over its
// quota already; a write that doesn't grow it is allowed all the same, unless
// there is none at all.
type Room struct {
	Keys  int64
	Bytes int64 // of keys and values
	None  bool  // not even a write that doesn't grow it: there is nowhere to put it
}

// Env is the world as a command sees it.
type Env struct {
	NowMs     int64         // the clock of the deadlines, which doesn't follow steps of the wall clock
	WallMs    int64         // the machine's wall clock, ms since the Unix epoch: for versions and skew
	Last      hlc.Timestamp // the last version that the store issued
	Node      string        // the store's node ID
	MaxSkewMs int64         // how far ahead of the wall clock a request's timestamps may be
	Room      Room
}

// ReplyKind says which form a reply has. The zero value is no reply.
type ReplyKind uint8

const (
	OK         ReplyKind = iota + 1
	NotApplied           // a condition of SET or VDEL isn't met
	Value                // GET hit
	Nil                  // GET miss
	Count                // DEL, VDEL, KEYNOTIFY STOP
	Error                // see Fault
	Page                 // SCAN
)

// Reply is the answer to a command.
type Reply struct {
	Kind    ReplyKind
	Fault   Fault         // of an Error
	Count   int           // of a Count
	Value   []byte        // of a Value: the entry's own bytes, not to be written to
	Version hlc.Timestamp // what goes out as __ts; zero: none
	Keys    [][]byte      // of a Page
	Next    []byte        // of a Page: the token of the next one; empty: this is the last
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
	Key     []byte // a view of the command's
	Value   []byte // of KeySet: the entry's own bytes, not to be written to
	Version hlc.Timestamp
}

// Result is what became of a command. It may be used again for the next one.
type Result struct {
	Reply     Reply
	Changed   bool   // the key's record is now Entry
	Entry     *Entry // nil: no such key. Without a change, what was there before
	Events    [2]Event
	NumEvents int           // how many of Events there are, in this order
	Last      hlc.Timestamp // the last version issued, now
}
