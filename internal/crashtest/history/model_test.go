package history

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// The checkers, shown what a broken broker would have done.

func at(n uint64) hlc.Timestamp {
	if n == 0 {
		return hlc.Timestamp{}
	}
	return hlc.Timestamp{Wall: n, Counter: 1, Node: "n"}
}

// op is an operation on the key k between two moments in milliseconds.
func op(call, ret int64, in Request, out Answer) Operation {
	in.Key, in.Client = "k", "c"
	in.Order = uint64(call)
	in.Call, out.Ret = call*int64(time.Millisecond), ret*int64(time.Millisecond)
	return Operation{in, out}
}

func setTo(value string) Request { return Request{Verb: statestore.Set, Value: value} }

func ok(version uint64) Answer {
	return Answer{Fate: Answered, Kind: statestore.OK, Version: at(version)}
}

func value(v string, version uint64) Answer {
	return Answer{Fate: Answered, Kind: statestore.Value, Value: v, Version: at(version)}
}

func refusedWith(f statestore.Fault) Answer {
	return Answer{Fate: Answered, Kind: statestore.Error, Fault: f}
}

var (
	read       = Request{Verb: statestore.Get}
	remove     = Request{Verb: statestore.Del}
	missing    = Answer{Fate: Answered, Kind: statestore.Nil}
	nothing    = Answer{Fate: Answered, Kind: statestore.Count}
	unknown    = Answer{Fate: Lost}
	carriedOut = Answer{Fate: Executed}
)

func deleted(version uint64) Answer {
	return Answer{Fate: Answered, Kind: statestore.Count, Count: 1, Version: at(version)}
}

func notApplied(version uint64) Answer {
	return Answer{Fate: Answered, Kind: statestore.NotApplied, Version: at(version)}
}

func with(r Request, change func(*Request)) Request {
	change(&r)
	return r
}

