package statestore

import "github.com/holdfast-mqtt/holdfast/hlc"

// Verb says what a command asks for. The zero value is no verb.
type Verb uint8

// The verbs of protocol, section 3.
const (
	Set Verb = iota + 1
	Get
	Del
	VDel
	KeyNotify
	Scan
	Load
	Store
	Done
	Txn    // decided by package txn
	Timers // it and CANCEL are the broker's to carry out: they have no key
	Cancel

	Verbs = iota + 1 // how many there are, the zero value included
)

var verbNames = [...]string{
	Set: "SET", Get: "GET", Del: "DEL", VDel: "VDEL", KeyNotify: "KEYNOTIFY", Scan: "SCAN",
	Load: "LOAD", Store: "STORE", Done: "DONE", Txn: "TXN", Timers: "TIMERS", Cancel: "CANCEL",
}

// String returns the verb as it is sent, for example "SET".
func (v Verb) String() string {
	if int(v) < len(verbNames) && v != 0 {
		return verbNames[v]
	}
	return "unknown"
}

// Writes reports whether the verb needs the permission to write; the others need
// the one to read (protocol, section 6, order of checks).
func (v Verb) Writes() bool {
	switch v {
	case Set, Del, VDel, Store, Done:
		return true
	}
	return false
}

// Condition is what SET's NX or NEX demands of the stored key.
type Condition uint8

const (
	Always          Condition = iota
	IfAbsent                  // NX: there is no such key
	IfAbsentOrEqual           // NEX: there is no such key, or its value is Compare
)

// StampState says what was found where a request may carry a timestamp.
type StampState uint8

const (
	Missing   StampState = iota
	Malformed            // it is there, but doesn't parse
	Given
)

// Stamp is a timestamp property of a request as it was found. Whether that is a
// fault is judged when its turn comes, and only for the verbs where it counts.
type Stamp struct {
	State StampState
	At    hlc.Timestamp // if Given
}

// VersionCheck is the VER option of SET and DONE, and what STORE always demands.
type VersionCheck struct {
	Given  bool
	Absent bool          // -: there must be no such key
	At     hlc.Timestamp // else the stored version must equal this one
}

// Command is one request to the store, well-formed as far as its payload goes.
// Its bytes and the node IDs of its timestamps may be views of a packet.
type Command struct {
	Verb      Verb
	Condition Condition
	Stop      bool // KEYNOTIFY … STOP
	HasToken  bool // SCAN with a token, or TIMERS with an ID, which is in Value then
	Values    bool // SCAN … VALUES: the page has values and versions
	Details   bool // SCAN … VALUES DETAILS: and fencing tokens and expiries
	Binary    bool // SCAN … BINARY: keys that are not UTF-8 count, and all are matched byte by byte

	// Denied is what the permission check found. It is judged in its turn, which
	// is after the options and before the timestamps.
	Denied bool

	Key     []byte // SCAN: the pattern; TIMERS: how IDs begin; CANCEL: the ID
	Value   []byte // SET, STORE: the new value; VDEL: the expected one; SCAN: the token
	Compare []byte // the operand of NEX; of NEX alone it is the same as Value

	ExpiryMs int64 // PX; 0: none
	Remove   bool  // STORE … DEL: the key is deleted, and Value does not count
	Version  VersionCheck

	Message []byte // LOAD, STORE, DONE: the message ID
	Context []byte // CTX of STORE and DONE; nil: none
	KeepMs  int64  // STORE's KEEP; 0: as long as the server says

	// MaxPage is how many bytes of SCAN's reply fit in a packet that the client takes;
	// 0: any number.
	MaxPage int

	Time  Stamp // __ts
	Token Stamp // __ft
}
