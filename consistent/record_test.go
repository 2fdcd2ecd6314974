package consistent

import (
	"testing"
)

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