func TestModel(t *testing.T) {
	t.Parallel()
	nx := func(r *Request) { r.Condition = statestore.IfAbsent }
	nex := func(r *Request) { r.Condition = statestore.IfAbsentOrEqual }
	compare := func(old string) func(*Request) {
		return func(r *Request) { r.Condition, r.Compare, r.Operand = statestore.IfAbsentOrEqual, true, old }
	}
	px := func(ms int64) func(*Request) { return func(r *Request) { r.PX = ms } }
	ver := func(v uint64) func(*Request) {
		return func(r *Request) { r.Ver = statestore.VersionCheck{Given: true, Absent: v == 0, At: at(v)} }
	}
	token := func(v uint64) func(*Request) { return func(r *Request) { r.Token = at(v) } }

	cases := []struct {
		name string
		good bool
		ops  []Operation
	}{
		{"a write is read", true, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, read, value("a", 5))}},
		{"an acknowledged write is lost", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, read, missing)}},
		{"an older write is back", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), ok(6)), op(5, 6, read, value("a", 5))}},
		{"the value is new, the version old", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), unknown), op(5, 6, read, value("b", 5))}},
		{"the version is new, the value old", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), unknown), op(5, 6, read, value("a", 6))}},
		{"versions fall", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), ok(4))}},
		{"versions fall over a deletion", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, deleted(5)), op(5, 6, setTo("b"), ok(5))}},
		{"an open write happened", true, []Operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, value("a", 5))}},
		{"an open write didn't happen", true, []Operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, missing)}},
		{"an open write happened later than it can", false, []Operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, missing), op(12, 13, read, value("a", 5))}},
		{"an open write was seen and lost", false, []Operation{op(1, 9, setTo("a"), unknown), op(2, 3, read, value("a", 5)), op(10, 11, read, missing)}},
		{"an open write has one version", false, []Operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, value("a", 5)), op(12, 13, read, value("a", 6))}},
		{"an acknowledged write without a reply happened", true, []Operation{op(1, 9, setTo("a"), carriedOut), op(10, 11, read, value("a", 5))}},
		{"an acknowledged write without a reply is lost", false, []Operation{op(1, 9, setTo("a"), carriedOut), op(10, 11, read, missing)}},
		{"a deletion is read", true, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, deleted(5)), op(5, 6, read, missing)}},
		{"a deleted key is back", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, deleted(5)), op(5, 6, read, value("a", 5))}},
		{"a deletion of nothing", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, nothing)}},
		{"NX on a key", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nx), ok(6))}},
		{"NX says the version", true, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nx), notApplied(5))}},
		{"NX says another version", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nx), notApplied(4))}},
		{"two NX", false, []Operation{op(1, 9, with(setTo("a"), nx), ok(5)), op(1, 9, with(setTo("b"), nx), ok(6))}},
		{"NEX with the same value", true, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("a"), nex), ok(6))}},
		{"NEX with another value", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nex), ok(6))}},
		{"NEX with an operand", true, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), compare("a")), ok(6))}},
		{"NEX with another operand", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), compare("b")), ok(6))}},
		{"VER", true, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), ver(5)), ok(6))}},
		{"another VER", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), ver(4)), ok(6))}},
		{"VER of no key", true, []Operation{op(1, 2, with(setTo("a"), ver(0)), ok(5)), op(3, 4, with(setTo("b"), ver(0)), notApplied(5))}},
		{"VER of an open write tells its version", false, []Operation{op(1, 9, setTo("a"), unknown), op(10, 11, with(setTo("b"), ver(5)), ok(7)), op(12, 13, read, value("a", 5))}},
		{"a token protects", true, []Operation{op(1, 2, with(setTo("a"), token(3)), ok(5)), op(3, 4, setTo("b"), refusedWith(statestore.TokenRequired)), op(5, 6, with(setTo("b"), token(2)), refusedWith(statestore.TokenTooLow)), op(7, 8, with(setTo("b"), token(3)), ok(6))}},
		{"a token is forgotten", false, []Operation{op(1, 2, with(setTo("a"), token(3)), ok(5)), op(3, 4, setTo("b"), ok(6))}},
		{"a lower token passes", false, []Operation{op(1, 2, with(setTo("a"), token(3)), ok(5)), op(3, 4, with(setTo("b"), token(2)), ok(6))}},
		{"a token where none is needed", false, []Operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), refusedWith(statestore.TokenRequired))}},
		{"a key expires", true, []Operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(50, 60, read, value("a", 5)), op(150, 160, read, missing)}},
		{"a key expires early", false, []Operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(50, 60, read, missing)}},
		{"a key outlives its deadline", false, []Operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(150, 160, read, value("a", 5))}},
		{"an expired key is back", false, []Operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(95, 96, read, missing), op(97, 98, read, value("a", 5))}},
		{"SET takes the deadline away", true, []Operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(3, 4, setTo("b"), ok(6)), op(950, 960, read, value("b", 6))}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := Judge(c.ops, nil, t.TempDir())
			if good := len(v.Violations) == 0; good != c.good {
				t.Errorf("good: %v, want %v\n%s", good, c.good, strings.Join(v.Violations, "\n"))
			}
		})
	}
}

func TestSightings(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		good bool
		seen Sighting
		ops  []Operation
	}{
		{"of a write that was answered", true, Sighting{Key: "k", Value: "a", Version: at(5)}, []Operation{op(1, 2, setTo("a"), ok(5))}},
		{"with another version", false, Sighting{Key: "k", Value: "a", Version: at(6)}, []Operation{op(1, 2, setTo("a"), ok(5))}},
		{"of a value that was not written", false, Sighting{Key: "k", Value: "b", Version: at(5)}, []Operation{op(1, 2, setTo("a"), ok(5))}},
		{"of an open write, which stays", true, Sighting{Key: "k", Value: "a", Version: at(5), At: 5e6}, []Operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, value("a", 5))}},
		{"of an open write, which is lost", false, Sighting{Key: "k", Value: "a", Version: at(5), At: 5e6}, []Operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, missing)}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := Judge(c.ops, []Sighting{c.seen}, t.TempDir())
			if good := len(v.Violations) == 0; good != c.good {
				t.Errorf("good: %v, want %v\n%s", good, c.good, strings.Join(v.Violations, "\n"))
			}
		})
	}
}
