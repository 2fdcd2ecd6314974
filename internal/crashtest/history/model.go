package history

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// The model of one key, in its simplest form: porcupine searches for an order of the
// requests in which all answers are right.
//
// A request whose reply was lost with the broker either was executed before
// the broker was dead, or never is: no process keeps it for a later life. So its
// interval ends with that life, and the model may execute it or not. This is
// stricter than allowing any later time, and cheaper to search.
//
// What such a request wrote has a version that no client has received. The model does not
// know it until a reply or a notification shows it; from then on it must stay the same.
//
// A deadline is known as an interval, because a SET with PX was executed at some time
// between call and return. After the end of the interval the key must be absent; within it
// the key may be absent, and then stays absent.

// cell is what a key holds.
type cell struct {
	present  bool
	value    string
	version  hlc.Timestamp // zero: unknown
	floor    hlc.Timestamp // the highest version that the key is known to have had
	token    hlc.Timestamp
	write    string // of a TXN that has made the value; empty: another command has
	deadline bool
	from, to int64 // the deadline lies between them
}

// ClockSlack is by how much a deadline may be early or late: deadlines are whole
// milliseconds, and after a restart the server uses the wall clock.
const ClockSlack = int64(25 * time.Millisecond)

// expired is the set of cells that c may have become by expiry while a request was under
// way.
func (c cell) expired(call, ret int64) []cell {
	if !c.deadline {
		return []cell{c}
	}
	var now []cell
	if call <= c.to+ClockSlack {
		now = append(now, c)
	}
	if ret >= c.from-ClockSlack {
		now = append(now, c.gone())
	}
	return now
}

// gone is the cell without its key.
func (c cell) gone() cell { return cell{floor: c.highest()} }

func (c cell) highest() hlc.Timestamp {
	if c.version.Compare(c.floor) > 0 {
		return c.version
	}
	return c.floor
}

// bind returns the cell with a version that a client has seen in it; false if it cannot
// have that version.
func (c cell) bind(v hlc.Timestamp) (cell, bool) {
	if !c.version.IsZero() {
		return c, c.version == v
	}
	if v.Compare(c.floor) <= 0 {
		return c, false
	}
	c.version, c.floor = v, v
	return c, true
}

// step gives every cell that c may become by the request, given its answer. There is none
// if the answer is impossible.
func (c cell) step(in Request, out Answer) (after []cell) {
	for _, before := range c.expired(in.Call, out.Ret) {
		if out.Fate == Lost {
			after = append(after, before)
		}
		switch in.Verb {
		case statestore.Get:
			after = append(after, before.get(out)...)
		case statestore.Set:
			after = append(after, before.set(in, out)...)
		default:
			after = append(after, before.remove(in, out)...)
		}
	}
	return after
}

func (c cell) get(out Answer) []cell {
	switch {
	case out.Kind == statestore.Nil && !c.present:
		return []cell{c}
	case out.Kind == statestore.Value && c.present && out.Value == c.value:
		return c.seen(out)
	}
	return nil
}

// seen is the cell after an answer that carries its version.
func (c cell) seen(out Answer) []cell {
	if out.Fate != Answered {
		return []cell{c}
	}
	if !c.present {
		if out.Version.IsZero() {
			return []cell{c}
		}
		return nil
	}
	if bound, ok := c.bind(out.Version); ok {
		return []cell{bound}
	}
	return nil
}

// fenced says how the fencing rule refuses the request (protocol, section 5).
func (c cell) fenced(in Request) statestore.Fault {
	switch {
	case !c.present || c.token.IsZero():
		return statestore.None
	case in.Token.IsZero():
		return statestore.TokenRequired
	case in.Token.Compare(c.token) < 0:
		return statestore.TokenTooLow
	}
	return statestore.None
}

// refused handles a request that the fencing rule refuses. An error that the rule does
// not explain makes the answer impossible.
func (c cell) refused(in Request, out Answer) (after []cell, done bool) {
	fault := c.fenced(in)
	isError := out.Fate == Answered && out.Kind == statestore.Error
	switch {
	case fault == statestore.None:
		return nil, isError
	case out.Fate != Answered, isError && out.Fault == fault:
		return []cell{c}, true
	}
	return nil, true
}

func (c cell) set(in Request, out Answer) (after []cell) {
	if after, done := c.refused(in, out); done {
		return after
	}
	for _, m := range c.meets(in) {
		switch {
		case m.met && (out.Fate != Answered || out.Kind == statestore.OK):
			after = append(after, m.cell.written(in, out)...)
		case !m.met && (out.Fate != Answered || out.Kind == statestore.NotApplied):
			after = append(after, m.cell.seen(out)...)
		}
	}
	return after
}

// meeting is a cell, with whether it meets a request's conditions.
type meeting struct {
	cell cell
	met  bool
}

func (c cell) meets(in Request) []meeting {
	compare := in.Value
	if in.Compare {
		compare = in.Operand
	}
	switch {
	case in.Condition == statestore.IfAbsent && c.present,
		in.Condition == statestore.IfAbsentOrEqual && c.present && c.value != compare:
		return []meeting{{c, false}}
	case !in.Ver.Given:
		return []meeting{{c, true}}
	case in.Ver.Absent:
		return []meeting{{c, !c.present}}
	case !c.present:
		return []meeting{{c, false}}
	case !c.version.IsZero():
		return []meeting{{c, c.version == in.Ver.At}}
	}
	both := []meeting{{c, false}}
	if bound, ok := c.bind(in.Ver.At); ok {
		both = append(both, meeting{bound, true})
	}
	return both
}

func (c cell) written(in Request, out Answer) []cell {
	after := cell{present: true, value: in.Value, floor: c.highest(), token: c.token}
	if in.Token.Compare(c.token) > 0 {
		after.token = in.Token
	}
	if in.PX > 0 {
		px := in.PX * int64(time.Millisecond)
		after.deadline, after.from, after.to = true, in.Call+px, out.Ret+px
	}
	if out.Fate != Answered {
		return []cell{after}
	}
	if bound, ok := after.bind(out.Version); ok {
		return []cell{bound}
	}
	return nil
}

func (c cell) remove(in Request, out Answer) []cell {
	if after, done := c.refused(in, out); done {
		return after
	}
	known := out.Fate == Answered
	switch {
	case !c.present:
		if known && (out.Kind != statestore.Count || out.Count != 0 || !out.Version.IsZero()) {
			return nil
		}
		return []cell{c}
	case in.Verb == statestore.VDel && c.value != in.Value:
		if known && out.Kind != statestore.NotApplied {
			return nil
		}
		return c.seen(out)
	case !known:
		return []cell{c.gone()}
	case out.Kind != statestore.Count || out.Count != 1:
		return nil
	}
	if bound, ok := c.bind(out.Version); ok {
		return []cell{bound.gone()}
	}
	return nil
}

// keyModel is the model for porcupine; a history is that of one key.
var keyModel = newKeyModel()

func newKeyModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{cell{}} },
		Step: func(state, in, out any) []any {
			var after []any
			for _, c := range state.(cell).step(in.(Request), out.(Answer)) {
				after = append(after, c)
			}
			return after
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v → %v", in, out) },
		DescribeState: func(state any) string {
			c := state.(cell)
			if !c.present {
				return fmt.Sprintf("absent, after %v", c.floor)
			}
			return fmt.Sprintf("%q version %v token %v deadline %v", c.value, c.version, c.token, c.deadline)
		},
	}
	return m.ToModel()
}
