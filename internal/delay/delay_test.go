package delay_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

func props(pairs ...string) (raw []byte) {
	for i := 0; i < len(pairs); i += 2 {
		raw = mqtt.AppendUserProp(raw, pairs[i], pairs[i+1])
	}
	return raw
}

// What a publish asks for, and what is no request.
func TestParse(t *testing.T) {
	t.Parallel()
	const after, at, id = delay.AfterProperty, delay.AtProperty, delay.IDProperty
	for _, tc := range []struct {
		pairs []string
		want  delay.Request
		bad   bool
	}{
		{nil, delay.Request{}, false},
		{[]string{"holdfast-other", "1"}, delay.Request{}, false},
		{[]string{id, "x"}, delay.Request{}, false},
		{[]string{after, "0"}, delay.Request{Asked: true, Relative: true}, false},
		{[]string{id, "x", "a", "b", after, "1500"}, delay.Request{Asked: true, Relative: true, Ms: 1500, ID: []byte("x")}, false},
		{[]string{at, "1500"}, delay.Request{Asked: true, Ms: 1500}, false},
		{[]string{at, "1970-01-01T00:00:01.5Z"}, delay.Request{Asked: true, Ms: 1500}, false},
		{[]string{at, "1970-01-01T01:00:01.5+01:00"}, delay.Request{Asked: true, Ms: 1500}, false},
		{[]string{at, "1970-01-01T00:00:01.5004Z"}, delay.Request{Asked: true, Ms: 1501}, false}, // not before it
		{[]string{at, "1970-01-01t00:00:01.5z"}, delay.Request{Asked: true, Ms: 1500}, false},
		{[]string{at, "1970-01-01T0:00:01Z"}, delay.Request{}, true},
		{[]string{at, "1970-01-01T00:00:01,5Z"}, delay.Request{}, true},
		{[]string{at, "1970-01-01T00:00:01+24:00"}, delay.Request{}, true},
		{[]string{at, "1970-01-01T00:00:01+00:60"}, delay.Request{}, true},
		{[]string{after, "1970-01-01T00:00:01.5Z"}, delay.Request{}, true},
		{[]string{after, "9223372036854775807"}, delay.Request{Asked: true, Relative: true, Ms: 1<<63 - 1}, false},
		{[]string{after, "9223372036854775808"}, delay.Request{}, true},
		{[]string{after, "+1"}, delay.Request{}, true},
		{[]string{after, "1", at, "1"}, delay.Request{}, true},
		{[]string{at, "1", at, "1"}, delay.Request{}, true},
		{[]string{after, "1", id, ""}, delay.Request{}, true},
		{[]string{after, "1", id, strings.Repeat("x", delay.MaxID+1)}, delay.Request{}, true},
	} {
		got, reason := delay.Parse(props(tc.pairs...))
		if bad := reason != ""; bad != tc.bad || !bad && (got.Asked != tc.want.Asked || got.Relative != tc.want.Relative || got.Ms != tc.want.Ms || !bytes.Equal(got.ID, tc.want.ID)) {
			t.Errorf("%q: %+v, %q; want %+v", tc.pairs, got, reason, tc.want)
		}
	}
}

// The properties that say when are not passed on, all others are.
func TestAppendProps(t *testing.T) {
	t.Parallel()
	got := delay.AppendProps(nil, props("a", "b", delay.AfterProperty, "1", delay.IDProperty, "x", delay.AtProperty, "1", "c", "d"))
	if want := props("a", "b", delay.IDProperty, "x", "c", "d"); !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whatever a client sends is judged, and a topic keeps its rest.
func FuzzParse(f *testing.F) {
	f.Add([]byte("1"), []byte("$delayed/1/a"))
	f.Add([]byte("2006-01-02T15:04:05Z"), []byte("$delayed//a"))
	f.Fuzz(func(t *testing.T, value, topic []byte) {
		if len(value) > 1000 {
			return
		}
		r, reason := delay.Parse(props(delay.AfterProperty, string(value)))
		if reason == "" && (!r.Asked || r.Ms < 0) {
			t.Errorf("%q is %+v", value, r)
		}
		delay.Parse(props(delay.AtProperty, string(value), delay.IDProperty, string(topic[:min(len(topic), 1000)])))
		rest, r, ok := delay.SplitTopic(topic)
		if !bytes.HasSuffix(topic, rest) || ok && r.Asked != (len(rest) < len(topic)) || r.Ms < 0 {
			t.Errorf("%q: %q, %+v, %v", topic, rest, r, ok)
		}
	})
}
