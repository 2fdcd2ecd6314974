package crashtest

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/hlc"
	"holdfast/internal/statestore"
)

// The model of one key, in the plainest words, for porcupine to search an order
// of the requests in which all answers make sense.
//
// A request whose reply was lost with the broker either was carried out before
// the broker was dead, or never is: nobody keeps it for a later life. So its
// interval ends with that life, and the model lets it happen or not. This is
// stricter than to let it happen at any later time, and cheaper to search.
//
// What such a request wrote has a version that nobody was told. It is unknown in
// the model until somebody sees it, and the same from then on.
//
// A deadline is known as an interval: a SET with PX was carried out between call
// and return. From its later end on the key must be absent, and from its earlier
// end on it may be; once absent it stays so.

// cell is what a key holds.
type cell struct {
	present  bool
	value    string
	version  hlc.Timestamp // zero: unknown
	floor    hlc.Timestamp // the highest version that the key is known to have had
	token    hlc.Timestamp
	deadline bool
	from, to int64 // the deadline lies between them
}

// clockSlack is what deadlines may be off by: they are counted in whole
// milliseconds, and after a restart by the wall clock.
const clockSlack = int64(25 * time.Millisecond)

// expired is the set of cells that c may be when a request came and was answered.
func (c cell) expired(call, ret int64) []cell {
	if !c.deadline {
		return []cell{c}
	}
	var now []cell
	if call <= c.to+clockSlack {
		now = append(now, c)
	}
	if ret >= c.from-clockSlack {
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

// bind says what the cell is if somebody saw this version in it.
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

// step gives every cell that c may become by the request, given its answer. None:
// the answer is impossible.
func (c cell) step(in request, out answer) (after []cell) {
	for _, before := range c.expired(in.call, out.ret) {
		if out.fate == lost {
			after = append(after, before)
		}
		switch in.verb {
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

func (c cell) get(out answer) []cell {
	switch {
	case out.kind == statestore.Nil && !c.present:
		return []cell{c}
	case out.kind == statestore.Value && c.present && out.value == c.value:
		return c.seen(out)
	}
	return nil
}

// seen is the cell after an answer that carries its version.
func (c cell) seen(out answer) []cell {
	if out.fate != answered {
		return []cell{c}
	}
	if !c.present {
		if out.version.IsZero() {
			return []cell{c}
		}
		return nil
	}
	if bound, ok := c.bind(out.version); ok {
		return []cell{bound}
	}
	return nil
}

// fenced says how the fencing rule refuses the request (protocol, section 5).
func (c cell) fenced(in request) statestore.Fault {
	switch {
	case !c.present || c.token.IsZero():
		return statestore.None
	case in.token.IsZero():
		return statestore.TokenRequired
	case in.token.Compare(c.token) < 0:
		return statestore.TokenTooLow
	}
	return statestore.None
}

// refused handles a request that the fencing rule refuses, or an error where it
// doesn't.
func (c cell) refused(in request, out answer) (after []cell, done bool) {
	fault := c.fenced(in)
	isError := out.fate == answered && out.kind == statestore.Error
	switch {
	case fault == statestore.None:
		return nil, isError
	case out.fate != answered, isError && out.fault == fault:
		return []cell{c}, true
	}
	return nil, true
}

func (c cell) set(in request, out answer) (after []cell) {
	if after, done := c.refused(in, out); done {
		return after
	}
	for _, m := range c.meets(in) {
		switch {
		case m.met && (out.fate != answered || out.kind == statestore.OK):
			after = append(after, m.cell.written(in, out)...)
		case !m.met && (out.fate != answered || out.kind == statestore.NotApplied):
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

func (c cell) meets(in request) []meeting {
	compare := in.value
	if in.compare {
		compare = in.operand
	}
	switch {
	case in.condition == statestore.IfAbsent && c.present,
		in.condition == statestore.IfAbsentOrEqual && c.present && c.value != compare:
		return []meeting{{c, false}}
	case !in.ver.Given:
		return []meeting{{c, true}}
	case in.ver.Absent:
		return []meeting{{c, !c.present}}
	case !c.present:
		return []meeting{{c, false}}
	case !c.version.IsZero():
		return []meeting{{c, c.version == in.ver.At}}
	}
	both := []meeting{{c, false}}
	if bound, ok := c.bind(in.ver.At); ok {
		both = append(both, meeting{bound, true})
	}
	return both
}

func (c cell) written(in request, out answer) []cell {
	after := cell{present: true, value: in.value, floor: c.highest(), token: c.token}
	if in.token.Compare(c.token) > 0 {
		after.token = in.token
	}
	if in.px > 0 {
		px := in.px * int64(time.Millisecond)
		after.deadline, after.from, after.to = true, in.call+px, out.ret+px
	}
	if out.fate != answered {
		return []cell{after}
	}
	if bound, ok := after.bind(out.version); ok {
		return []cell{bound}
	}
	return nil
}

func (c cell) remove(in request, out answer) []cell {
	if after, done := c.refused(in, out); done {
		return after
	}
	known := out.fate == answered
	switch {
	case !c.present:
		if known && (out.kind != statestore.Count || out.count != 0 || !out.version.IsZero()) {
			return nil
		}
		return []cell{c}
	case in.verb == statestore.VDel && c.value != in.value:
		if known && out.kind != statestore.NotApplied {
			return nil
		}
		return c.seen(out)
	case !known:
		return []cell{c.gone()}
	case out.kind != statestore.Count || out.count != 1:
		return nil
	}
	if bound, ok := c.bind(out.version); ok {
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
			for _, c := range state.(cell).step(in.(request), out.(answer)) {
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
