package history

import (
	"fmt"
	"strconv"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Request is one command to the store, and when it was sent.
type Request struct {
	Verb      statestore.Verb
	Condition statestore.Condition
	Compare   bool // NEX has an operand
	Key       string
	Value     string
	Operand   string // of NEX
	PX        int64  // milliseconds; 0: none
	Ver       statestore.VersionCheck
	Token     hlc.Timestamp // zero: none
	Message   string        // of LOAD
	Txn       *Txn          // of TXN, which has no Key

	Client string
	Order  uint64 // among the client's requests
	Call   int64
}

// Fate says how much is known of a request's outcome.
type Fate uint8

const (
	Lost     Fate = iota // the broker died first: it was executed, or never will be
	Executed             // it was acknowledged, so it was executed; the reply is lost
	Answered
)

// Answer is what came back, and when; for a request whose reply is lost, when
// the broker had died.
type Answer struct {
	Fate    Fate
	Kind    statestore.ReplyKind
	Fault   statestore.Fault
	Count   int64
	Value   string
	Context string // of LOAD
	Version hlc.Timestamp
	Ret     int64

	Op       int                         // of TXN: the operation that has failed
	Found    bool                        // of a TXN's condition that does not hold: there is such a key
	Versions [MaxTxnWrites]hlc.Timestamp // that the writes of a TXN have made
}

func (r Request) String() string {
	if r.Txn != nil {
		return fmt.Sprintf("[%.3f ms] %s#%d TXN %v", float64(r.Call)/1e6, r.Client, r.Order, r.Txn)
	}
	words := fmt.Sprintf("%s#%d %v %s", r.Client, r.Order, r.Verb, r.Key)
	if r.Verb == statestore.Set || r.Verb == statestore.VDel {
		words += " " + r.Value
	}
	switch {
	case r.Verb == statestore.Load:
		words += " " + r.Message
	case r.Condition == statestore.IfAbsent:
		words += " NX"
	case r.Condition == statestore.IfAbsentOrEqual && r.Compare:
		words += " NEX " + r.Operand
	case r.Condition == statestore.IfAbsentOrEqual:
		words += " NEX"
	}
	if r.PX > 0 {
		words += fmt.Sprintf(" PX %d", r.PX)
	}
	if r.Ver.Given {
		words += " VER " + r.Ver.At.String()
	}
	if !r.Token.IsZero() {
		words += " ft=" + r.Token.String()
	}
	return fmt.Sprintf("[%.3f ms] %s", float64(r.Call)/1e6, words)
}

func (a Answer) String() string {
	at := fmt.Sprintf("[%.3f ms] ", float64(a.Ret)/1e6)
	switch {
	case a.Fate == Lost:
		return at + "unknown"
	case a.Fate == Executed:
		return at + "acknowledged, no reply"
	case a.Kind == statestore.Error:
		return at + fmt.Sprintf("-ERR %v (operation %d)", a.Fault, a.Op)
	case a.Kind == statestore.Transacted && a.Count == statestore.Committed:
		return at + fmt.Sprintf("committed %v ts=%v", a.Versions, a.Version)
	case a.Kind == statestore.Transacted:
		return at + fmt.Sprintf("count=%d op=%d %q ts=%v", a.Count, a.Op, a.Value, a.Version)
	case a.Kind == statestore.Value:
		return at + fmt.Sprintf("%q ts=%v", a.Value, a.Version)
	}
	return at + fmt.Sprintf("%s count=%d ts=%v", replyNames[a.Kind], a.Count, a.Version)
}

var replyNames = map[statestore.ReplyKind]string{
	statestore.OK: "OK", statestore.NotApplied: "not applied", statestore.Nil: "nil", statestore.Count: "count",
	statestore.Loaded: "loaded",
}

// Payload is the request on the wire.
func (r *Request) Payload() []byte {
	if r.Txn != nil {
		return r.Txn.payload()
	}
	args := [][]byte{[]byte(r.Verb.String()), []byte(r.Key)}
	if r.Verb == statestore.Set || r.Verb == statestore.VDel {
		args = append(args, []byte(r.Value))
	}
	switch {
	case r.Verb == statestore.Load:
		args = append(args, []byte(r.Message))
	case r.Condition == statestore.IfAbsent:
		args = append(args, []byte("NX"))
	case r.Condition == statestore.IfAbsentOrEqual:
		args = append(args, []byte("NEX"))
		if r.Compare {
			args = append(args, []byte(r.Operand))
		}
	}
	if r.PX > 0 {
		args = append(args, []byte("PX"), strconv.AppendInt(nil, r.PX, 10))
	}
	if r.Ver.Given {
		args = append(args, []byte("VER"), r.Ver.At.Append(nil))
	}
	return protocol.AppendCommand(nil, args...)
}

// Operation is a request with its outcome.
type Operation struct {
	Request
	Answer
}
