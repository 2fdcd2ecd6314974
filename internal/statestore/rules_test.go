package statestore_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func TestSection3Commands(t *testing.T) {
	t.Parallel()
	checkRules(t, []rule{
		{"keys and values are arbitrary bytes", []step{
			{set("\x00\r\n\xff"), "OK @0:1 | SET k=\x00\r\n\xff @0:1"},
			{get(), `"\x00\r\n\xff" @0:1`},
		}},
		{"an empty value is a value", []step{
			{set(""), "OK @0:1 | SET k= @0:1"},
			{get(), `"" @0:1`},
			{vdel("x"), "-1 @0:1"},
			{set("", nx), "-1 @0:1"},
			{vdel(""), "1 @0:1 | DELETE k @0:2"},
		}},
		{"NX: applied if there is no such key", []step{
			{set("a", nx), "OK @0:1 | SET k=a @0:1"},
			{set("a", nx), "-1 @0:1"},
			{set("b", nx), "-1 @0:1"},
			{get(), `"a" @0:1`},
			{del(), "1 @0:1 | DELETE k @0:2"},
			{set("b", nx), "OK @0:3 | SET k=b @0:3"},
		}},
		{"NEX alone compares the stored value with the new value", []step{
			{set("me", nex), "OK @0:1 | SET k=me @0:1"},
			{set("me", nex), "OK @0:2 | SET k=me @0:2"},
			{set("you", nex), "-1 @0:2"},
			{get(), `"me" @0:2`},
		}},
		{"NEX compare compares it with compare: compare-and-set", []step{
			{set("a", nexOf("x")), "OK @0:1 | SET k=a @0:1"},
			{set("b", nexOf("b")), "-1 @0:1"},
			{set("b", nexOf("a")), "OK @0:2 | SET k=b @0:2"},
			{set("c", nexOf("")), "-1 @0:2"},
		}},
		{"VER v: applied only if the stored version equals v", []step{
			{set("a", ver(0, 1)), "-1"},
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{set("b", ver(0, 2)), "-1 @0:1"},
			{set("b", ver(1, 1)), "-1 @0:1"},
			{set("b", func(c *statestore.Command) { ver(0, 1)(c); c.Version.At.Node = "other" }), "-1 @0:1"},
			{set("b", ver(0, 1)), "OK @0:2 | SET k=b @0:2"},
		}},
		{"VER -: there is no such key", []step{
			{set("a", verAbsent), "OK @0:1 | SET k=a @0:1"},
			{set("a", verAbsent), "-1 @0:1"},
		}},
		{"with NX or NEX, all must hold", []step{
			{set("a", nx, ver(0, 1)), "-1"},
			{set("a", nx, verAbsent), "OK @0:1 | SET k=a @0:1"},
			{set("b", nx, ver(0, 1)), "-1 @0:1"},
			{set("b", nexOf("a"), ver(0, 9)), "-1 @0:1"},
			{set("b", nexOf("x"), ver(0, 1)), "-1 @0:1"},
			{set("b", nexOf("a"), verAbsent), "-1 @0:1"},
			{set("b", nexOf("a"), ver(0, 1)), "OK @0:2 | SET k=b @0:2"},
		}},
		{"VDEL deletes the value it names only", []step{
			{vdel("a"), "0"},
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{vdel("b"), "-1 @0:1"},
			{vdel("a"), "1 @0:1 | DELETE k @0:2"},
			{vdel("a"), "0"},
		}},
		{"DEL deletes any value", []step{
			{del(), "0"},
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{del(), "1 @0:1 | DELETE k @0:2"},
			{del(), "0"},
			{get(), "nil"},
		}},
	})
}

