// Package transact is TXN on the wire (protocol, section 12), as a client writes and reads
// it: operations become words, and a reply becomes a Result. Package client has the API.
package transact

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Operations are operations of one kind, one behind the other, as they are on the wire.
type Operations struct {
	about []about // one for each
	words int
	bytes []byte
}

type about struct {
	name, about string
	number      int64 // in the place of about, if that is empty
}

func (a *about) text() string {
	if a.about == "" && a.number != 0 {
		return strconv.FormatInt(a.number, 10)
	}
	return a.about
}

// Reset empties it; what it has in memory is used again.
func (o *Operations) Reset() {
	clear(o.about)
	*o = Operations{about: o.about[:0], bytes: o.bytes[:0]}
}

// Size is how much memory it has, in bytes, about.
func (o *Operations) Size() int { return cap(o.bytes) + 40*cap(o.about) }

// Len is how many operations there are.
func (o *Operations) Len() int { return len(o.about) }

// About is the key or topic of an operation, from 0.
func (o *Operations) About(i int) string { return o.about[i].text() }

// Begin adds an operation of its name, and its key or topic. Word and Bytes add to it.
func (o *Operations) Begin(name, key string) {
	o.about = append(o.about, about{name: name, about: key})
	o.Word(name)
	o.Word(key)
}

// BeginNumber is Begin for an operation that is about a number.
func (o *Operations) BeginNumber(name string, n int64) {
	o.about = append(o.about, about{name: name, number: n})
	o.Word(name)
	o.Number(n)
}

// Version adds a version to the last operation.
func (o *Operations) Version(v hlc.Timestamp) {
	var text [96]byte // on the stack, unless the node is long
	o.Bytes(v.Append(text[:0]))
}

// Word adds a word to the last operation.
func (o *Operations) Word(w string) {
	o.words++
	o.bytes = protocol.AppendWord(o.bytes, w)
}

// Bytes adds a word to the last operation.
func (o *Operations) Bytes(w []byte) {
	o.words++
	o.bytes = protocol.AppendWord(o.bytes, w)
}

// Number adds a decimal to the last operation.
func (o *Operations) Number(n int64) {
	var text [20]byte
	o.Bytes(strconv.AppendInt(text[:0], n, 10))
}

// Request is a transaction as it is to be sent.
type Request struct {
	Operations []*Operations // in this order
	Settles    []Settling    // the messages that it acknowledges
	Retry      bool          // send it again if the connection breaks before the answer
	Err        error         // a mistake in it: it is not to be sent
	Valid      func(*protocol.Response) bool
	Room       []byte // for the payload, which uses it if it is enough
}

// Operation finds an operation by its number, from 1: its name, and its key or topic. ok is false
// if there is none.
func (r *Request) Operation(number int) (name, key string, ok bool) {
	for _, o := range r.Operations {
		if number >= 1 && number <= len(o.about) {
			return o.about[number-1].name, o.about[number-1].text(), true
		}
		number -= len(o.about)
	}
	return "", "", false
}

// Payload is the payload of the request. It is in Room.
func (r *Request) Payload() []byte {
	words, size := 1, 32
	for _, o := range r.Operations {
		words += o.words
		size += len(o.bytes)
	}
	b := protocol.AppendWord(protocol.AppendWords(slices.Grow(r.Room[:0], size), words), "TXN")
	for _, o := range r.Operations {
		b = append(b, o.bytes...)
	}
	r.Room = b
	return b
}

// Answer is the answer to one.
type Answer struct {
	protocol.Response
	Keep time.Duration // for how long the server remembers its message, if that is not what was asked for
}

// Settling is a message that a transaction acknowledges.
type Settling struct {
	Acks     *conn.Acks // nil: it did not come at QoS 1 from a session
	Number   uint64     // in Acks
	PacketID uint16
}

// ErrStale says that a message cannot be acknowledged over a connection, because it did not come
// over that one.
var ErrStale = errors.New("the message did not come over the present connection of this session: it comes again")

