package statestore_test

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func load(message string, options ...func(*statestore.Command)) *statestore.Command {
	return with(&statestore.Command{Verb: statestore.Load, Key: []byte("k"), Message: []byte(message)}, options)
}

// storeMessage is a STORE that demands that the key doesn't exist, unless an
// option says which version it must have.
func storeMessage(message, state string, options ...func(*statestore.Command)) *statestore.Command {
	cmd := &statestore.Command{Verb: statestore.Store, Key: []byte("k"), Value: []byte(state), Message: []byte(message), Time: at(-1, 0)}
	verAbsent(cmd)
	return with(cmd, options)
}

func done(message string, options ...func(*statestore.Command)) *statestore.Command {
	return with(&statestore.Command{Verb: statestore.Done, Key: []byte("k"), Message: []byte(message)}, options)
}

func ctx(blob string) func(*statestore.Command) {
	return func(c *statestore.Command) { c.Context = []byte(blob) }
}

func remove(c *statestore.Command) { c.Remove = true }

func keep(ms int64) func(*statestore.Command) {
	return func(c *statestore.Command) { c.KeepMs = ms }
}

func TestSection8Load(t *testing.T) {
	t.Parallel()
	checkRules(t, []rule{
		{"0, new message, no key: nil, nil, no version", []step{
			{load("m"), "0 nil nil"},
		}},
		{"0, new message: the current value, nil, the current version", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{load("m"), `0 "a" nil @0:1`},
			{set(""), "OK @0:2 | SET k= @0:2"},
			{load("m"), `0 "" nil @0:2`},
		}},
		{"1, duplicate: the value before this message, what STORE captured, the version it produced", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "b", ver(0, 1), ctx("captured")), "OK @0:2 | SET k=b @0:2"},
			{load("m"), `1 "a" "captured" @0:2`},
		}},
		{"1, duplicate, there was no key: nil", []step{
			{storeMessage("m", "b"), "OK @0:1 | SET k=b @0:1"},
			{load("m"), `1 nil nil @0:1`},
		}},
		{"an empty value before, and an empty context, are not nil", []step{
			{set(""), "OK @0:1 | SET k= @0:1"},
			{storeMessage("m", "b", ver(0, 1), ctx("")), "OK @0:2 | SET k=b @0:2"},
			{load("m"), `1 "" "" @0:2`},
		}},
		{"2, duplicate, outputs confirmed: nil, nil, the version this message produced", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "b", ver(0, 1), ctx("captured")), "OK @0:2 | SET k=b @0:2"},
			{set("c"), "OK @0:3 | SET k=c @0:3"},
			{done("m"), "1"},
			{load("m"), "2 nil nil @0:2"},
		}},
		{"2, outputs confirmed: the context that DONE has left", []step{
			{storeMessage("m", "a", ctx("captured")), "OK @0:1 | SET k=a @0:1"},
			{done("m", ctx("digest")), "1"},
			{load("m"), `2 nil "digest" @0:1`},
			{done("m", ctx("other")), "1"},
			{load("m"), `2 nil "digest" @0:1`},
		}},
		{"DONE with a version is about the message that made it", []step{
			{storeMessage("m", "a", ctx("captured")), "OK @0:1 | SET k=a @0:1"},
			{done("m", ver(0, 2)), "0"},
			{load("m"), `1 nil "captured" @0:1`},
			{done("m", ver(0, 1)), "1"},
			{done("m", ver(0, 2)), "0"},
			{done("m", ver(0, 1)), "1"},
			{load("m"), `2 nil nil @0:1`},
		}},
		{"a duplicate long after, with other messages between, still sees the state before it", []step{
			{storeMessage("1", "a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("2", "b", ver(0, 1)), "OK @0:2 | SET k=b @0:2"},
			{storeMessage("3", "c", ver(0, 2)), "OK @0:3 | SET k=c @0:3"},
			{set("another client's"), "OK @0:4 | SET k=another client's @0:4"},
			{load("1"), "1 nil nil @0:1"},
			{load("2"), `1 "a" nil @0:2`},
			{load("3"), `1 "b" nil @0:3`},
			{load("4"), `0 "another client's" nil @0:4`},
		}},
		{"LOAD needs no timestamp and ignores a bad one", []step{
			{load("m", time(malformed)), "0 nil nil"},
			{load("m", time(at(999_999, 0))), "0 nil nil"},
		}},
		{"LOAD and DONE need no fencing token and ignore one", []step{
			{storeMessage("m", "a", token(at(0, 5))), "OK @0:1 | SET k=a @0:1"},
			{load("m"), "1 nil nil @0:1"},
			{load("m", token(at(0, 1))), "1 nil nil @0:1"},
			{load("m", token(malformed)), "1 nil nil @0:1"},
			{done("m", token(at(0, 1))), "1"},
			{done("m", token(malformed)), "1"},
			{done("m"), "1"},
		}},
	})
}