// Protocol, section 3: SET without PX removes any expiry that the key had. A SET
// that is not applied leaves everything as it was. Protocol, section 6, Expiry: from its
// deadline on a key is absent to every command.
func TestSection3Expiry(t *testing.T) {
	t.Parallel()
	t.Run("SET without PX removes any expiry", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(100)), "OK @0:1 | SET k=a @0:1")
		s.want(set("b"), "OK @0:2 | SET k=b @0:2")
		s.advance(1000)
		s.want(get(), `"b" @0:2`)
		if got := s.expire("k"); got != "" {
			t.Errorf("expired: %s", got)
		}
	})
	t.Run("a SET that is not applied leaves everything as it was", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(100)), "OK @0:1 | SET k=a @0:1")
		s.advance(50)
		s.want(set("b", nx), "-1 @0:1")
		s.want(set("b", nx, px(1000)), "-1 @0:1")
		s.advance(49)
		s.want(get(), `"a" @0:1`)
		s.advance(1)
		s.want(get(), "nil")
	})
	t.Run("a renewal moves the deadline", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("me", nex, px(100)), "OK @0:1 | SET k=me @0:1")
		s.advance(99)
		s.want(set("me", nex, px(100)), "OK @99:1 | SET k=me @99:1")
		s.advance(99)
		s.want(get(), `"me" @99:1`)
		s.advance(1)
		s.want(get(), "nil")
	})
	t.Run("from its deadline on a key is absent to every command", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct {
			cmd  *statestore.Command
			want string
		}{
			{get(), "nil"},
			{del(), "0"},
			{vdel("a"), "0"},
			{vdel("b"), "0"},
			{set("b", ver(0, 1)), "-1"},
			{set("b"), "OK @100:2 | DELETE k @100:1 | SET k=b @100:2"},
			{set("b", nx), "OK @100:2 | DELETE k @100:1 | SET k=b @100:2"},
			{set("b", nex), "OK @100:2 | DELETE k @100:1 | SET k=b @100:2"},
			{set("b", verAbsent), "OK @100:2 | DELETE k @100:1 | SET k=b @100:2"},
		} {
			s := newStore(t)
			s.want(set("a", px(100), token(at(0, 1))), "OK @0:1 | SET k=a @0:1")
			s.advance(100)
			s.want(tc.cmd, tc.want)
		}
	})
	t.Run("a SET that takes its place has later versions than its DELETE, and no token", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(100), token(at(0, 1))), "OK @0:1 | SET k=a @0:1")
		s.advance(100)
		s.want(set("b", time(at(130, 7))), "OK @130:8 | DELETE k @100:1 | SET k=b @130:8")
		s.want(set("c"), "OK @130:9 | SET k=c @130:9")
	})
	t.Run("the deletion is told once", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(100)), "OK @0:1 | SET k=a @0:1")
		s.advance(99)
		if got := s.expire("k"); got != "" {
			t.Errorf("expired before its time: %s", got)
		}
		s.advance(1)
		if got, want := s.expire("k"), "| DELETE k @100:1"; got != want {
			t.Errorf("expiry: %s, want %s", got, want)
		}
		if got := s.expire("k"); got != "" {
			t.Errorf("expired twice: %s", got)
		}
	})
	t.Run("deadlines do not move with steps of the wall clock", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(100)), "OK @0:1 | SET k=a @0:1")
		s.env.WallMs += 50_000
		s.want(get(), `"a" @0:1`)
		s.env.WallMs -= 100_000
		s.env.NowMs += 100
		s.want(get(), "nil")
		if got, want := s.expire("k"), "| DELETE k @0:2"; got != want {
			t.Errorf("expiry: %s, want %s", got, want)
		}
	})
	t.Run("a deadline beyond the calendar is its end", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.want(set("a", px(math.MaxInt64)), "OK @0:1 | SET k=a @0:1")
		s.want(get(), `"a" @0:1`)
		if deadline := s.cells["k"].DeadlineMs; deadline != math.MaxInt64 {
			t.Errorf("the deadline is %d", deadline)
		}
	})
}

