package crashtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/hlc"
	"holdfast/internal/mqtt"
	"holdfast/internal/statestore"
)

// The checkers, shown what a broken broker would have done.

func at(n uint64) hlc.Timestamp {
	if n == 0 {
		return hlc.Timestamp{}
	}
	return hlc.Timestamp{Wall: n, Counter: 1, Node: "n"}
}

// op is an operation on the key k between two moments in milliseconds.
func op(call, ret int64, in request, out answer) operation {
	in.key, in.client = "k", "c"
	in.order = uint64(call)
	in.call, out.ret = call*int64(time.Millisecond), ret*int64(time.Millisecond)
	return operation{in, out}
}

func setTo(value string) request { return request{verb: statestore.Set, value: value} }

func ok(version uint64) answer {
	return answer{fate: answered, kind: statestore.OK, version: at(version)}
}

func value(v string, version uint64) answer {
	return answer{fate: answered, kind: statestore.Value, value: v, version: at(version)}
}

func refusedWith(f statestore.Fault) answer {
	return answer{fate: answered, kind: statestore.Error, fault: f}
}

var (
	read       = request{verb: statestore.Get}
	remove     = request{verb: statestore.Del}
	missing    = answer{fate: answered, kind: statestore.Nil}
	nothing    = answer{fate: answered, kind: statestore.Count}
	unknown    = answer{fate: lost}
	carriedOut = answer{fate: executed}
)

func deleted(version uint64) answer {
	return answer{fate: answered, kind: statestore.Count, count: 1, version: at(version)}
}

func notApplied(version uint64) answer {
	return answer{fate: answered, kind: statestore.NotApplied, version: at(version)}
}

func with(r request, change func(*request)) request {
	change(&r)
	return r
}

func TestModel(t *testing.T) {
	t.Parallel()
	nx := func(r *request) { r.condition = statestore.IfAbsent }
	nex := func(r *request) { r.condition = statestore.IfAbsentOrEqual }
	compare := func(old string) func(*request) {
		return func(r *request) { r.condition, r.compare, r.operand = statestore.IfAbsentOrEqual, true, old }
	}
	px := func(ms int64) func(*request) { return func(r *request) { r.px = ms } }
	ver := func(v uint64) func(*request) {
		return func(r *request) { r.ver = statestore.VersionCheck{Given: true, Absent: v == 0, At: at(v)} }
	}
	token := func(v uint64) func(*request) { return func(r *request) { r.token = at(v) } }

	cases := []struct {
		name string
		good bool
		ops  []operation
	}{
		{"a write is read", true, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, read, value("a", 5))}},
		{"an acknowledged write is lost", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, read, missing)}},
		{"an older write is back", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), ok(6)), op(5, 6, read, value("a", 5))}},
		{"the value is new, the version old", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), unknown), op(5, 6, read, value("b", 5))}},
		{"the version is new, the value old", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), unknown), op(5, 6, read, value("a", 6))}},
		{"versions fall", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), ok(4))}},
		{"versions fall over a deletion", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, deleted(5)), op(5, 6, setTo("b"), ok(5))}},
		{"an open write happened", true, []operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, value("a", 5))}},
		{"an open write didn't happen", true, []operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, missing)}},
		{"an open write happened later than it can", false, []operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, missing), op(12, 13, read, value("a", 5))}},
		{"an open write was seen and lost", false, []operation{op(1, 9, setTo("a"), unknown), op(2, 3, read, value("a", 5)), op(10, 11, read, missing)}},
		{"an open write has one version", false, []operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, value("a", 5)), op(12, 13, read, value("a", 6))}},
		{"an acknowledged write without a reply happened", true, []operation{op(1, 9, setTo("a"), carriedOut), op(10, 11, read, value("a", 5))}},
		{"an acknowledged write without a reply is lost", false, []operation{op(1, 9, setTo("a"), carriedOut), op(10, 11, read, missing)}},
		{"a deletion is read", true, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, deleted(5)), op(5, 6, read, missing)}},
		{"a deleted key is back", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, deleted(5)), op(5, 6, read, value("a", 5))}},
		{"a deletion of nothing", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, remove, nothing)}},
		{"NX on a key", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nx), ok(6))}},
		{"NX says the version", true, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nx), notApplied(5))}},
		{"NX says another version", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nx), notApplied(4))}},
		{"two NX", false, []operation{op(1, 9, with(setTo("a"), nx), ok(5)), op(1, 9, with(setTo("b"), nx), ok(6))}},
		{"NEX with the same value", true, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("a"), nex), ok(6))}},
		{"NEX with another value", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), nex), ok(6))}},
		{"NEX with an operand", true, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), compare("a")), ok(6))}},
		{"NEX with another operand", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), compare("b")), ok(6))}},
		{"VER", true, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), ver(5)), ok(6))}},
		{"another VER", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, with(setTo("b"), ver(4)), ok(6))}},
		{"VER of no key", true, []operation{op(1, 2, with(setTo("a"), ver(0)), ok(5)), op(3, 4, with(setTo("b"), ver(0)), notApplied(5))}},
		{"VER of an open write tells its version", false, []operation{op(1, 9, setTo("a"), unknown), op(10, 11, with(setTo("b"), ver(5)), ok(7)), op(12, 13, read, value("a", 5))}},
		{"a token protects", true, []operation{op(1, 2, with(setTo("a"), token(3)), ok(5)), op(3, 4, setTo("b"), refusedWith(statestore.TokenRequired)), op(5, 6, with(setTo("b"), token(2)), refusedWith(statestore.TokenTooLow)), op(7, 8, with(setTo("b"), token(3)), ok(6))}},
		{"a token is forgotten", false, []operation{op(1, 2, with(setTo("a"), token(3)), ok(5)), op(3, 4, setTo("b"), ok(6))}},
		{"a lower token passes", false, []operation{op(1, 2, with(setTo("a"), token(3)), ok(5)), op(3, 4, with(setTo("b"), token(2)), ok(6))}},
		{"a token where none is needed", false, []operation{op(1, 2, setTo("a"), ok(5)), op(3, 4, setTo("b"), refusedWith(statestore.TokenRequired))}},
		{"a key expires", true, []operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(50, 60, read, value("a", 5)), op(150, 160, read, missing)}},
		{"a key expires early", false, []operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(50, 60, read, missing)}},
		{"a key outlives its deadline", false, []operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(150, 160, read, value("a", 5))}},
		{"an expired key is back", false, []operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(95, 96, read, missing), op(97, 98, read, value("a", 5))}},
		{"SET takes the deadline away", true, []operation{op(1, 2, with(setTo("a"), px(100)), ok(5)), op(3, 4, setTo("b"), ok(6)), op(950, 960, read, value("b", 6))}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := judge(c.ops, nil, t.TempDir())
			if good := len(v.violations) == 0; good != c.good {
				t.Errorf("good: %v, want %v\n%s", good, c.good, strings.Join(v.violations, "\n"))
			}
		})
	}
}