func TestSection8Store(t *testing.T) {
	t.Parallel()
	checkRules(t, []rule{
		{"only if the key's current version is version", []step{
			{storeMessage("m", "a", ver(0, 1)), "conflict"},
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "b", ver(0, 2)), "conflict @0:1"},
			{storeMessage("m", "b"), "conflict @0:1"},
			{load("m"), `0 "a" nil @0:1`},
			{storeMessage("m", "b", ver(0, 1)), "OK @0:2 | SET k=b @0:2"},
			{get(), `"b" @0:2`},
		}},
		{"DEL: the key is deleted, and the message remembered with the version of the deletion", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "b", ver(0, 1), remove), "OK @0:2 | DELETE k @0:2"},
			{load("m"), `1 "a" nil @0:2`},
			{load("n"), "0 nil nil"},
			{storeMessage("n", "c"), "OK @0:3 | SET k=c @0:3"},
		}},
		{"DEL of a key that does not exist: the message is remembered, with a version of its own", []step{
			{storeMessage("m", "", remove), "OK @0:1"},
			{load("m"), "1 nil nil @0:1"},
			{storeMessage("m", "", remove), "0 @0:1"},
			{set("a"), "OK @0:2 | SET k=a @0:2"},
		}},
		{"-: the key does not exist", []step{
			{storeMessage("m", "a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("n", "b"), "conflict @0:1"},
			{del(), "1 @0:1 | DELETE k @0:2"},
			{storeMessage("n", "b"), "OK @0:3 | SET k=b @0:3"},
		}},
		{"two STOREs with one version: the second is told that the first was faster", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "b", ver(0, 1)), "OK @0:2 | SET k=b @0:2"},
			{storeMessage("n", "c", ver(0, 1)), "conflict @0:2"},
		}},
		{"already remembered: :0 with the version it produced, whatever else is asked", []step{
			{storeMessage("m", "a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "a"), "0 @0:1"},
			{storeMessage("m", "other", ver(0, 1)), "0 @0:1"},
			{set("b"), "OK @0:2 | SET k=b @0:2"},
			{storeMessage("m", "a"), "0 @0:1"},
			{done("m"), "1"},
			{storeMessage("m", "a"), "0 @0:1"},
			{get(), `"b" @0:2`},
		}},
		{"fencing comes before what is remembered", []step{
			{storeMessage("m", "a", token(at(0, 5))), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "a"), statestore.TokenRequired.Error()},
			{storeMessage("m", "a", token(at(0, 4))), statestore.TokenTooLow.Error()},
			{storeMessage("m", "a", token(at(60_001, 0))), statestore.TokenAhead.Error()},
			{storeMessage("m", "a", token(malformed)), statestore.MalformedTimestamp.Error()},
			{storeMessage("m", "a", token(at(0, 5))), "0 @0:1"},
		}},
		{"an applied STORE keeps the newer token, as SET does", []step{
			{storeMessage("m", "a", token(at(0, 5))), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("n", "b", ver(0, 1), token(at(0, 7))), "OK @0:2 | SET k=b @0:2"},
			{set("c", token(at(0, 6))), statestore.TokenTooLow.Error()},
			{storeMessage("o", "c", ver(0, 1), token(at(0, 9))), "conflict @0:2"},
			{set("c", token(at(0, 7))), "OK @0:3 | SET k=c @0:3"},
		}},
		{"STORE needs __ts, which parses and is not too far ahead", []step{
			{storeMessage("m", "a", time(statestore.Stamp{})), statestore.MissingTimestamp.Error()},
			{storeMessage("m", "a", time(malformed)), statestore.MalformedTimestamp.Error()},
			{storeMessage("m", "a", time(at(60_001, 0))), statestore.TimestampAhead.Error()},
			{storeMessage("m", "a", time(at(5, 7))), "OK @5:8 | SET k=a @5:8"},
		}},
		{"authorization comes first: STORE and DONE write, LOAD reads", []step{
			{storeMessage("m", "a", denied, time(malformed), token(malformed)), statestore.NotAuthorized.Error()},
			{done("m", denied), statestore.NotAuthorized.Error()},
			{load("m", denied), statestore.NotAuthorized.Error()},
		}},
		{"messages are remembered per key and message", []step{
			{storeMessage("m", "a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("m", "x", func(c *statestore.Command) { c.Key = []byte("l") }), "OK @0:2 | SET l=x @0:2"},
			{load("m"), "1 nil nil @0:1"},
			{load("m", func(c *statestore.Command) { c.Key = []byte("l") }), "1 nil nil @0:2"},
		}},
		{"a message is remembered although the key was deleted since", []step{
			{storeMessage("m", "a"), "OK @0:1 | SET k=a @0:1"},
			{storeMessage("n", "b", ver(0, 1), ctx("c")), "OK @0:2 | SET k=b @0:2"},
			{del(), "1 @0:2 | DELETE k @0:3"},
			{load("n"), `1 "a" "c" @0:2`},
			{storeMessage("n", "b"), "0 @0:2"},
			{load("o"), "0 nil nil"},
		}},
		{"the key is an ordinary key", []step{
			{storeMessage("m", "a"), "OK @0:1 | SET k=a @0:1"},
			{set("b", ver(0, 1)), "OK @0:2 | SET k=b @0:2"},
			{vdel("x"), "-1 @0:2"},
			{vdel("b"), "1 @0:2 | DELETE k @0:3"},
			{get(), "nil"},
		}},
	})
	for verb, writes := range map[statestore.Verb]bool{statestore.Load: false, statestore.Store: true, statestore.Done: true} {
		if verb.Writes() != writes {
			t.Errorf("%v: Writes is %v", verb, !writes)
		}
	}
}