func TestSection4Issuing(t *testing.T) {
	t.Parallel()
	checkRules(t, []rule{
		{"a SET at the request's own millisecond gives its counter plus one", []step{
			{set("a", time(at(0, 0))), "OK @0:1 | SET k=a @0:1"},
		}},
		{"the Rust lease tests: the same with any counter", []step{
			{set("a", time(at(0, 41))), "OK @0:42 | SET k=a @0:42"},
		}},
		{"behind is fine: the wall clock counts", []step{
			{set("a", time(at(-3_600_000, 9))), "OK @0:1 | SET k=a @0:1"},
			{set("a", time(statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Node: "c"}})), "OK @0:2 | SET k=a @0:2"},
		}},
		{"a request from the future moves the HLC, and it never goes back", []step{
			{set("a", time(at(500, 3))), "OK @500:4 | SET k=a @500:4"},
			{set("a", time(at(0, 9))), "OK @500:5 | SET k=a @500:5"},
			{del(), "1 @500:5 | DELETE k @500:6"},
			{set("a", time(at(501, 0))), "OK @501:1 | SET k=a @501:1"},
		}},
		{"issued counters stay below 2^31-2: at that bound the wall part advances by 1", []step{
			{set("a", time(at(0, 1<<31-4))), "OK @0:2147483645 | SET k=a @0:2147483645"},
			{set("b"), "OK @1:1 | SET k=b @1:1"},
			{set("c", time(at(1, math.MaxUint64))), "OK @2:1 | SET k=c @2:1"},
		}},
		{"the bound holds for deletions", []step{
			{set("a", time(at(0, 1<<31-4))), "OK @0:2147483645 | SET k=a @0:2147483645"},
			{del(), "1 @0:2147483645 | DELETE k @1:1"},
		}},
		{"SET needs __ts: absent", []step{
			{set("a", time(statestore.Stamp{})), "missing timestamp"},
			{get(), "nil"},
		}},
		{"SET needs __ts: unparsable", []step{{set("a", time(malformed)), "malformed timestamp"}}},
		{"60 s ahead is the bound", []step{
			{set("a", time(at(60_000, 0))), "OK @60000:1 | SET k=a @60000:1"},
		}},
		{"more than 60 s ahead of the wall clock, never of the HLC", []step{
			{set("a", time(at(60_001, 0))), statestore.TimestampAhead.Error()},
			{set("a", time(at(60_000, 0))), "OK @60000:1 | SET k=a @60000:1"},
			// A chain of fast clocks: the HLC is at 60 s now, and stays.
			{set("a", time(at(60_001, 0))), statestore.TimestampAhead.Error()},
			{set("a", time(at(120_000, 0))), statestore.TimestampAhead.Error()},
		}},
		{"only a SET that is applied moves last", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{set("b", nx, time(at(30_000, 5))), "-1 @0:1"},
			{set("b", time(at(90_000, 5))), statestore.TimestampAhead.Error()},
			{set("b"), "OK @0:2 | SET k=b @0:2"},
		}},
		{"on other commands __ts is ignored, valid or not", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{with(get(), []func(*statestore.Command){time(malformed)}), `"a" @0:1`},
			{with(get(), []func(*statestore.Command){time(at(90_000, 0))}), `"a" @0:1`},
			{vdel("b", time(malformed)), "-1 @0:1"},
			{vdel("a", time(at(90_000, 0))), "1 @0:1 | DELETE k @0:2"},
			{del(time(malformed)), "0"},
			{set("a"), "OK @0:3 | SET k=a @0:3"},
			{del(time(at(30_000, 7))), "1 @0:3 | DELETE k @0:4"},
		}},
	})
}

func TestSection4ClockStepsBack(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.want(set("a"), "OK @0:1 | SET k=a @0:1")
	s.env.WallMs -= 30_000
	s.want(set("b", time(at(-30_000, 0))), "OK @0:2 | SET k=b @0:2")
	s.want(set("b", time(at(30_001, 0))), statestore.TimestampAhead.Error())
	s.want(del(), "1 @0:2 | DELETE k @0:3")
	s.env.WallMs = -5 // before the epoch
	s.want(set("c", time(at(0, 0))), statestore.TimestampAhead.Error())
	s.want(set("c", time(statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: 60_000, Node: "c"}})), "OK @0:4 | SET k=c @0:4")
}