func TestSightings(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		good bool
		seen sighting
		ops  []operation
	}{
		{"of a write that was answered", true, sighting{key: "k", value: "a", version: at(5)}, []operation{op(1, 2, setTo("a"), ok(5))}},
		{"with another version", false, sighting{key: "k", value: "a", version: at(6)}, []operation{op(1, 2, setTo("a"), ok(5))}},
		{"of what nobody wrote", false, sighting{key: "k", value: "b", version: at(5)}, []operation{op(1, 2, setTo("a"), ok(5))}},
		{"of an open write, which stays", true, sighting{key: "k", value: "a", version: at(5), at: 5e6}, []operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, value("a", 5))}},
		{"of an open write, which is lost", false, sighting{key: "k", value: "a", version: at(5), at: 5e6}, []operation{op(1, 9, setTo("a"), unknown), op(10, 11, read, missing)}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := judge(c.ops, []sighting{c.seen}, t.TempDir())
			if good := len(v.violations) == 0; good != c.good {
				t.Errorf("good: %v, want %v\n%s", good, c.good, strings.Join(v.violations, "\n"))
			}
		})
	}
}

func TestTenures(t *testing.T) {
	t.Parallel()
	a := tenure{lock: "l", holder: "a", from: 10, to: 20, token: at(1)}
	cases := []struct {
		name string
		next tenure
		good bool
	}{
		{"one after the other", tenure{lock: "l", holder: "b", from: 20, to: 30, token: at(2)}, true},
		{"both at once", tenure{lock: "l", holder: "b", from: 19, to: 30, token: at(2)}, false},
		{"a lower token", tenure{lock: "l", holder: "b", from: 25, to: 30, token: at(1)}, false},
		{"renewed", tenure{lock: "l", holder: "a", from: 15, to: 30, token: at(2)}, true},
		{"another lock", tenure{lock: "m", holder: "b", from: 15, to: 30, token: at(1)}, true},
		{"a reply that came too late", tenure{lock: "l", holder: "b", from: 30, to: 15, token: at(1)}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := checkTenures([]tenure{c.next, a}); (len(got) == 0) != c.good {
				t.Errorf("got %q, want good: %v", got, c.good)
			}
		})
	}
}

// delivery is a PUBLISH that a subscriber gets, on its n-th connection.
type delivery struct {
	time int
	id   uint16
	seq  uint64
	dup  bool
	qos  byte
}

// What came to a group twice at QoS 2, or to none of its members, is found out.
func TestGroupKeepsBooks(t *testing.T) {
	t.Parallel()
	p := &publisher{topic: messageTopic(0), qos: 2, settledAt: 4}
	source := func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
	members := newGroup(2, []*publisher{p}, source)
	one, two := members[0], members[1]
	one.hand(message{0, 1})
	two.hand(message{0, 3})
	two.hand(message{0, 1})
	if one.complete() {
		t.Error("the group counts as complete without its last messages")
	}
	one.hand(message{0, 4})
	for _, m := range members {
		m.balance()
	}
	if one.faults.delivered+two.faults.delivered != 3 || two.faults.duplicates2 != 1 || one.faults.lost != 1 {
		t.Errorf("the books say %+v and %+v, want 3 delivered, 1 duplicate, 1 lost", one.faults, two.faults)
	}
}

