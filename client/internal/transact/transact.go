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

// Operation is one operation of a transaction.
type Operation struct {
	Name  string // its first word
	About string // its key or topic, for errors
	Words [][]byte
}

// New makes an operation of its name, its key or topic, and further words.
func New(name, about string, words ...[]byte) Operation {
	return Operation{name, about, append([][]byte{[]byte(name), []byte(about)}, words...)}
}

// Settle makes the operation that acknowledges the message with a packet identifier.
func Settle(packetID uint16) Operation {
	id := strconv.AppendUint(nil, uint64(packetID), 10)
	return Operation{"SETTLE", string(id), [][]byte{[]byte("SETTLE"), id}}
}

// With is the operation with one more option, and its operands.
func (o Operation) With(option string, operands ...[]byte) Operation {
	o.Words = append(append(slices.Clone(o.Words), []byte(option)), operands...)
	return o
}

// Request is a transaction as it is to be sent.
type Request struct {
	Operations []Operation
	Settles    []Settling // the messages that it acknowledges
	Retry      bool       // send it again if the connection breaks before the answer
	Err        error      // a mistake in it: it is not to be sent
	Valid      func(*protocol.Response) bool
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

// Payload is the payload of the request.
func Payload(operations []Operation) []byte {
	words, size := 1, 32
	for i := range operations {
		words += len(operations[i].Words)
		for _, w := range operations[i].Words {
			size += len(w) + 12
		}
	}
	args := append(make([][]byte, 0, words), []byte("TXN"))
	for i := range operations {
		args = append(args, operations[i].Words...)
	}
	return protocol.AppendCommand(make([]byte, 0, size), args...)
}

// Result is what a reply says.
type Result struct {
	Status   int             // statestore.Committed, AlreadyDone or ConditionFailed
	Versions []hlc.Timestamp // if Committed: one for each write; zero: nothing was deleted
	Ended    []bool          // if Committed: one for each CANCEL: there was such a timer
	Version  hlc.Timestamp   // if AlreadyDone: that of the first time; if ConditionFailed: the key's, zero: there is none
	Op       int             // if ConditionFailed: the number of the operation, from 1; if AlreadyDone: that of ONCE, if there are several
	Value    []byte          // if ConditionFailed: the key's value; nil: none, or none that fits in a packet
}

// Parse takes the reply apart. ok is false if it is not one to a TXN of so many writes and
// cancels.
func Parse(a *protocol.Response, writes, cancels int) (r Result, ok bool) {
	if a.Kind != protocol.Array || len(a.Array) < 2 || a.Array[0].Kind != protocol.Int {
		return r, false
	}
	r.Status = int(a.Array[0].Int)
	rest := a.Array[1:]
	switch {
	case r.Status == statestore.Committed && rest[0].Kind == protocol.Array && len(rest[0].Array) == writes:
		for i := range rest[0].Array {
			v, ok := versionOf(&rest[0].Array[i])
			if !ok {
				return Result{}, false
			}
			r.Versions = append(r.Versions, v)
		}
		if cancels == 0 {
			return r, len(rest) == 1
		}
		if len(rest) != 2 || rest[1].Kind != protocol.Array || len(rest[1].Array) != cancels {
			return Result{}, false
		}
		for i := range rest[1].Array {
			r.Ended = append(r.Ended, rest[1].Array[i].Int == 1)
		}
		return r, true
	case r.Status == statestore.AlreadyDone && (len(rest) == 1 || len(rest) == 2 && rest[1].Kind == protocol.Int):
		if len(rest) == 2 {
			r.Op = int(rest[1].Int)
		}
		r.Version, ok = versionOf(&rest[0])
		return r, ok && !r.Version.IsZero()
	case r.Status == statestore.ConditionFailed && len(rest) == 3 && rest[0].Kind == protocol.Int:
		r.Op, r.Value = int(rest[0].Int), rest[1].Blob
		r.Version, ok = versionOf(&rest[2])
		return r, ok && (rest[1].Kind == protocol.Blob || rest[1].Kind == protocol.Nil)
	}
	return Result{}, false
}

// versionOf reads a version or nil, which is none.
func versionOf(r *protocol.Response) (v hlc.Timestamp, ok bool) {
	if r.Kind == protocol.Nil {
		return v, true
	}
	v, err := hlc.Parse(string(r.Blob))
	return v, r.Kind == protocol.Blob && err == nil
}
