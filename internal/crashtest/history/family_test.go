package history

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// on is an operation on a key between two moments in milliseconds.
func on(key string, call, ret int64, in Request, out Answer) Operation {
	o := op(call, ret, in, out)
	o.Key = key
	return o
}

// tx is a TXN between two moments in milliseconds.
func tx(call, ret int64, x Txn, out Answer) Operation {
	return on("", call, ret, Request{Verb: statestore.Txn, Txn: &x}, out)
}

func set(key, value string) Request {
	return Request{Verb: statestore.Set, Key: key, Value: value}
}

func del(key string) Request { return Request{Verb: statestore.Del, Key: key} }

func when(key string, check txn.Check) Condition { return Condition{Key: key, Check: check} }

// committed is the answer to a TXN that is done, with the version of each write; 0 for a
// DEL of no key.
func committed(versions ...uint64) Answer {
	a := Answer{Fate: Answered, Kind: statestore.Transacted, Count: statestore.Committed}
	for i, v := range versions {
		a.Versions[i] = at(v)
		if v != 0 {
			a.Version = at(v)
		}
	}
	return a
}

// ofItsOwn is the same answer if the message of ONCE has got a version of its own.
func ofItsOwn(a Answer, version uint64) Answer {
	a.Version = at(version)
	return a
}

func alreadyDone(version uint64) Answer {
	return Answer{Fate: Answered, Kind: statestore.Transacted, Count: statestore.AlreadyDone, Version: at(version)}
}

// unmet is the answer about a condition that does not hold; version 0: there is no such key.
func unmet(op int, value string, version uint64) Answer {
	return Answer{Fate: Answered, Kind: statestore.Transacted, Count: statestore.ConditionFailed, Op: op, Found: version != 0, Value: value, Version: at(version)}
}

