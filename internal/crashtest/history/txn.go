package history

import (
	"fmt"
	"strings"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// MaxTxnWrites is how many writes a TXN of a history has at most.
const MaxTxnWrites = 3

// Txn is a TXN: its conditions, then its writes, then its ONCE, numbered from 1 in this
// order.
type Txn struct {
	Conditions []Condition
	Writes     []Request // SET and DEL, with their keys; Condition and Ver of them do not count
	Once       Message   // the zero Message: none
}

// Condition is one of a TXN.
type Condition struct {
	Key     string
	Check   txn.Check
	Value   string        // of HasValue
	Version hlc.Timestamp // of AtVersion
	Message string        // of MadeBy
}

// Message is a message of a key.
type Message struct{ Key, ID string }

// Keys are the keys that the request names, some of them repeatedly.
func (r *Request) Keys() (keys []string) {
	if r.Txn == nil {
		return []string{r.Key}
	}
	for _, c := range r.Txn.Conditions {
		keys = append(keys, c.Key)
	}
	for _, w := range r.Txn.Writes {
		keys = append(keys, w.Key)
	}
	if r.Txn.Once != (Message{}) {
		keys = append(keys, r.Txn.Once.Key)
	}
	return keys
}

// operations are the words of the request, one slice for each operation.
func (x *Txn) operations() (ops [][]string) {
	for _, c := range x.Conditions {
		op := []string{"IF", c.Key}
		switch c.Check {
		case txn.Exists:
			op = append(op, "EXISTS")
		case txn.Absent:
			op = append(op, "ABSENT")
		case txn.HasValue:
			op = append(op, "VALUE", c.Value)
		case txn.AtVersion:
			op = append(op, "VER", c.Version.String())
		case txn.MadeBy:
			op = append(op, "VER", "^"+c.Message)
		}
		ops = append(ops, op)
	}
	for _, w := range x.Writes {
		op := []string{w.Verb.String(), w.Key}
		if w.Verb == statestore.Set {
			op = append(op, w.Value)
		}
		if w.PX > 0 {
			op = append(op, "PX", fmt.Sprint(w.PX))
		}
		if !w.Token.IsZero() {
			op = append(op, "FT", w.Token.String())
		}
		ops = append(ops, op)
	}
	if x.Once != (Message{}) {
		ops = append(ops, []string{"ONCE", x.Once.Key, x.Once.ID})
	}
	return ops
}

func (x *Txn) String() string {
	var ops []string
	for _, op := range x.operations() {
		ops = append(ops, strings.Join(op, " "))
	}
	return strings.Join(ops, ", ")
}

func (x *Txn) payload() []byte {
	words := [][]byte{[]byte("TXN")}
	for _, op := range x.operations() {
		for _, word := range op {
			words = append(words, []byte(word))
		}
	}
	return protocol.AppendCommand(nil, words...)
}

// ReadTransacted fills in what the reply to a TXN says, if it is no error; ok is false if it
// is none that the protocol (section 12) knows.
func (a *Answer) ReadTransacted(r *protocol.Response) (ok bool) {
	if r.Kind != protocol.Array || len(r.Array) < 2 || r.Array[0].Kind != protocol.Int {
		return false
	}
	a.Kind, a.Count = statestore.Transacted, r.Array[0].Int
	switch {
	case a.Count == statestore.Committed && len(r.Array) == 2 && len(r.Array[1].Array) <= MaxTxnWrites:
		for i, element := range r.Array[1].Array {
			if a.Versions[i], ok = versionOf(&element); !ok {
				return false
			}
		}
		return r.Array[1].Kind == protocol.Array
	case a.Count == statestore.AlreadyDone && len(r.Array) == 2:
		v, ok := versionOf(&r.Array[1])
		return ok && v == a.Version && !v.IsZero()
	case a.Count == statestore.ConditionFailed && len(r.Array) == 4 && r.Array[1].Kind == protocol.Int:
		a.Op, a.Found, a.Value = int(r.Array[1].Int), r.Array[2].Kind == protocol.Blob, string(r.Array[2].Blob)
		v, ok := versionOf(&r.Array[3])
		return ok && v == a.Version && v.IsZero() != a.Found
	}
	return false
}

// versionOf reads a version, or the zero one of no value.
func versionOf(r *protocol.Response) (v hlc.Timestamp, ok bool) {
	switch r.Kind {
	case protocol.Nil:
		return hlc.Timestamp{}, true
	case protocol.Blob:
		v, err := hlc.Parse(string(r.Blob))
		return v, err == nil
	}
	return hlc.Timestamp{}, false
}

// written gives the versions that an applied request is known to have made: one operation
// for each, in their order.
func written(op Operation) (ops []Operation) {
	switch {
	case op.Fate != Answered:
	case op.Verb == statestore.Set && op.Kind == statestore.OK:
		return []Operation{op}
	case op.Kind == statestore.Transacted && op.Count == statestore.Committed:
		versions := op.Versions[:]
		if op.Txn.Once != (Message{}) && op.Version != op.Versions[max(0, len(op.Txn.Writes)-1)] {
			versions = append(versions, op.Version) // of the message itself
		}
		var last hlc.Timestamp
		for _, v := range versions {
			if v.IsZero() || v == last {
				continue
			}
			op.Version, last = v, v
			ops = append(ops, op)
		}
	}
	return ops
}