// --max-clock-skew changes the 60 s, for __ts and __ft.
func TestSection4MaxClockSkew(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.env.MaxSkewMs = 30_000
	s.want(set("a", time(at(30_001, 0))), statestore.TimestampAhead.Error())
	s.want(set("a", token(at(30_001, 0))), statestore.TokenAhead.Error())
	s.want(set("a", time(at(30_000, 0)), token(at(30_000, 0))), "OK @30000:1 | SET k=a @30000:1")
}

// Where several nodes write to one key, each with a last of its own, the key's
// versions rise all the same.
func TestSection4VersionsRiseAcrossNodes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.cells["k"] = &statestore.Entry{Value: []byte("a"), Version: hlc.Timestamp{Wall: start + 70, Counter: 4, Node: "other"}}
	s.want(set("b"), "OK @70:5 | SET k=b @70:5")
	s.cells["k"] = &statestore.Entry{Value: []byte("a"), Version: hlc.Timestamp{Wall: start + 80, Counter: 4, Node: "other"}}
	s.want(del(), "1 @80:4:other | DELETE k @80:5")
}

// The table of protocol, section 4: which response carries which __ts.
func TestSection4ResponseVersions(t *testing.T) {
	t.Parallel()
	keyNotify := &statestore.Command{Verb: statestore.KeyNotify, Key: []byte("k")}
	scan := &statestore.Command{Verb: statestore.Scan, Key: []byte("*")}
	checkRules(t, []rule{
		{"SET applied: the new version", []step{{set("a"), "OK @0:1 | SET k=a @0:1"}}},
		{"SET, VDEL not applied on a key that exists: the stored version", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{set("b", nx), "-1 @0:1"},
			{vdel("b"), "-1 @0:1"},
		}},
		{"GET hit: the stored version", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{get(), `"a" @0:1`},
		}},
		{"DEL that deleted: the version of the deleted value", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{del(), "1 @0:1 | DELETE k @0:2"},
		}},
		{"VDEL that deleted: the version of the deleted value", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{vdel("a"), "1 @0:1 | DELETE k @0:2"},
		}},
		{"everything else on a missing key: none", []step{
			{get(), "nil"},
			{del(), "0"},
			{vdel("a"), "0"},
			{set("a", ver(0, 1)), "-1"},
		}},
		{"KEYNOTIFY, SCAN, errors: none, whatever is stored", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{keyNotify, "OK"},
			{scan, "OK"},
			{set("b", time(malformed)), "malformed timestamp"},
			{del(token(malformed)), "malformed timestamp"},
			{with(get(), []func(*statestore.Command){denied}), "not authorized"},
		}},
		{"a DELETE notification has a version of its own, later than the deleted value's", []step{
			{set("a", time(at(900, 9))), "OK @900:10 | SET k=a @900:10"},
			{del(), "1 @900:10 | DELETE k @900:11"},
			{set("b"), "OK @900:12 | SET k=b @900:12"},
		}},
	})
}

