package consistent

import (
	"reflect"
	"testing"
	"time"
)

func exampleRecord() *record {
	c := &Context{version: 7, now: time.Unix(1, 2).UTC(), captured: []capture{{"price", []byte("1.5"), taken}, {"", []byte{}, taken}, {"failed", []byte("why"), takeFailed}, {"ended", []byte{}, takeFailedTerminally}}}
	return newRecord(c, digestOf([]byte("payload")), []Message{{Topic: "a", Payload: []byte("b")}, {Topic: "c"}})
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	r := exampleRecord()
	got, err := decodeRecord(r.encode())
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("decoded %+v, %v\nwant    %+v", got, err, r)
	}
	for n := range r.encode() {
		if _, err := decodeRecord(r.encode()[:n]); err == nil {
			t.Errorf("the first %d bytes pass for a record", n)
		}
	}
	if _, err := decodeRecord(append(r.encode(), 0)); err == nil {
		t.Error("a byte too many passes")
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(exampleRecord().encode())
	f.Add([]byte{recordFormat, 0, 0, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			return
		}
		again, err := decodeRecord(r.encode())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v becomes %+v, %v", r, again, err)
		}
	})
}

// No two kinds of identity, and no two pairs of source and id, are taken for each other.
func TestIdentify(t *testing.T) {
	t.Parallel()
	application := func(m *Message) string { return string(m.Payload) }
	properties := func(source, id string) (u []UserProperty) {
		return []UserProperty{{Name: "source", Value: source}, {Name: "id", Value: id}}
	}
	for _, c := range []struct {
		m    Message
		want string
	}{
		{Message{UserProperties: properties("s", "i"), CorrelationData: []byte("c"), Payload: []byte("p")}, "event:1:si"},
		{Message{UserProperties: properties("si", "i")}, "event:2:sii"},
		{Message{UserProperties: properties("s", "ii")}, "event:1:sii"},
		{Message{UserProperties: properties("", "i"), Payload: []byte("p"), CorrelationData: []byte("c")}, "id:p"},
		{Message{UserProperties: properties("s", ""), ResponseTopic: "rt", CorrelationData: []byte("c")}, "request:2:rtc"},
		{Message{ResponseTopic: "r", CorrelationData: []byte("tc")}, "request:1:rtc"},
		{Message{CorrelationData: []byte("c")}, ""}, // unique to its requester only, which it does not name
		{Message{}, ""},
	} {
		if got := identify(&c.m, application); got != c.want {
			t.Errorf("%v: %q, want %q", c.m, got, c.want)
		}
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a/+", "+/b", true}, {"a/+", "b/+", false}, {"a/#", "a", true}, {"a", "a/#", true},
		{"a/b/#", "a", false}, {"#", "a/b/c", true}, {"a/+/c", "a/b/d", false}, {"a/+", "a/b/c", false}, {"a//b", "a/+/b", true},
	} {
		if overlap(c.a, c.b) != c.want || overlap(c.b, c.a) != c.want {
			t.Errorf("%q and %q: want %v", c.a, c.b, c.want)
		}
	}
}
