package rows

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// Each kind of row, in each form that was ever written, has a file with the key and the value of
// one. The program reads them as they were meant, and writes the newest form as it always has.
func TestFormsOfRows(t *testing.T) {
	t.Parallel()
	m, bytesOfM := message("plant/7", "\x01\x01", "21.5")
	withM := func(head []byte) []byte { return append(head, bytesOfM...) }
	session := Session{SID: 7, Expiry: 3600, Away: 1_700_000_000_000, Sent: 5003, QueueFull: 2}
	owned := Session{SID: 8, Expiry: 3600, Sent: 5003, Owner: "user:alice"}
	sub := Subscription{Filter: "plant/+", QoS: 2, NoLocal: true, RetainAsPublished: true, ID: 9}
	queued := Queued{QoS: 1, Retain: true, MessageQoS: 2, MessageRetain: true, SubIDs: []uint32{9, 300}, Shared: "$share/g/plant/+", Message: m}
	identified := Queued{QoS: 1, MessageQoS: 1, ID: 77, Message: m}
	elsewhere := Queued{QoS: 2, MessageQoS: 2, SubIDs: []uint32{9}, Number: 12}
	released := Queued{QoS: 2, Released: true, ID: 5}
	releasedFirst := Queued{QoS: 2, Released: true}
	owed := Owed{Filter: "plant/#", Since: 40, Routed: []uint64{38, 39}, After: "plant/3", Again: 1}
	retained := Retained{QoS: 1, Stamp: 41, Publisher: "sensor", Message: m}
	ownedRetained := Retained{QoS: 1, Stamp: 41, Publisher: "sensor", Owner: "user:sensor", Message: m}
	will := Will{QoS: 1, Retain: true, Due: 1_700_000_001_000, Delay: 30, Message: m}
	ofIdentity := Will{QoS: 2, Delay: 30, Identity: []byte(`{"Username":"sensor"}`), Message: m}
	timer := Timer{QoS: 1, Retain: true, Tries: 3, Run: 1_700_000_000_000_000, RunDue: 77_000, Principal: "user:alice", Client: "c", ID: "press/1", Identity: `{"Username":"alice"}`, Message: m}
	timerID := TimerID{Due: 1_700_000_002_000, Number: 5, Interval: 60_000, At: 1_700_000_003_000, Size: 300, Client: "c", Topic: "plant/7"}
	atATime := TimerID{Due: 1_700_000_002_000, Number: 6, Interval: -1, At: 1_700_000_002_000, Size: 300, Client: "c", Topic: "plant/7"}

	kinds := map[Kind]bool{}
	known := map[string]bool{}
	for _, c := range []struct {
		name       string
		key, value []byte // as the program writes them; nil: it writes this form no more
		want       []any
	}{
		{"session", SessionKey("c"), session.Row(), []any{"c", session}},
		{"session with an owner", SessionKey("d"), owned.Row(), []any{"d", owned}},
		{"session of version 1", nil, nil, []any{"c", Session{SID: 7, Expiry: 3600, Sent: UnknownSent}}},
		{"subscription", SubscriptionKey(7, "plant/+"), sub.Row(), []any{uint64(7), sub}},
		{"shared subscription", GroupKey("g/plant/+"), GroupRow(8), []any{"g/plant/+", uint64(8)}},
		{"message in several queues", PayloadKey(12), withM(AppendPayload(nil)), []any{uint64(12), m}},
		{"queued message", QueueKey(7, 3), withM(queued.Append(nil)), []any{uint64(7), uint64(3), queued}},
		{"queued message with an identifier", QueueKey(7, 3), withM(identified.Append(nil)), []any{uint64(7), uint64(3), identified}},
		{"queued message elsewhere", QueueKey(7, 4), elsewhere.Append(nil), []any{uint64(7), uint64(4), elsewhere}},
		{"released", QueueKey(7, 5), releasedFirst.Append(nil), []any{uint64(7), uint64(5), releasedFirst}},
		{"released with an identifier", QueueKey(7, 5), released.Append(nil), []any{uint64(7), uint64(5), released}},
		{"received", ReceivedKey(7, 11), ReceivedRow(), []any{uint64(7), uint16(11)}},
		{"owed", OwedKey(7, 13), owed.Row(), []any{uint64(7), uint64(13), owed}},
		{"retained", RetainedKey([]byte("plant/7")), withM(retained.Append(nil)), []any{"plant/7", retained}},
		{"retained with an owner", RetainedKey([]byte("plant/7")), withM(ownedRetained.Append(nil)), []any{"plant/7", ownedRetained}},
		{"retained of version 1", nil, nil, []any{"plant/7", Retained{QoS: 2, Message: m}}},
		{"will", WillKey(7), withM(will.Row()), []any{uint64(7), will}},
		{"will of an identity", WillKey(7), withM(ofIdentity.Row()), []any{uint64(7), ofIdentity}},
		{"timer", TimerKey(1_700_000_002_000, 5), withM(timer.Append(nil)), []any{int64(1_700_000_002_000), uint64(5), timer}},
		{"timer by ID", TimerIDKey("user:alice", []byte("press/1")), timerID.Append(nil), []any{"user:alice", "press/1", timerID}},
		{"timer at a time by ID", TimerIDKey("", []byte("press/2")), atATime.Append(nil), []any{"", "press/2", atATime}},
	} {
		var file []byte
		if c.value == nil {
			file = goldenfile.Read(t, c.name)
		} else {
			file = goldenfile.Check(t, c.name, append(appendText(nil, string(c.key)), c.value...))
		}
		key, value, ok := cutText(file)
		if !ok {
			t.Fatalf("%s: the file has no key", c.name)
		}
		known[strings.ReplaceAll(c.name, " ", "-")], kinds[Kind(key[0])] = true, true
		if got, err := readRow([]byte(key), value); err != nil || !reflect.DeepEqual(got, c.want) {
			goldenfile.Differs(t, c.name, []any{got, err}, c.want)
		}
	}
	for _, name := range goldenfile.Names(t) {
		if !known[name] {
			t.Errorf("no row is compared with the file %s", name)
		}
	}
	for _, k := range declaredKinds(t) {
		if !kinds[k] {
			t.Errorf("rows of the kind %q have no file: add one to this test", k)
		}
	}
}

// readRow reads a row of any kind.
func readRow(key, value []byte) ([]any, error) {
	switch Kind(key[0]) {
	case TimerKind:
		due, number, err := SplitTimerKey(key)
		if err != nil {
			return nil, err
		}
		r, err := DecodeTimer(value)
		return []any{due, number, r}, err
	case TimerIDKind:
		principal, id, err := SplitTimerIDKey(key)
		if err != nil {
			return nil, err
		}
		r, err := DecodeTimerID(value)
		return []any{principal, string(id), r}, err
	}
	var got collector
	err := error(nil)
	Visit(&got, table{{key, value}}.iterate, func(_ []byte, what string) bool {
		err = errRow
		got.all = []any{what}
		return true
	})
	return got.all, err
}

// declaredKinds are the kinds of rows that the package's constants say.
func declaredKinds(t *testing.T) (all []Kind) {
	t.Helper()
	for _, file := range []string{"keys.go", "timers.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\t\w+Kind +Kind = '(.)'$`).FindAllSubmatch(text, -1) {
			all = append(all, Kind(m[1][0]))
		}
	}
	if len(all) < 11 || slices.Contains(all, 0) {
		t.Fatalf("found only %q", all)
	}
	return all
}