// Begin begins the settling of messages over a connection. An error says that it can't, and
// nothing has begun.
func Begin(settles []Settling, c *conn.Conn) error {
	for i, s := range settles {
		err := ErrStale
		if s.Acks.IsOf(c) {
			err = s.Acks.BeginSettling(s.Number)
		}
		if err != nil {
			End(settles[:i], false)
			return err
		}
	}
	return nil
}

// End says whether the transaction that settles them was carried out.
func End(settles []Settling, done bool) {
	for _, s := range settles {
		s.Acks.EndSettling(s.Number, done)
	}
}

// IsCommitted tells whether a reply says that all is done.
func IsCommitted(a *protocol.Response) bool {
	return a.Kind == protocol.Array && len(a.Array) > 0 && a.Array[0].Kind == protocol.Int && a.Array[0].Int == statestore.Committed
}

// Result is what a reply says.
type Result struct {
	Status   int             // statestore.Committed, AlreadyDone or ConditionFailed
	Versions []hlc.Timestamp // if Committed: one for each write; zero: nothing was deleted
	Ended    []bool          // if Committed: one for each CANCEL, there was such a timer; then for each DONE, there is such a message
	Version  hlc.Timestamp   // if AlreadyDone: that of the first time; if ConditionFailed: the key's, zero: there is none
	Op       int             // if ConditionFailed: the number of the operation, from 1; if AlreadyDone: that of ONCE, if there are several
	Value    []byte          // if ConditionFailed: the key's value; nil: none, or none that fits in a packet
}

// Parse takes the reply apart. ok is false if it is not one to a TXN of so many writes, and of so
// many CANCEL and DONE.
func Parse(a *protocol.Response, writes, ends int) (r Result, ok bool) {
	if a.Kind != protocol.Array || len(a.Array) < 2 || a.Array[0].Kind != protocol.Int {
		return r, false
	}
	r.Status = int(a.Array[0].Int)
	rest := a.Array[1:]
	switch {
	case r.Status == statestore.Committed && rest[0].Kind == protocol.Array && len(rest[0].Array) == writes:
		r.Versions = make([]hlc.Timestamp, 0, writes)
		node := "" // which all of them have
		for i := range rest[0].Array {
			v, ok := versionOf(&rest[0].Array[i], node)
			if !ok {
				return Result{}, false
			}
			node = v.Node
			r.Versions = append(r.Versions, v)
		}
		if ends == 0 {
			return r, len(rest) == 1
		}
		if len(rest) != 2 || rest[1].Kind != protocol.Array || len(rest[1].Array) != ends {
			return Result{}, false
		}
		r.Ended = make([]bool, 0, ends)
		for i := range rest[1].Array {
			r.Ended = append(r.Ended, rest[1].Array[i].Int == 1)
		}
		return r, true
	case r.Status == statestore.AlreadyDone && (len(rest) == 1 || len(rest) == 2 && rest[1].Kind == protocol.Int):
		if len(rest) == 2 {
			r.Op = int(rest[1].Int)
		}
		r.Version, ok = versionOf(&rest[0], "")
		return r, ok && !r.Version.IsZero()
	case r.Status == statestore.ConditionFailed && len(rest) == 3 && rest[0].Kind == protocol.Int:
		r.Op, r.Value = int(rest[0].Int), rest[1].Blob
		r.Version, ok = versionOf(&rest[2], "")
		return r, ok && (rest[1].Kind == protocol.Blob || rest[1].Kind == protocol.Nil)
	}
	return Result{}, false
}

// versionOf reads a version or nil, which is none. If its node is the one given, that is what it
// gets.
func versionOf(r *protocol.Response, node string) (v hlc.Timestamp, ok bool) {
	if r.Kind == protocol.Nil {
		return v, true
	}
	v, err := hlc.ParseBytes(r.Blob)
	if err != nil || r.Kind != protocol.Blob {
		return hlc.Timestamp{}, false
	}
	if v.Node == node {
		v.Node = node
		return v, true
	}
	return v.Clone(), true
}