func TestSection5Fencing(t *testing.T) {
	t.Parallel()
	withToken := token(at(0, 5))
	checkRules(t, []rule{
		{"rule 1: the stored key has a token and the request has none", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{set("b"), statestore.TokenRequired.Error()},
			{del(), statestore.TokenRequired.Error()},
			{vdel("a"), statestore.TokenRequired.Error()},
			{get(), `"a" @0:1`},
		}},
		{"rule 2: the request's is lower than the stored one", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{set("b", token(at(0, 4))), statestore.TokenTooLow.Error()},
			{del(token(at(-1, 9))), statestore.TokenTooLow.Error()},
			{vdel("a", token(at(0, 4))), statestore.TokenTooLow.Error()},
		}},
		{"tokens are compared by node ID last", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{set("b", withToken, func(c *statestore.Command) { c.Token.At.Node = "clienT" }), statestore.TokenTooLow.Error()},
			{set("b", withToken, func(c *statestore.Command) { c.Token.At.Node = "client2" }), "OK @0:2 | SET k=b @0:2"},
			{set("c", withToken), statestore.TokenTooLow.Error()},
		}},
		{"rule 3: an equal token goes on", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{set("b", withToken), "OK @0:2 | SET k=b @0:2"},
			{vdel("b", withToken), "1 @0:2 | DELETE k @0:3"},
		}},
		{"rule 3: an applied SET stores the request's token if it is newer", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{set("b", token(at(0, 6))), "OK @0:2 | SET k=b @0:2"},
			{set("c", withToken), statestore.TokenTooLow.Error()},
		}},
		{"rule 3: a SET not applied changes nothing", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{set("b", nx, token(at(0, 6))), "-1 @0:1"},
			{set("c", withToken), "OK @0:2 | SET k=c @0:2"},
		}},
		{"rule 3: DEL removes the token with the key", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{del(withToken), "1 @0:1 | DELETE k @0:2"},
			{set("b"), "OK @0:3 | SET k=b @0:3"},
			{del(), "1 @0:3 | DELETE k @0:4"},
		}},
		{"rule 3: VDEL removes the token with the key", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{vdel("b", withToken), "-1 @0:1"},
			{vdel("a", withToken), "1 @0:1 | DELETE k @0:2"},
			{set("b"), "OK @0:3 | SET k=b @0:3"},
		}},
		{"a token on a key without one: an applied SET stores it", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{set("b", withToken), "OK @0:2 | SET k=b @0:2"},
			{set("c"), statestore.TokenRequired.Error()},
		}},
		{"a token on a key without one: DEL and VDEL ignore it", []step{
			{set("a"), "OK @0:1 | SET k=a @0:1"},
			{vdel("b", withToken), "-1 @0:1"},
			{set("b"), "OK @0:2 | SET k=b @0:2"},
			{del(withToken), "1 @0:2 | DELETE k @0:3"},
			{del(withToken), "0"},
		}},
		{"fencing comes before any condition", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{set("b", nx), statestore.TokenRequired.Error()},
			{set("b", ver(0, 9)), statestore.TokenRequired.Error()},
			{set("b", nexOf("x"), token(at(0, 4))), statestore.TokenTooLow.Error()},
			{vdel("b"), statestore.TokenRequired.Error()},
		}},
		{"unparsable: malformed timestamp, whatever is stored", []step{
			{set("a", token(malformed)), "malformed timestamp"},
			{del(token(malformed)), "malformed timestamp"},
			{vdel("a", token(malformed)), "malformed timestamp"},
		}},
		{"ahead by more than 60 s: the fencing skew error", []step{
			{set("a", token(at(60_001, 0))), statestore.TokenAhead.Error()},
			{del(token(at(60_001, 0))), statestore.TokenAhead.Error()},
			{vdel("a", token(at(60_001, 0))), statestore.TokenAhead.Error()},
			{set("a", token(at(60_000, 0))), "OK @0:1 | SET k=a @0:1"},
		}},
		{"ahead of max(wall clock, last): the store's own tokens always pass", []step{
			{set("a", time(at(60_000, 0))), "OK @60000:1 | SET k=a @60000:1"},
			{set("b", token(at(60_001, 0))), "OK @60000:2 | SET k=b @60000:2"},
			{set("b", token(at(120_000, 0))), "OK @60000:3 | SET k=b @60000:3"},
			{set("b", token(at(120_001, 0))), statestore.TokenAhead.Error()},
		}},
		{"GET needs none, and __ft is ignored elsewhere", []step{
			{set("a", withToken), "OK @0:1 | SET k=a @0:1"},
			{get(), `"a" @0:1`},
			{with(get(), []func(*statestore.Command){token(malformed)}), `"a" @0:1`},
			{with(get(), []func(*statestore.Command){token(at(90_000, 0))}), `"a" @0:1`},
			{&statestore.Command{Verb: statestore.KeyNotify, Key: []byte("k"), Token: malformed}, "OK"},
			{&statestore.Command{Verb: statestore.Scan, Key: []byte("*"), Token: malformed}, "OK"},
		}},
	})
}

