package record

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

func exampleRecord() *Record {
	captured := []Capture{{"price", []byte("1.5"), Taken}, {"", []byte{}, Taken}, {"failed", []byte("why"), Failed}, {"ended", []byte{}, FailedTerminally}}
	return New(7, time.Unix(1, 2).UTC(), captured, DigestOf([]byte("payload")), []client.Message{{Topic: "a", Payload: []byte("b")}, {Topic: "c"}})
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	testRoundTrip(t, exampleRecord())
}

// A record of a message that was not the first one of its STORE has the state before it, also if that
// is empty.
func TestRecordWithTheStateBefore(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "state"} {
		r := exampleRecord()
		r.Before = []byte(before)
		testRoundTrip(t, r)
	}
}

func testRoundTrip(t *testing.T, r *Record) {
	t.Helper()
	got, err := Decode(r.Encode())
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("decoded %+v, %v\nwant    %+v", got, err, r)
	}
	for n := range r.Encode() {
		if _, err := Decode(r.Encode()[:n]); err == nil {
			t.Errorf("the first %d bytes pass for a record", n)
		}
	}
	if _, err := Decode(append(r.Encode(), 0)); err == nil {
		t.Error("a byte too many passes")
	}
}

// The documents have this example of a context, for clients in other languages.
func TestExampleOfTheDocuments(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/consistent-messaging.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "The example that the tests check")
	_, after, _ = strings.Cut(after, "```")
	example, after, _ := strings.Cut(after, "```")
	r := New(7, time.Unix(1, 2), []Capture{{"price", []byte("1.5"), Taken}}, DigestOf([]byte("in")), []client.Message{{Topic: "out", Payload: []byte("x")}})
	check := func(example string) {
		t.Helper()
		if got, want := hex.EncodeToString(r.Encode()), strings.Join(strings.Fields(example), ""); got != want {
			t.Errorf("the context is\n%s, the documents have\n%s", got, want)
		}
	}
	check(example)
	_, after, _ = strings.Cut(after, "With the state `s` before:")
	_, after, _ = strings.Cut(after, "```")
	example, _, _ = strings.Cut(after, "```")
	r.Before = []byte("s")
	check(example)
}

// A trace context changes no digest, and any other property does.
func TestTraceContextIsInNoDigest(t *testing.T) {
	t.Parallel()
	with := func(properties ...client.UserProperty) *Record {
		return New(0, time.Time{}, nil, Digest{}, []client.Message{{Topic: "a", UserProperties: properties}})
	}
	if d := with().Difference(with(client.UserProperty{Name: "traceparent", Value: "1"}, client.UserProperty{Name: "tracestate", Value: "2"})); d != "" {
		t.Error(d)
	}
	if with().Difference(with(client.UserProperty{Name: "id", Value: "1"})) == "" {
		t.Error("an id makes no difference")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(exampleRecord().Encode())
	f.Add([]byte{FormatBefore, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 's', 0, 0})
	f.Add([]byte{Format, 0, 0, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(r.Encode())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v becomes %+v, %v", r, again, err)
		}
	})
}
