package txn_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

const nowMs = 1_000_000

var stamp = statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: nowMs, Node: "client"}}

// store is a store that runs one command after the other, as the rules of single commands
// say: the model of a transaction.
type store struct {
	entries map[string]*statestore.Entry
	last    hlc.Timestamp
	keys    int64 // bound of keys
	bytes   int64 // bound of keys and values
}

func (s *store) room() statestore.Room {
	room := statestore.Room{Keys: s.keys, Bytes: s.bytes, Memos: 1000}
	for key, e := range s.entries {
		room.Keys--
		room.Bytes -= int64(len(key) + len(e.Value))
	}
	return room
}

func (s *store) env() statestore.Env {
	return statestore.Env{NowMs: nowMs, WallMs: nowMs, Last: s.last, Node: "store", MaxSkewMs: 60_000, KeepMs: 1000, MaxKeepMs: 10_000, Room: s.room()}
}

func (s *store) apply(cmd *statestore.Command) statestore.Reply {
	env, res := s.env(), statestore.Result{}
	statestore.Apply(cmd, statestore.Cell{Entry: s.entries[string(cmd.Key)]}, &env, &res)
	if res.Changed {
		s.last = res.Last
		if res.Entry == nil {
			delete(s.entries, string(cmd.Key))
		} else {
			s.entries[string(cmd.Key)] = res.Entry.Clone()
		}
	}
	return res.Reply
}

func (s *store) clone() *store {
	c := *s
	c.entries = map[string]*statestore.Entry{}
	for key, e := range s.entries {
		c.entries[key] = e.Clone()
	}
	return &c
}

func (s *store) world(t *txn.Transaction) *txn.World {
	w := &txn.World{Env: s.env(), Made: make([]*statestore.Memo, len(t.Conditions))}
	for _, key := range t.Keys {
		w.Cells = append(w.Cells, txn.Cell{Entry: s.entries[string(key)].Clone(), Room: s.room()})
	}
	return w
}

// A transaction is its writes, one after the other, or nothing: the first that a store
// would refuse by itself refuses all.
func TestATransactionIsItsWritesOrNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"a", "b", "c", "dd"})
		value := rapid.SampledFrom([]string{"", "v", "long value"})
		token := func() statestore.Stamp {
			if rapid.Bool().Draw(t, "no token") {
				return statestore.Stamp{}
			}
			return statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: nowMs, Counter: rapid.Uint64Range(0, 3).Draw(t, "token"), Node: "n"}}
		}
		command := func() *statestore.Command {
			cmd := &statestore.Command{Verb: statestore.Set, Key: []byte(key.Draw(t, "key")), Value: []byte(value.Draw(t, "value")), Time: stamp, Token: token()}
			if rapid.Bool().Draw(t, "del") {
				cmd.Verb, cmd.Value = statestore.Del, nil
			}
			return cmd
		}
		s := &store{entries: map[string]*statestore.Entry{}, last: hlc.Timestamp{Wall: nowMs - 1, Node: "store"},
			keys: rapid.Int64Range(1, 4).Draw(t, "keys"), bytes: rapid.Int64Range(1, 30).Draw(t, "bytes")}
		for range rapid.IntRange(0, 6).Draw(t, "before") {
			s.apply(command())
		}
		var x txn.Transaction
		for op := range rapid.IntRange(1, 5).Draw(t, "writes") {
			x.Then(txn.Write{Op: op + 1, Command: *command()}) // one of a key twice is left out
		}
		model, refused := s.clone(), (*txn.Write)(nil)
		var want statestore.Reply
		for i := range x.Writes {
			if want = model.apply(&x.Writes[i].Command); want.Kind == statestore.Error {
				refused = &x.Writes[i]
				break
			}
		}
		var out txn.Outcome
		txn.Judge(&x, s.world(&x), &out)
		if refused != nil {
			if out.Committed() || out.Reply.Op != refused.Op || out.Reply.Fault != want.Fault || out.Reply.Bound != want.Bound {
				t.Fatalf("%+v, want operation %d refused: %v, %v", out.Reply, refused.Op, want.Fault, want.Bound)
			}
			return
		}
		if !out.Committed() || out.Last != model.last {
			t.Fatalf("%+v and version %v, want it done with %v", out.Reply, out.Last, model.last)
		}
		for i := range x.Writes {
			got, want := out.Results[i].Entry, model.entries[string(x.Writes[i].Command.Key)]
			if show(got) != show(want) {
				t.Fatalf("write %d: %s, want %s", i, show(got), show(want))
			}
		}
	})
}

func show(e *statestore.Entry) string {
	if e == nil {
		return "none"
	}
	return fmt.Sprintf("%q %v %v", e.Value, e.Version, e.Token)
}

