// Package txn holds the rules of TXN (protocol, section 12): conditions and writes on
// several keys, and what is remembered of a message, go in with the time; one reply, and
// the results of all writes or of none, come out. Each write is decided by the rules of a
// single one ([statestore.Apply]), with the version and the room that the writes before it
// have left.
//
// Package protocol fills a [Transaction] from the wire, and the engine runs it. Like
// package statestore this one does no I/O, reads no clock, and locks nothing.
package txn

import (
	"bytes"
	"hash/maphash"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Check is what a condition demands of its key. The zero value is no check.
type Check uint8

const (
	Exists    Check = iota + 1 // there is such a key
	Absent                     // there is no such key
	HasValue                   // its value is Condition.Operand
	AtVersion                  // its version is Condition.Version
	MadeBy                     // its version is the one that the message Condition.Operand has made of it
)

// Condition is judged on the keys as they are before any write.
type Condition struct {
	Op      int // number of the operation in the request, from 1
	Key     int // in Transaction.Keys
	Check   Check
	Version hlc.Timestamp
	Operand []byte
}

// Write is a SET or DEL without conditions.
type Write struct {
	Op      int
	Key     int
	Command statestore.Command
}

// Once names a message, under a key: of ONCE, for which the transaction is done once, or of DONE,
// whose outputs are published.
type Once struct {
	Op      int
	Key     int
	Message []byte
	Context []byte // what LOAD gives back; nil: nothing
	Compare bool   // Context is a digest: a message that is remembered with another one is another message
	Open    bool   // it is remembered as STORE does, until a DONE: with the value that its key has before
	KeepMs  int64  // 0: as long as the server says

	Done    bool                    // this is a DONE
	Version statestore.VersionCheck // of DONE
}

// isOther says whether what is remembered is of another message with the same ID. What STORE
// has remembered without DONE is no digest.
func (o *Once) isOther(memo *statestore.Memo) bool {
	return o.Compare && memo.Done && memo.Context != nil && !bytes.Equal(o.Context, memo.Context)
}

// Publish is a message that the transaction publishes, as far as the words of the request
// say: whether MQTT allows it is judged elsewhere.
type Publish struct {
	Op      int
	Topic   []byte
	Payload []byte
	QoS     byte // 0 to 2
	Retain  bool

	Expiry, Format                              Number
	ContentType, ResponseTopic, CorrelationData []byte      // nil: none
	User                                        [][2][]byte // name and value
}

// Number is the value of a property that may be absent.
type Number struct {
	Given bool
	Value uint32
}

// Settle is an acknowledgement of a message that the requester has received at QoS 1.
type Settle struct {
	Op       int
	PacketID uint16
}

// Cancel cancels a timer of the requester's principal. There need not be one.
type Cancel struct {
	Op int
	ID []byte
}

// Transaction is one TXN. Its bytes may be views of a packet. The zero value is empty.
type Transaction struct {
	Keys       [][]byte // each key once, in the order in which the operations name them
	Conditions []Condition
	Writes     []Write
	Once       []Once // and DONE
	Publishes  []Publish
	Settles    []Settle
	Cancels    []Cancel

	Time  statestore.Stamp // __ts
	Token statestore.Stamp // __ft: of each write that has no token of its own

	user     [][2][]byte // those of all messages
	places   []place     // of Keys, one for each
	byKey    index       // of Keys
	byOnce   index       // of Once
	byPacket index       // of Settles
}

// place is what the transaction has for a key so far.
type place struct{ conditioned, written bool }

// Reset empties it. What it has in memory is used again.
func (t *Transaction) Reset() {
	clear(t.Keys)
	clear(t.Conditions)
	clear(t.Writes)
	clear(t.Once)
	clear(t.Publishes)
	clear(t.Cancels)
	clear(t.user)
	*t = Transaction{
		Keys: t.Keys[:0], Conditions: t.Conditions[:0], Writes: t.Writes[:0], Once: t.Once[:0], Publishes: t.Publishes[:0],
		Settles: t.Settles[:0], Cancels: t.Cancels[:0], user: t.user[:0], places: t.places[:0], byKey: t.byKey, byOnce: t.byOnce, byPacket: t.byPacket,
	}
	t.byKey.reset()
	t.byOnce.reset()
	t.byPacket.reset()
}

// MostOfAKind is how many operations it has of the kind of which it has the most: conditions,
// writes, messages to remember, to publish and to settle, and timers to cancel.
func (t *Transaction) MostOfAKind() int {
	return max(len(t.Conditions), len(t.Writes), len(t.Once), len(t.Publishes), len(t.Settles), len(t.Cancels))
}

// key is the number of a key, which it may add. hint is the number that it probably has: the
// operations of one kind name the keys in the same order as those of another kind, as a rule.
func (t *Transaction) key(key []byte, hint int) int {
	if hint < len(t.Keys) && bytes.Equal(t.Keys[hint], key) {
		return hint
	}
	i, known := t.byKey.find(maphash.Bytes(seed, key), func(i int) bool { return bytes.Equal(t.Keys[i], key) })
	if !known {
		t.Keys, t.places = append(t.Keys, key), append(t.places, place{})
	}
	return i
}

// If adds a condition on the key; c.Key is filled in. The fault is SameKey if there is one
// on this key already.
func (t *Transaction) If(key []byte, c Condition) statestore.Fault {
	c.Key = t.key(key, len(t.Conditions))
	p := &t.places[c.Key]
	if p.conditioned {
		return statestore.SameKey
	}
	p.conditioned = true
	t.Conditions = append(t.Conditions, c)
	return statestore.None
}

// Then adds a write of the key that its command names; w.Key is filled in. The fault is
// SameKey if there is one of this key already.
func (t *Transaction) Then(w Write) statestore.Fault {
	w.Key = t.key(w.Command.Key, len(t.Writes))
	p := &t.places[w.Key]
	if p.written {
		return statestore.SameKey
	}
	p.written = true
	t.Writes = append(t.Writes, w)
	return statestore.None
}

// Remember adds a message for which the transaction is done once; o.Key is filled in. The fault
// is SameKey if ONCE or DONE has named it already.
func (t *Transaction) Remember(key []byte, o Once) statestore.Fault {
	hint := 0
	if n := len(t.Once); n > 0 { // of the same key, or the next one
		if hint = t.Once[n-1].Key; !bytes.Equal(t.Keys[hint], key) {
			hint++
		}
	}
	o.Key = t.key(key, hint)
	hash := maphash.Bytes(seed, o.Message) + uint64(o.Key)
	_, twice := t.byOnce.find(hash, func(i int) bool { return t.Once[i].Key == o.Key && bytes.Equal(t.Once[i].Message, o.Message) })
	if twice {
		return statestore.SameKey
	}
	t.Once = append(t.Once, o)
	return statestore.None
}

// AddUser adds a user property to a message, to which the last one was added as well, if it has
// any.
func (t *Transaction) AddUser(p *Publish, name, value []byte) {
	t.user = append(t.user, [2][]byte{name, value})
	p.User = t.user[len(t.user)-len(p.User)-1:]
}

// Settle adds an acknowledgement. The fault is SettledTwice if there is one of this packet
// identifier already.
func (t *Transaction) Settle(s Settle) statestore.Fault {
	if _, twice := t.byPacket.find(uint64(s.PacketID), func(i int) bool { return t.Settles[i].PacketID == s.PacketID }); twice {
		return statestore.SettledTwice
	}
	t.Settles = append(t.Settles, s)
	return statestore.None
}

// Stamp gives all writes the timestamp and the fencing token of the request, as far as
// they have no token of their own.
func (t *Transaction) Stamp(time, token statestore.Stamp) {
	t.Time, t.Token = time, token
	for i := range t.Writes {
		cmd := &t.Writes[i].Command
		cmd.Time = time
		if cmd.Token.State == statestore.Missing {
			cmd.Token = token
		}
	}
}