// A will that was published twice, or never, is found out.
func TestWillsKeepBooks(t *testing.T) {
	t.Parallel()
	source := func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
	testators, heir := newTestators(2, source)
	heir.book.(*wills).owe(testators[0].as.number, 1)
	heir.book.(*wills).owe(testators[1].as.number, 1)
	heir.hand(message{0, 1})
	heir.hand(message{0, 1})
	if heir.complete() {
		t.Error("the wills count as complete without the second")
	}
	heir.balance()
	if heir.faults.delivered != 1 || heir.faults.duplicates2 != 1 || heir.faults.lost != 1 {
		t.Errorf("the books say %+v, want 1 delivered, 1 duplicate, 1 lost", heir.faults)
	}
}

func TestSubscriberKeepsBooks(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		came []delivery
		want faults
	}{
		{"all in order", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {1, 3, 3, false, 2}}, faults{delivered: 3}},
		{"one never came", []delivery{{1, 1, 1, false, 2}, {1, 3, 3, false, 2}}, faults{delivered: 2, lost: 1}},
		{"the last never came", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}}, faults{delivered: 2, lost: 1}},
		{"two changed places", []delivery{{1, 1, 1, false, 2}, {1, 2, 3, false, 2}, {1, 3, 2, false, 2}}, faults{delivered: 3, outOfOrder: 1}},
		{"one came twice", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {1, 3, 2, false, 2}, {1, 4, 3, false, 2}}, faults{delivered: 3, duplicates2: 1}},
		{"one came twice at QoS 1", []delivery{{1, 1, 1, false, 1}, {1, 2, 2, false, 1}, {1, 3, 2, false, 1}, {1, 4, 3, false, 1}}, faults{delivered: 3, duplicates: 1}},
		{"redelivered", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {2, 1, 1, true, 2}, {2, 2, 2, true, 2}, {2, 3, 3, false, 2}}, faults{delivered: 3}},
		{"redelivered unmarked", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {2, 2, 2, false, 2}, {2, 3, 3, false, 2}}, faults{delivered: 3, withoutDup: 1}},
		{"redelivered out of order", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {2, 2, 2, true, 2}, {2, 1, 1, true, 2}, {2, 3, 3, false, 2}}, faults{delivered: 3, outOfOrder: 1}},
		{"redelivered on the same connection", []delivery{{1, 1, 1, false, 2}, {1, 1, 1, true, 2}, {1, 2, 2, false, 2}, {1, 3, 3, false, 2}}, faults{delivered: 3, outOfOrder: 1}},
		{"over Receive Maximum", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {1, 3, 3, false, 2}, {1, 4, 4, false, 2}, {1, 5, 5, false, 2}}, faults{delivered: 5, overReceiving: 1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := &publisher{topic: messageTopic(0), qos: c.came[0].qos, next: 3, settledAt: 3}
			s := newSubscriber("s", p.qos, false, nil, []*publisher{p})
			var conn *connection
			for _, d := range c.came {
				if d.time != s.times {
					s.times = d.time
					conn = &connection{receiveMax: 4, underWay: map[uint16]bool{}}
				}
				if err := s.message(conn, d.packet()); err != nil {
					t.Fatal(err)
				}
			}
			s.balance()
			if s.faults != c.want {
				t.Errorf("got %+v, want %+v: %q", s.faults, c.want, s.examples)
			}
		})
	}
}

func (d delivery) packet() packet {
	b := mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{
		QoS: d.qos, Dup: d.dup, PacketID: d.id, Topic: []byte(messageTopic(0)),
		Payload: message{seq: d.seq}.payload(nil, 0),
	})
	header, body, _, _, err := mqtt.Split(b, 0)
	if err != nil {
		panic(err)
	}
	return packet{mqtt.TypeOf(header), header, body}
}

func TestPayloadIsNobodyElses(t *testing.T) {
	t.Parallel()
	good := message{3, 77}.payload(nil, 0)
	if m, err := parseMessage(good); err != nil || m != (message{3, 77}) {
		t.Errorf("got %v, %v", m, err)
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1
		if m, err := parseMessage(bad); err == nil {
			t.Errorf("with byte %d changed it is %v", i, m)
		}
	}
	if _, err := parseMessage(good[:10]); err == nil {
		t.Error("half of it is taken for whole")
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	p, err := CommandLine("other", "other -p {port} -a {addr} -d {dir}/x", "ready")
	if err != nil {
		t.Fatal(err)
	}
	args, err := p.Args("/data", "127.0.0.1:1883")
	if got, want := fmt.Sprint(args), "[other -p 1883 -a 127.0.0.1:1883 -d /data/x]"; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if _, err := CommandLine("other", "other", "("); err == nil {
		t.Error("a bad pattern is accepted")
	}
	if _, err := CommandLine("other", " ", "ready"); err == nil {
		t.Error("an empty command is accepted")
	}
}