func TestFamilyModel(t *testing.T) {
	t.Parallel()
	both := Txn{Writes: []Request{set("a", "1"), set("b", "2")}}
	once := Txn{Writes: []Request{set("a", "1")}, Once: Message{"a", "m"}}
	onceOfB := Txn{Writes: []Request{set("a", "1")}, Once: Message{"b", "m"}}
	after := Txn{Conditions: []Condition{{Key: "a", Check: txn.MadeBy, Message: "m"}}, Writes: []Request{set("b", "2")}}
	fenced := Txn{Conditions: []Condition{when("a", txn.Exists)}, Writes: []Request{set("b", "2"), set("a", "1")}}
	load := Request{Verb: statestore.Load, Message: "m"}
	isNew := Answer{Fate: Answered, Kind: statestore.Loaded, Count: statestore.NewMessage}
	isDone := func(version uint64) Answer {
		return Answer{Fate: Answered, Kind: statestore.Loaded, Count: statestore.Confirmed, Version: at(version)}
	}
	token := with(setTo("x"), func(r *Request) { r.Token = at(3) })
	needsToken := refusedWith(statestore.TokenRequired)
	needsToken.Op = 3

	cases := []struct {
		name string
		good bool
		ops  []Operation
	}{
		{"both keys are written", true, []Operation{tx(1, 2, both, committed(5, 6)), on("a", 3, 4, read, value("1", 5)), on("b", 3, 4, read, value("2", 6))}},
		{"one of two is lost", false, []Operation{tx(1, 2, both, committed(5, 6)), on("a", 3, 4, read, value("1", 5)), on("b", 3, 4, read, missing)}},
		{"half of an open one is done", false, []Operation{tx(1, 9, both, unknown), on("a", 10, 11, read, value("1", 5)), on("b", 12, 13, read, missing)}},
		{"an open one is done", true, []Operation{tx(1, 9, both, unknown), on("a", 10, 11, read, value("1", 5)), on("b", 12, 13, read, value("2", 6))}},
		{"an open one is not done", true, []Operation{tx(1, 9, both, unknown), on("a", 10, 11, read, missing), on("b", 12, 13, read, missing)}},
		{"an acknowledged one is not done", false, []Operation{tx(1, 9, both, carriedOut), on("a", 10, 11, read, missing), on("b", 12, 13, read, missing)}},
		{"half of it is seen meanwhile", false, []Operation{tx(1, 9, both, committed(5, 6)), on("a", 2, 3, read, value("1", 5)), on("b", 4, 5, read, missing)}},
		{"two in opposite orders", false, []Operation{
			tx(1, 9, both, committed(5, 6)), tx(1, 9, Txn{Writes: []Request{set("a", "3"), set("b", "4")}}, committed(7, 8)),
			on("a", 10, 11, read, value("1", 5)), on("b", 10, 11, read, value("4", 8)),
		}},
		{"its versions fall", false, []Operation{tx(1, 2, both, committed(6, 5))}},
		{"two writes have one version", false, []Operation{tx(1, 2, both, committed(5, 5))}},
		{"a condition holds", true, []Operation{on("a", 1, 2, setTo("x"), ok(3)), tx(3, 4, fenced, committed(5, 6))}},
		{"a condition that does not hold", false, []Operation{tx(3, 4, fenced, committed(5, 6))}},
		{"a condition fails", true, []Operation{tx(3, 4, fenced, unmet(1, "", 0))}},
		{"a condition fails that holds", false, []Operation{on("a", 1, 2, setTo("x"), ok(3)), tx(3, 4, fenced, unmet(1, "x", 3))}},
		{"a failure shows an old value", false, []Operation{
			on("a", 1, 2, setTo("x"), ok(3)), on("a", 3, 4, setTo("y"), ok(4)),
			tx(5, 6, Txn{Conditions: []Condition{when("a", txn.Absent)}}, unmet(1, "x", 3)),
		}},
		{"a failure names another condition", false, []Operation{
			on("b", 1, 2, setTo("x"), ok(3)),
			tx(5, 6, Txn{Conditions: []Condition{when("a", txn.Exists), when("b", txn.Absent)}}, unmet(2, "x", 3)),
		}},
		{"a write is refused and all are", true, []Operation{on("a", 1, 2, token, ok(3)), tx(3, 4, fenced, needsToken), on("b", 5, 6, read, missing)}},
		{"a write is refused and another is done", false, []Operation{on("a", 1, 2, token, ok(3)), tx(3, 4, fenced, needsToken), on("b", 5, 6, read, value("2", 4))}},
		{"a DEL has a version", true, []Operation{on("a", 1, 2, setTo("x"), ok(3)), tx(3, 4, Txn{Writes: []Request{del("a"), del("b")}}, committed(4, 0)), on("a", 5, 6, setTo("y"), ok(5))}},
		{"a DEL of no key has a version", false, []Operation{tx(3, 4, Txn{Writes: []Request{del("a")}}, committed(4))}},
		{"a SET has a version before that of a DEL", false, []Operation{on("a", 1, 2, setTo("x"), ok(3)), tx(3, 4, Txn{Writes: []Request{del("a")}}, committed(6)), on("a", 5, 6, setTo("y"), ok(5))}},
		{"once", true, []Operation{tx(1, 2, once, committed(5)), tx(3, 4, once, alreadyDone(5)), on("a", 5, 6, load, isDone(5))}},
		{"twice", false, []Operation{tx(1, 2, once, committed(5)), tx(3, 4, once, committed(6))}},
		{"done already with another version", false, []Operation{tx(1, 2, once, committed(5)), tx(3, 4, once, alreadyDone(6))}},
		{"done already, and it was not", false, []Operation{tx(3, 4, once, alreadyDone(6))}},
		{"an open one is done once", true, []Operation{tx(1, 9, once, unknown), tx(10, 11, once, alreadyDone(5)), on("a", 12, 13, read, value("1", 5))}},
		{"an open one is remembered, and its write is lost", false, []Operation{tx(1, 9, once, unknown), tx(10, 11, once, alreadyDone(5)), on("a", 12, 13, read, missing)}},
		{"an open one has another version", false, []Operation{tx(1, 9, once, unknown), tx(10, 11, once, alreadyDone(5)), on("a", 12, 13, read, value("1", 6))}},
		{"a message is forgotten", false, []Operation{tx(1, 2, once, committed(5)), on("a", 3, 4, load, isNew)}},
		{"a message with a version of its own", true, []Operation{tx(1, 2, onceOfB, ofItsOwn(committed(5), 6)), tx(3, 4, onceOfB, alreadyDone(6))}},
		{"a message with a version of its own that is too low", false, []Operation{tx(1, 2, onceOfB, ofItsOwn(committed(5), 4))}},
		{"the version that a message has made", true, []Operation{tx(1, 9, once, unknown), tx(10, 11, after, committed(7))}},
		{"the version that another has made", false, []Operation{tx(1, 2, once, committed(5)), on("a", 3, 4, setTo("1"), ok(6)), tx(10, 11, after, committed(7))}},
		{"the version of a message that is new", false, []Operation{on("a", 3, 4, setTo("1"), ok(6)), tx(10, 11, after, committed(7))}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := Judge(c.ops, nil, t.TempDir())
			if good := len(v.Violations) == 0; good != c.good || v.Unchecked != 0 {
				t.Errorf("good: %v, want %v (%d unchecked)\n%s", good, c.good, v.Unchecked, strings.Join(v.Violations, "\n"))
			}
		})
	}
}

// A watcher's notification proves that a transaction without a reply is done, as a whole.
func TestSightingsOfTransactions(t *testing.T) {
	t.Parallel()
	both := Txn{Writes: []Request{set("a", "1"), set("b", "2")}}
	open := tx(1, 9, both, unknown)
	cases := []struct {
		name string
		good bool
		seen Sighting
		ops  []Operation
	}{
		{"as it was answered", true, Sighting{Key: "b", Value: "2", Version: at(6)}, []Operation{tx(1, 2, both, committed(5, 6))}},
		{"with another version", false, Sighting{Key: "b", Value: "2", Version: at(7)}, []Operation{tx(1, 2, both, committed(5, 6))}},
		{"of an open one, which stays", true, Sighting{Key: "b", Value: "2", Version: at(6), At: 5 * int64(time.Millisecond)}, []Operation{open, on("a", 10, 11, read, value("1", 5))}},
		{"of an open one, whose other key is lost", false, Sighting{Key: "b", Value: "2", Version: at(6), At: 5 * int64(time.Millisecond)}, []Operation{open, on("a", 10, 11, read, missing)}},
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