// What speaks against a transaction does so in the order of the protocol, section 12.
func TestOrderOfChecks(t *testing.T) {
	t.Parallel()
	s := &store{entries: map[string]*statestore.Entry{}, keys: 1, bytes: 100}
	s.apply(&statestore.Command{Verb: statestore.Set, Key: []byte("k"), Value: []byte("v"), Time: stamp, Token: stamp})
	var x txn.Transaction
	x.Remember([]byte("once"), txn.Once{Op: 1, Message: []byte("m")})
	x.If([]byte("k"), txn.Condition{Op: 2, Check: txn.HasValue, Operand: []byte("other")})
	x.Then(txn.Write{Op: 3, Command: statestore.Command{Verb: statestore.Set, Key: []byte("k")}})
	x.Then(txn.Write{Op: 4, Command: statestore.Command{Verb: statestore.Set, Key: []byte("new")}})
	w := s.world(&x)
	w.Once = []*statestore.Memo{{Version: s.last, DeadlineMs: nowMs + 1}}
	check := func(op, count int, f statestore.Fault, b statestore.Bound) {
		t.Helper()
		var out txn.Outcome
		txn.Judge(&x, w, &out)
		if r := out.Reply; r.Op != op || r.Count != count || r.Fault != f || r.Bound != b || len(out.Memos) > 0 && !out.Committed() {
			t.Errorf("%+v, want operation %d, count %d, %v, %v", r, op, count, f, b)
		}
	}
	check(1, 0, statestore.MissingTimestamp, statestore.NoBound)
	x.Stamp(stamp, statestore.Stamp{})
	check(0, statestore.AlreadyDone, statestore.None, statestore.NoBound)
	x.Once[0].Context, x.Once[0].Compare = []byte("one"), true
	check(0, statestore.AlreadyDone, statestore.None, statestore.NoBound) // what is remembered is no digest, as it is not done
	w.Once[0].Done, w.Once[0].Context = true, []byte("another")
	check(1, 0, statestore.OtherDigest, statestore.NoBound)
	w.Once[0].Context = []byte("one")
	check(0, statestore.AlreadyDone, statestore.None, statestore.NoBound)
	w.Env.NowMs++ // the message is forgotten
	check(2, statestore.ConditionFailed, statestore.None, statestore.NoBound)
	x.Conditions[0].Operand = []byte("v")
	check(3, 0, statestore.TokenRequired, statestore.NoBound)
	x.Writes[0].Command.Token = stamp
	check(4, 0, statestore.QuotaExceeded, statestore.MaxKeys)
	x.Writes = x.Writes[:1]
	w.Once, w.Cells[x.Once[0].Key].Room.Memos = []*statestore.Memo{nil}, 2*5+3+64-1 // "once", "m" and the context "one"
	check(1, 0, statestore.QuotaExceeded, statestore.MaxRemembered)
	w.Cells[x.Once[0].Key].Room.Disk = statestore.DiskLow
	check(1, 0, statestore.QuotaExceeded, statestore.DiskReserve)
	w.Cells[x.Once[0].Key].Room = s.room()
	check(0, statestore.Committed, statestore.None, statestore.NoBound)
}

// Several messages: the first that is remembered decides; each needs room; the key has one version
// for all of them.
func TestSeveralMessages(t *testing.T) {
	t.Parallel()
	s := &store{entries: map[string]*statestore.Entry{}, keys: 10, bytes: 100}
	var x txn.Transaction
	for i, id := range []string{"a", "b", "c"} {
		if f := x.Remember([]byte("k"), txn.Once{Op: i + 1, Message: []byte(id), Context: []byte("ctx " + id)}); f != statestore.None {
			t.Fatal(f)
		}
	}
	if f := x.Remember([]byte("k"), txn.Once{Op: 4, Message: []byte("b")}); f != statestore.SameKey {
		t.Errorf("a message twice: %v", f)
	}
	if f := x.Remember([]byte("other"), txn.Once{Op: 4, Message: []byte("b")}); f != statestore.None {
		t.Errorf("the same message ID under another key: %v", f)
	}
	x.Then(txn.Write{Op: 5, Command: statestore.Command{Verb: statestore.Set, Key: []byte("k")}})
	x.Stamp(stamp, statestore.Stamp{})
	w := s.world(&x)
	w.Once = make([]*statestore.Memo, 4)
	for i := range w.Cells {
		w.Cells[i].Room.Memos = 1000
	}
	var out txn.Outcome
	txn.Judge(&x, w, &out)
	if !out.Committed() || len(out.Memos) != 4 || out.Memos[0].Version != out.Memos[2].Version || out.Memos[3].Version.Compare(out.Memos[0].Version) <= 0 ||
		string(out.Memos[1].Context) != "ctx b" {
		t.Errorf("%+v, memos %+v", out.Reply, out.Memos)
	}
	w.Once[2] = &statestore.Memo{Version: stamp.At, DeadlineMs: nowMs + 1}
	if txn.Judge(&x, w, &out); out.Reply.Count != statestore.AlreadyDone || out.Reply.Op != 3 || out.Reply.Version != stamp.At {
		t.Errorf("one is remembered: %+v", out.Reply)
	}
	w.Once[2] = nil
	const each, other = 2*2 + 5 + 64, 2*6 + 64 // k, an ID and its context; "other" and an ID
	for room, op := range map[int64]int{3*each + other: 0, 3*each + other - 1: 4, 3*each - 1: 3, each: 2} {
		for i := range w.Cells {
			w.Cells[i].Room.Memos = room
		}
		if txn.Judge(&x, w, &out); out.Reply.Op != op || out.Committed() != (op == 0) {
			t.Errorf("room for %d: %+v", room, out.Reply)
		}
	}
}