func TestSection8Done(t *testing.T) {
	t.Parallel()
	checkRules(t, []rule{
		{":0 if not remembered", []step{
			{done("m"), "0"},
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{done("m"), "0"},
		}},
		{":1 drops the remembered value and context, the messageId stays", []step{
			{storeMessage("m", "a", ctx("c")), "OK @0:1 | SET k=a @0:1"},
			{done("m"), "1"},
			{load("m"), "2 nil nil @0:1"},
			{done("m"), "1"},
			{storeMessage("m", "a"), "0 @0:1"},
		}},
	})
	t.Run("what is kept is as small as can be", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.do(storeMessage("m", "a", ctx("c")))
		before := *s.res.Memo
		s.want(done("m"), "1")
		if got := *s.res.Memo; got.State != nil || got.Context != nil || !got.Done || got.Version != before.Version || got.DeadlineMs != before.DeadlineMs {
			t.Errorf("%+v is left of %+v", got, before)
		}
		if s.res.Changed {
			t.Error("DONE changed the key")
		}
		s.want(done("m"), "1")
		if s.res.MemoChanged {
			t.Error("a second DONE changed something")
		}
	})
}

func TestSection8Expiry(t *testing.T) {
	t.Parallel()
	t.Run("STORE has a PX of its own", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(storeMessage("m", "a", px(100)), "OK @0:1 | SET k=a @0:1")
		s.advance(99)
		s.want(get(), `"a" @0:1`)
		s.advance(1)
		s.want(get(), "nil")
		s.want(load("m"), "1 nil nil @0:1")
	})
	t.Run("what was granted is said if it is not what KEEP asked for", func(t *testing.T) {
		t.Parallel()
		for asked, granted := range map[int64]int64{0: 7 * day, 1: 0, 30 * day: 0, 31 * day: 30 * day} {
			s := newStore(t)
			s.want(storeMessage("probe", "a", keep(asked), ver(0, 9)), "conflict") // asks and changes nothing
			if got := s.res.Reply.KeepMs; got != granted {
				t.Errorf("KEEP %d without effect: granted %d, want %d", asked, got, granted)
			}
			s.want(storeMessage("m", "a", keep(asked)), "OK @0:1 | SET k=a @0:1")
			if got := s.res.Reply.KeepMs; got != granted {
				t.Errorf("KEEP %d: granted %d, want %d", asked, got, granted)
			}
		}
	})
	t.Run("STORE clears PX", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(100)), "OK @0:1 | SET k=a @0:1")
		s.want(storeMessage("m", "b", ver(0, 1)), "OK @0:2 | SET k=b @0:2")
		s.advance(1000)
		s.want(get(), `"b" @0:2`)
	})
	t.Run("an expired key is absent, and its deletion is told first", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(100)), "OK @0:1 | SET k=a @0:1")
		s.advance(100)
		s.want(load("m"), "0 nil nil")
		s.want(storeMessage("m", "b", ver(0, 1)), "conflict")
		s.want(storeMessage("m", "b"), "OK @100:2 | DELETE k @100:1 | SET k=b @100:2")
		s.want(load("m"), "1 nil nil @100:2")
	})
	t.Run("a message is remembered although the key expired since", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(storeMessage("m", "a"), "OK @0:1 | SET k=a @0:1")
		s.want(set("b", px(100)), "OK @0:2 | SET k=b @0:2")
		s.advance(100)
		s.want(load("m"), "1 nil nil @0:1")
		if got := s.expire("k"); got != "| DELETE k @100:1" {
			t.Errorf("expire: %s", got)
		}
		s.want(load("m"), "1 nil nil @0:1")
	})
}