func TestSection5ExpiryRemovesTheToken(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.want(set("a", token(at(0, 5)), px(100)), "OK @0:1 | SET k=a @0:1")
	s.advance(100)
	s.want(del(), "0")
	s.want(vdel("a", token(at(0, 1))), "0")
	if got, want := s.expire("k"), "| DELETE k @100:1"; got != want {
		t.Errorf("expiry: %s, want %s", got, want)
	}
	s.want(set("b"), "OK @100:2 | SET k=b @100:2")
	s.want(set("c"), "OK @100:3 | SET k=c @100:3")
}

// The clock was stepped back by more than a minute: the store's own last version
// is a good token all the same, though not a good timestamp.
func TestSection5OwnTokensPassAfterAStepBack(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.want(set("a"), "OK @0:1 | SET k=a @0:1")
	s.env.WallMs -= 3_600_000
	own := token(statestore.Stamp{State: statestore.Given, At: s.cells["k"].Version})
	s.want(set("b", own, time(at(-3_600_000, 0))), "OK @0:2 | SET k=b @0:2")
	s.want(set("b", own), statestore.TimestampAhead.Error())
}

// Protocol, section 6: the order of checks from authorization on. Each row fails
// in everything that comes after it, too.
func TestSection6OrderOfChecks(t *testing.T) {
	t.Parallel()
	ahead := at(90_000, 0)
	for _, tc := range []struct {
		check string
		cmd   *statestore.Command
		want  string
	}{
		{"authorization", set("b", denied, time(statestore.Stamp{}), token(malformed), nx), "not authorized"},
		{"authorization of DEL", del(denied, token(malformed)), "not authorized"},
		{"authorization of VDEL", vdel("b", denied, token(malformed)), "not authorized"},
		{"timestamp missing", set("b", time(statestore.Stamp{}), token(malformed), nx), "missing timestamp"},
		{"timestamp malformed", set("b", time(malformed), token(ahead), nx), "malformed timestamp"},
		{"timestamp ahead", set("b", time(ahead), token(malformed), nx), statestore.TimestampAhead.Error()},
		{"fencing token form", set("b", token(malformed), nx), "malformed timestamp"},
		{"fencing token skew", set("b", token(ahead), nx), statestore.TokenAhead.Error()},
		{"fencing rule 1", set("b", nx), statestore.TokenRequired.Error()},
		{"fencing rule 2", set("b", token(at(0, 1)), nx), statestore.TokenTooLow.Error()},
		{"condition", set("too long", token(at(0, 5)), nx), "-1 @0:1"},
		{"quota", set("too long", token(at(0, 5))), "the quota has been exceeded"},
	} {
		s := newStore(t)
		s.want(set("a", token(at(0, 5))), "OK @0:1 | SET k=a @0:1")
		s.env.Room = statestore.Room{}
		if got := s.do(tc.cmd); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.check, got, tc.want)
		}
	}
}

// A SET grows the store by its key and value, or by what its value is longer than
// the one it replaces. One that doesn't grow it is always allowed.
func TestSection6Quota(t *testing.T) {
	t.Parallel()
	type room = statestore.Room
	for _, tc := range []struct {
		name string
		room room
		held []*statestore.Command
		cmd  *statestore.Command
		want string
	}{
		{"a new key fits exactly", room{Keys: 1, Bytes: 4}, nil, set("abc"), "OK @0:1 | SET k=abc @0:1"},
		{"no room for a key", room{Keys: 0, Bytes: 100}, nil, set("abc"), "the quota has been exceeded"},
		{"one byte too many", room{Keys: 1, Bytes: 3}, nil, set("abc"), "the quota has been exceeded"},
		{"an empty value still has a key", room{Keys: 1, Bytes: 0}, nil, set(""), "the quota has been exceeded"},
		{"a longer value fits exactly", room{Bytes: 2}, []*statestore.Command{set("a")}, set("abc"), "OK @0:2 | SET k=abc @0:2"},
		{"a longer value, one byte too many", room{Bytes: 1}, []*statestore.Command{set("a")}, set("abc"), "the quota has been exceeded"},
		{"a write that does not grow", room{}, []*statestore.Command{set("abc")}, set("xyz"), "OK @0:2 | SET k=xyz @0:2"},
		{"a write that shrinks, over the quota", room{Keys: -5, Bytes: -5}, []*statestore.Command{set("abc")}, set("a"), "OK @0:2 | SET k=a @0:2"},
		{"a full disk, for a write that doesn't grow", room{Keys: 9, Bytes: 9, Disk: statestore.DiskLow}, []*statestore.Command{set("abc")}, set("xyz"), "OK @0:2 | SET k=xyz @0:2"},
		{"a full disk, for a write that grows", room{Keys: 9, Bytes: 9, Disk: statestore.DiskLow}, []*statestore.Command{set("abc")}, set("wxyz"), "the quota has been exceeded"},
		{"a fuller disk, for a write that shrinks", room{Keys: 9, Bytes: 9, Disk: statestore.DiskScarce}, []*statestore.Command{set("abc")}, set("a"), "the quota has been exceeded"},
		{"a fuller disk, for a deletion", room{Disk: statestore.DiskScarce}, []*statestore.Command{set("abc")}, del(), "1 @0:1 | DELETE k @0:2"},
		{"a deletion, over the quota", room{Keys: -5, Bytes: -5}, []*statestore.Command{set("abc")}, del(), "1 @0:1 | DELETE k @0:2"},
		{"an expired key gives its room to what replaces it", room{}, []*statestore.Command{set("abc", px(1))}, set("xyz"), "OK @1:2 | DELETE k @1:1 | SET k=xyz @1:2"},
		{"and no more than that", room{}, []*statestore.Command{set("abc", px(1))}, set("wxyz"), "the quota has been exceeded"},
	} {
		s := newStore(t)
		for _, cmd := range tc.held {
			s.do(cmd)
			s.advance(cmd.ExpiryMs)
		}
		s.env.Room = tc.room
		if got := s.do(tc.cmd); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

// Protocol, section 6: the error texts, exactly, in both wire forms.
func TestSection6ErrorTexts(t *testing.T) {
	t.Parallel()
	texts := map[statestore.Fault]string{
		statestore.TimestampAhead:     "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized",
		statestore.TokenRequired:      "a fencing token is required for this request",
		statestore.TokenAhead:         "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized",
		statestore.TokenTooLow:        "the request fencing token is a lower version than the fencing token protecting the resource",
		statestore.QuotaExceeded:      "the quota has been exceeded",
		statestore.Syntax:             "syntax error",
		statestore.NotAuthorized:      "not authorized",
		statestore.UnknownCommand:     "unknown command",
		statestore.WrongArgumentCount: "wrong number of arguments",
		statestore.MissingTimestamp:   "missing timestamp",
		statestore.MalformedTimestamp: "malformed timestamp",
		statestore.EmptyKey:           "the key length is zero",
		statestore.MalformedToken:     "malformed token",
		statestore.Unreadable:         "the store cannot read its disk",
		statestore.PageTooLarge:       "a key is too long for the maximum packet size of the client",
		statestore.UnknownOperation:   "unknown operation",
		statestore.SameKey:            "an earlier operation of this kind has the same key",
		statestore.InvalidTopic:       "the topic name is invalid",
		statestore.ReservedTopic:      "the topic is reserved",
		statestore.InvalidProperty:    "a property of the message is invalid",
		statestore.NotAsFormatted:     "the payload is not UTF-8 as its format says",
		statestore.QueueFull:          "the queue of a subscriber is full",
		statestore.NotUnderWay:        "no message with this packet identifier is under way",
		statestore.SettledTwice:       "an earlier operation settles the same message",
		statestore.TimerTwice:         "an earlier operation has the same timer",
	}
	for f, text := range texts {
		documented := strings.Replace(text, "lower version than", "lower version that", 1)
		if f.Text(false) != text || f.Error() != text || f.Text(true) != documented {
			t.Errorf("fault %d: %q, documented %q; want %q, %q", f, f.Text(false), f.Text(true), text, documented)
		}
		for _, text := range []string{text, documented} {
			if back, ok := statestore.FaultOf(text); !ok || back != f {
				t.Errorf("FaultOf(%q) = %d, %v; want %d", text, back, ok, f)
			}
		}
	}
	for _, text := range []string{"", "no fault", "Syntax error", "unknown fault"} {
		if f, ok := statestore.FaultOf(text); ok {
			t.Errorf("FaultOf(%q) = %d", text, f)
		}
	}
}

// Protocol, section 6: GET, SCAN, KEYNOTIFY read, the others write.
func TestSection6ReadersAndWriters(t *testing.T) {
	t.Parallel()
	for verb, want := range map[statestore.Verb]struct {
		name   string
		writes bool
	}{
		statestore.Set:       {"SET", true},
		statestore.Get:       {"GET", false},
		statestore.Del:       {"DEL", true},
		statestore.VDel:      {"VDEL", true},
		statestore.KeyNotify: {"KEYNOTIFY", false},
		statestore.Scan:      {"SCAN", false},
		0:                    {"unknown", false},
		200:                  {"unknown", false},
	} {
		if verb.String() != want.name || verb.Writes() != want.writes {
			t.Errorf("verb %d is %s, writes %v; want %v", verb, verb, verb.Writes(), want)
		}
	}
}

// For KEYNOTIFY and SCAN the rules judge authorization, and SCAN's token; the
// rest is the caller's.
func TestSection6KeyNotifyAndScanAreJudged(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	good := statestore.EncodeToken(nil, []byte("k*"), []byte("k7"))
	scan := func(token []byte) *statestore.Command {
		return &statestore.Command{Verb: statestore.Scan, Key: []byte("k*"), HasToken: true, Value: token}
	}
	s.want(&statestore.Command{Verb: statestore.KeyNotify, Key: []byte("k"), Stop: true}, "OK")
	s.want(&statestore.Command{Verb: statestore.KeyNotify, Key: []byte("k"), Denied: true}, "not authorized")
	s.want(&statestore.Command{Verb: statestore.Scan, Key: []byte("k*")}, "OK")
	s.want(scan(good), "OK")
	s.want(scan(good[1:]), "malformed token")
	s.want(scan(nil), "malformed token")
	s.want(with(scan(nil), []func(*statestore.Command){denied}), "not authorized")
	s.want(&statestore.Command{Key: []byte("k")}, "unknown command")
	s.want(&statestore.Command{Verb: 99, Key: []byte("k")}, "unknown command")
}

// The command's bytes are a packet's, and the next one overwrites them.
func TestApplyKeepsNothingOfTheCommand(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	packet := []byte("value|0001696374425000:00005:client")
	stamp, err := hlc.ParseBytes(packet[6:])
	if err != nil {
		t.Fatal(err)
	}
	cmd := set("", token(statestore.Stamp{State: statestore.Given, At: stamp}), time(statestore.Stamp{State: statestore.Given, At: stamp}))
	cmd.Value = packet[:5]
	s.do(cmd)
	copy(packet, bytes.Repeat([]byte("X"), len(packet)))

	e := s.cells["k"]
	if string(e.Value) != "value" || e.Token.Node != "client" || e.Version.Node != "StateStore" {
		t.Errorf("the entry has changed with the packet: %+v", e)
	}
}

func TestResultForgetsTheCommandBefore(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.want(set("a", px(1)), "OK @0:1 | SET k=a @0:1")
	s.advance(1)
	s.want(set("b"), "OK @1:2 | DELETE k @1:1 | SET k=b @1:2")
	s.want(get(), `"b" @1:2`)
	for _, ev := range s.res.Events {
		if ev.Kind != 0 || ev.Key != nil || ev.Value != nil {
			t.Errorf("an event of the command before: %+v", ev)
		}
	}
}