func TestSection8Keep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options []func(*statestore.Command)
		ms      int64
	}{
		"KEEP milliseconds":                   {[]func(*statestore.Command){keep(1000)}, 1000},
		"the server's default":                {nil, 7 * day},
		"no longer than the server's maximum": {[]func(*statestore.Command){keep(1000 * day)}, 30 * day},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.want(storeMessage("m", "a", tc.options...), "OK @0:1 | SET k=a @0:1")
			s.advance(tc.ms - 1)
			s.want(load("m"), "1 nil nil @0:1")
			s.want(done("m"), "1")
			s.want(storeMessage("m", "b", ver(0, 1)), "0 @0:1")
			s.advance(1)
			s.want(load("m"), `0 "a" nil @0:1`)
			s.want(done("m"), "0")
			if got := s.do(storeMessage("m", "b", ver(0, 1))); got[:2] != "OK" {
				t.Errorf("after its time the message is not new: %s", got)
			}
		})
	}
	t.Run("the clock of deadlines counts, not the wall clock", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(storeMessage("m", "a", keep(1000)), "OK @0:1 | SET k=a @0:1")
		s.env.WallMs += 10_000
		s.want(load("m"), "1 nil nil @0:1")
		s.env.WallMs -= 20_000
		s.env.NowMs += 1000
		s.want(load("m"), `0 "a" nil @0:1`)
	})
}

// Protocol, section 8: fencing, remembered, version, quota, in this order.
func TestSection8OrderOfChecks(t *testing.T) {
	t.Parallel()
	full := func(s *store) { s.env.Room = statestore.Room{} }
	s := newStore(t)
	s.want(storeMessage("m", "a", token(at(0, 5))), "OK @0:1 | SET k=a @0:1")
	full(s)
	s.want(storeMessage("m", "longer", ver(0, 9), token(at(0, 1))), statestore.TokenTooLow.Error())
	s.want(storeMessage("m", "longer", ver(0, 9), token(at(0, 5))), "0 @0:1")
	s.want(storeMessage("n", "longer", ver(0, 9), token(at(0, 5))), "conflict @0:1")
	s.want(storeMessage("n", "longer", ver(0, 1), token(at(0, 5))), statestore.QuotaExceeded.Error())
}

func TestSection8Quota(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.want(storeMessage("m", "aaaa", keep(100)), "OK @0:1 | SET k=aaaa @0:1")
	const n = 2*2 + 4 + 64 // what "n" counts: key and ID twice, the value before, and 64
	s.env.Room = statestore.Room{Keys: 0, Bytes: 0, Memos: n}
	s.want(storeMessage("n", "aaaaa", ver(0, 1)), statestore.QuotaExceeded.Error()) // of bytes
	s.want(storeMessage("n", "aaaa", ver(0, 1)), "OK @0:2 | SET k=aaaa @0:2")       // it doesn't grow
	s.env.Room = statestore.Room{Keys: 1, Bytes: 100, Memos: n - 1}
	s.want(storeMessage("o", "a", ver(0, 2)), statestore.QuotaExceeded.Error()) // of remembered messages
	s.want(load("o"), `0 "aaaa" nil @0:2`)
	s.env.Room.Memos = 0
	s.want(done("n", ctx("aaaaa")), statestore.QuotaExceeded.Error()) // it would grow by a byte
	s.want(done("n", ctx("aaaa")), "1")
	s.advance(100)
	s.want(storeMessage("m", "a", ver(0, 2)), statestore.QuotaExceeded.Error()) // a forgotten one's place is too small
	s.env.Room.Memos = 4
	s.want(storeMessage("m", "a", ver(0, 2)), "OK @100:1 | SET k=a @100:1")
}

// A DONE that makes the store grow needs room on the disk as well; one that does not needs none.
func TestSection8DoneOnAFullDisk(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.want(storeMessage("m", "a", ctx("four")), "OK @0:1 | SET k=a @0:1")
	s.env.Room.Disk = statestore.DiskScarce
	s.want(done("m", ctx("longer")), statestore.QuotaExceeded.Error())
	s.want(load("m"), `1 nil "four" @0:1`)
	s.want(done("m", ctx("same")), "1")
}

// What is remembered must not be a view of the packet.
func TestSection8CopiesWhatItKeeps(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	cmd := storeMessage("m", "state", ctx("context"))
	s.do(cmd)
	for _, b := range [][]byte{cmd.Value, cmd.Context, cmd.Message} {
		clear(b)
	}
	s.want(load("m"), `1 nil "context" @0:1`)
	s.want(get(), `"state" @0:1`)
	s.want(storeMessage("n", "b", ver(0, 1)), "OK @0:2 | SET k=b @0:2")
	s.want(load("n"), `1 "state" nil @0:2`)
}

func TestLoadDoesNotAllocate(t *testing.T) {
	s := newStore(t)
	s.do(set("a"))
	s.do(storeMessage("m", "b", ver(0, 1), ctx("c")))
	var res statestore.Result
	for name, cell := range map[string]statestore.Cell{
		"new": {Entry: s.cells["k"]}, "duplicate": {Entry: s.cells["k"], Memo: s.memos[[2]string{"k", "m"}]}, "no key": {},
	} {
		cmd := load("m")
		if n := testing.AllocsPerRun(100, func() { statestore.Apply(cmd, cell, &s.env, &res) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
