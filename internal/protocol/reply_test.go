package protocol_test

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// replies are the tables of protocol, sections 6 and 7, byte by byte. documented
// is only given where the two wire forms differ.
var replies = []struct {
	name            string
	reply           statestore.Reply
	sdk, documented string
}{
	{"SET, KEYNOTIFY", statestore.Reply{Kind: statestore.OK}, "+OK\r\n", ""},
	{"SET, VDEL, condition not met", statestore.Reply{Kind: statestore.NotApplied}, ":-1\r\n", "-1\r\n"},
	{"GET", statestore.Reply{Kind: statestore.Value, Value: []byte("1234")}, "$4\r\n1234\r\n", ""},
	{"GET, an empty value", statestore.Reply{Kind: statestore.Value}, "$0\r\n\r\n", ""},
	{"GET, any bytes", statestore.Reply{Kind: statestore.Value, Value: []byte("\r\n\x00\xff")}, "$4\r\n\r\n\x00\xff\r\n", ""},
	{"GET, missing", statestore.Reply{Kind: statestore.Nil}, "$-1\r\n", ""},
	{"DEL, VDEL", statestore.Reply{Kind: statestore.Count, Count: 1}, ":1\r\n", ""},
	{"DEL, VDEL, missing; STOP, not registered", statestore.Reply{Kind: statestore.Count}, ":0\r\n", ""},
	{"error", statestore.Reply{Kind: statestore.Error, Fault: statestore.Syntax}, "-ERR syntax error\r\n", ""},
	{"the fencing error", statestore.Reply{Kind: statestore.Error, Fault: statestore.TokenTooLow},
		"-ERR the request fencing token is a lower version than the fencing token protecting the resource\r\n",
		"-ERR the request fencing token is a lower version that the fencing token protecting the resource\r\n"},
	{"SCAN, the last page", statestore.Reply{Kind: statestore.Page, Keys: [][]byte{[]byte("k1"), []byte("key2")}},
		"*1\r\n*2\r\n$2\r\nk1\r\n$4\r\nkey2\r\n", ""},
	{"SCAN, more to come", statestore.Reply{Kind: statestore.Page, Keys: [][]byte{[]byte("k1")}, Next: []byte("token")},
		"*2\r\n*1\r\n$2\r\nk1\r\n$5\r\ntoken\r\n", ""},
	{"STORE, the key has another version: the same in both", statestore.Reply{Kind: statestore.Conflict}, ":-1\r\n", ":-1\r\n"},
	{"STORE of a remembered message", statestore.Reply{Kind: statestore.Count}, ":0\r\n", ""},
	{"LOAD, new, no key", statestore.Reply{Kind: statestore.Loaded}, "*3\r\n:0\r\n$-1\r\n$-1\r\n", ""},
	{"LOAD, new", statestore.Reply{Kind: statestore.Loaded, Value: []byte("abc")}, "*3\r\n:0\r\n$3\r\nabc\r\n$-1\r\n", ""},
	{"LOAD, the specification's example", statestore.Reply{Kind: statestore.Loaded, Count: 1, Value: []byte("abc")}, "*3\r\n:1\r\n$3\r\nabc\r\n$-1\r\n", ""},
	{"LOAD, duplicate with a context, no key before", statestore.Reply{Kind: statestore.Loaded, Count: 1, Context: []byte("\r\n")}, "*3\r\n:1\r\n$-1\r\n$2\r\n\r\n\r\n", ""},
	{"LOAD, empty is not nil", statestore.Reply{Kind: statestore.Loaded, Count: 1, Value: []byte{}, Context: []byte{}}, "*3\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n", ""},
	{"LOAD, confirmed", statestore.Reply{Kind: statestore.Loaded, Count: 2}, "*3\r\n:2\r\n$-1\r\n$-1\r\n", ""},
	{"SCAN with values", statestore.Reply{
		Kind: statestore.Page, Keys: [][]byte{[]byte("k1"), []byte("k2"), []byte("k3")}, Next: []byte("token"),
		Values: []statestore.PageValue{
			{Bytes: []byte("v\xff"), Version: hlc.Timestamp{Wall: 7, Counter: 1, Node: "n"}},
			{Bytes: []byte{}, Version: hlc.Timestamp{Wall: 8, Counter: 2, Node: "n"}},
			{Version: hlc.Timestamp{Wall: 9, Counter: 3, Node: "n"}},
		},
	}, "*2\r\n*3\r\n*3\r\n$2\r\nk1\r\n$2\r\nv\xff\r\n$5\r\n7:1:n\r\n*3\r\n$2\r\nk2\r\n$0\r\n\r\n$5\r\n8:2:n\r\n*3\r\n$2\r\nk3\r\n$-1\r\n$5\r\n9:3:n\r\n$5\r\ntoken\r\n", ""},
	{"SCAN with details", statestore.Reply{
		Kind: statestore.Page, Keys: [][]byte{[]byte("a"), []byte("b"), []byte("c")}, Details: true,
		Values: []statestore.PageValue{
			{Bytes: []byte("v"), Version: hlc.Timestamp{Wall: 5, Counter: 6, Node: "n"}},
			{Bytes: []byte(""), Version: hlc.Timestamp{Wall: 5, Counter: 7, Node: "n"}, ExpiryMs: 1 << 40, Token: hlc.Timestamp{Wall: 4, Counter: 2, Node: "m"}},
			{Version: hlc.Timestamp{Wall: 5, Counter: 8, Node: "n"}, ExpiryMs: 1},
		},
	}, "*1\r\n*3\r\n*5\r\n$1\r\na\r\n$1\r\nv\r\n$5\r\n5:6:n\r\n:-1\r\n$-1\r\n" +
		"*5\r\n$1\r\nb\r\n$0\r\n\r\n$5\r\n5:7:n\r\n:1099511627776\r\n$5\r\n4:2:m\r\n" +
		"*5\r\n$1\r\nc\r\n$-1\r\n$5\r\n5:8:n\r\n:1\r\n$-1\r\n", ""},
	{"TIMERS, nothing", statestore.Reply{Kind: statestore.TimerPage}, "*1\r\n*0\r\n", ""},
	{"TIMERS, more to come", statestore.Reply{
		Kind: statestore.TimerPage, Next: []byte("b"),
		Timers: []statestore.TimerEntry{{ID: []byte("a"), DueMs: 0, Topic: "t"}, {ID: []byte("b"), DueMs: 1700000000000, Topic: "t/u"}},
	}, "*2\r\n*2\r\n*3\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\nt\r\n*3\r\n$1\r\nb\r\n$13\r\n1700000000000\r\n$3\r\nt/u\r\n$1\r\nb\r\n", ""},
	{"SCAN, nothing", statestore.Reply{Kind: statestore.Page}, "*1\r\n*0\r\n", ""},
	{"SCAN, an empty page with a token", statestore.Reply{Kind: statestore.Page, Next: []byte("t")}, "*2\r\n*0\r\n$1\r\nt\r\n", ""},
}

func TestSection6Replies(t *testing.T) {
	t.Parallel()
	for _, tc := range replies {
		if tc.documented == "" {
			tc.documented = tc.sdk
		}
		for wire, want := range map[protocol.Wire]string{protocol.SDK: tc.sdk, protocol.Documented: tc.documented} {
			if got := protocol.AppendReply([]byte("> "), wire, &tc.reply); string(got) != "> "+want {
				t.Errorf("%s, %v: %q, want %q", tc.name, wire, got, want)
			}
		}
	}
}

// Every error text leaves as "-ERR <text>", and the client knows it again.
func TestSection6Errors(t *testing.T) {
	t.Parallel()
	for f := statestore.TimestampAhead; f <= statestore.TimerTwice; f++ {
		for _, wire := range []protocol.Wire{protocol.SDK, protocol.Documented} {
			payload := protocol.AppendReply(nil, wire, &statestore.Reply{Kind: statestore.Error, Fault: f})
			if want := "-ERR " + f.Text(wire == protocol.Documented) + "\r\n"; string(payload) != want {
				t.Errorf("%q, want %q", payload, want)
			}
			r, err := protocol.ParseReply(payload)
			if got, ok := r.Fault(); err != nil || !ok || got != f {
				t.Errorf("%q reads %v, %v, %v", payload, got, ok, err)
			}
		}
	}
}

func TestSection6Notifications(t *testing.T) {
	t.Parallel()
	set := statestore.Event{Kind: statestore.KeySet, Value: []byte("abc")}
	empty := statestore.Event{Kind: statestore.KeySet}
	deleted := statestore.Event{Kind: statestore.KeyDeleted}
	for _, tc := range []struct {
		wire  protocol.Wire
		event statestore.Event
		want  string
	}{
		{protocol.SDK, set, "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n"},
		{protocol.Documented, set, "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n"},
		{protocol.SDK, empty, "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$0\r\n\r\n"},
		{protocol.SDK, deleted, "*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"},
		{protocol.Documented, deleted, "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n"},
	} {
		payload := protocol.AppendEvent([]byte("> "), tc.wire, &tc.event)
		if string(payload) != "> "+tc.want {
			t.Errorf("%q, want %q", payload, tc.want)
		}
		got, err := protocol.ParseEvent(payload[2:])
		if err != nil || got.Kind != tc.event.Kind || !bytes.Equal(got.Value, tc.event.Value) {
			t.Errorf("%q reads %+v, %v", payload, got, err)
		}
	}
}

// The documents' own example.
func TestSection6NotifyTopic(t *testing.T) {
	t.Parallel()
	const want = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/636C69656E742D696431/command/notify/534F4D454B4559"
	got := string(protocol.AppendNotifyTopic([]byte("> "), "client-id1", []byte("SOMEKEY")))
	if got != "> "+want {
		t.Errorf("the topic is %s, want %s", got, want)
	}
	id, key, ok := protocol.ParseNotifyTopic(want)
	if !ok || id != "client-id1" || string(key) != "SOMEKEY" {
		t.Errorf("read back: %q, %q, %v", id, key, ok)
	}
	for _, topic := range []string{
		"", "a/b", protocol.NotifyPrefix, protocol.NotifyPrefix + "/", protocol.NotifyPrefix + "/61/command/notify/",
		protocol.NotifyPrefix + "/61/command/notify/6", protocol.NotifyPrefix + "/6/command/notify/61",
		protocol.NotifyPrefix + "/61/command/notify/6x", protocol.NotifyPrefix + "x/61/command/notify/61",
		protocol.NotifyPrefix + "/61/command/notify/61/61", "x" + want,
	} {
		if id, key, ok := protocol.ParseNotifyTopic(topic); ok {
			t.Errorf("%q reads %q, %q", topic, id, key)
		}
	}
}

// Protocol, section 6: a topic of more than 65,535 bytes is a syntax error.
func TestSection6NotifyTopicFits(t *testing.T) {
	t.Parallel()
	fixed := len(protocol.NotifyPrefix + "//command/notify/")
	longest := (65_535 - fixed) / 2
	for _, tc := range []struct {
		client, key int
		want        bool
	}{
		{0, 1, true}, {10, longest - 10, true}, {10, longest - 9, false}, {longest - 1, 1, true}, {longest, 1, false}, {1, 1 << 20, false},
	} {
		client, key := strings.Repeat("c", tc.client), bytes.Repeat([]byte("k"), tc.key)
		got := protocol.NotifyTopicFits(client, key)
		if size := len(protocol.AppendNotifyTopic(nil, client, key)); got != tc.want || got != (size <= 65_535) {
			t.Errorf("client ID of %d, key of %d bytes: %v, and the topic has %d bytes", tc.client, tc.key, got, size)
		}
	}
}

// responses are payloads and how a client reads them.
var responses = []struct {
	payload string
	want    protocol.Response
}{
	{"+OK\r\n", protocol.Response{Kind: protocol.Simple, Text: []byte("OK")}},
	{"+\r\n", protocol.Response{Kind: protocol.Simple, Text: []byte{}}},
	{":1\r\n", protocol.Response{Kind: protocol.Int, Int: 1}},
	{":-1\r\n", protocol.Response{Kind: protocol.Int, Int: -1}},
	{"-1\r\n", protocol.Response{Kind: protocol.Int, Int: -1}},
	{":9223372036854775807\r\n", protocol.Response{Kind: protocol.Int, Int: math.MaxInt64}},
	{"$-1\r\n", protocol.Response{Kind: protocol.Nil}},
	{"$0\r\n\r\n", protocol.Response{Kind: protocol.Blob, Blob: []byte{}}},
	{"$4\r\n\r\n\r\n\r\n", protocol.Response{Kind: protocol.Blob, Blob: []byte("\r\n\r\n")}},
	{"-ERR syntax error\r\n", protocol.Response{Kind: protocol.Error, Text: []byte("syntax error")}},
	{"-ERR: syntax error\r\n", protocol.Response{Kind: protocol.Error, Text: []byte("syntax error")}},
	{"-ERRATIC\r\n", protocol.Response{Kind: protocol.Error, Text: []byte("ERRATIC")}},
	{"-OTHER\r\n", protocol.Response{Kind: protocol.Error, Text: []byte("OTHER")}},
	{"*0\r\n", protocol.Response{Kind: protocol.Array, Array: []protocol.Response{}}},
	{"*2\r\n*1\r\n$1\r\nk\r\n$1\r\nt\r\n", protocol.Response{Kind: protocol.Array, Array: []protocol.Response{
		{Kind: protocol.Array, Array: []protocol.Response{{Kind: protocol.Blob, Blob: []byte("k")}}},
		{Kind: protocol.Blob, Blob: []byte("t")},
	}}},
	// The example of protocol, section 8.
	{"*3\r\n:1\r\n$3\r\nabc\r\n$-1\r\n", protocol.Response{Kind: protocol.Array, Array: []protocol.Response{
		{Kind: protocol.Int, Int: 1}, {Kind: protocol.Blob, Blob: []byte("abc")}, {Kind: protocol.Nil},
	}}},
}

var malformedResponses = []string{
	"", "\r\n", "OK\r\n", "+OK", "+OK\r", "+OK\n", "+OK\r\nx", "+OK\r\n\r\n", ":\r\n", ":x\r\n", ":9223372036854775808\r\n", ":1",
	"$\r\n", "$1\r\n", "$1\r\n\r\n", "$2\r\na\r\n", "$1\r\nab\r\n", "$-2\r\n", "$-1\r\nx", "$99999999999999999999\r\na\r\n",
	"*\r\n", "*-1\r\n", "*1\r\n", "*1000000000\r\n:1\r\n", "*1\r\n:1\r\n:1\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "%1\r\n",
}

func TestParseReply(t *testing.T) {
	t.Parallel()
	for _, tc := range responses {
		got, err := protocol.ParseReply([]byte(tc.payload))
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%q reads %+v, %v; want %+v", tc.payload, got, err, tc.want)
		}
		if notApplied := tc.payload == ":-1\r\n" || tc.payload == "-1\r\n"; got.NotApplied() != notApplied {
			t.Errorf("%q: NotApplied is %v", tc.payload, got.NotApplied())
		}
	}
	for _, payload := range malformedResponses {
		if got, err := protocol.ParseReply([]byte(payload)); !errors.Is(err, protocol.ErrMalformed) {
			t.Errorf("%q reads %+v, %v", payload, got, err)
		}
	}
}

// What the store writes the client reads, in both wire forms.
func TestReplyComesBack(t *testing.T) {
	t.Parallel()
	blob := rapid.SliceOf(rapid.Byte())
	orNil := rapid.OneOf(blob, rapid.Just([]byte(nil)))
	reply := rapid.Custom(func(t *rapid.T) statestore.Reply {
		return statestore.Reply{
			Kind:    statestore.ReplyKind(rapid.IntRange(int(statestore.OK), int(statestore.Loaded)).Draw(t, "kind")),
			Fault:   statestore.Fault(rapid.IntRange(1, int(statestore.PageTooLarge)).Draw(t, "fault")),
			Count:   rapid.IntRange(0, 2).Draw(t, "count"),
			Value:   orNil.Draw(t, "value"),
			Context: orNil.Draw(t, "context"),
			Keys:    rapid.SliceOf(blob).Draw(t, "keys"),
			Next:    blob.Draw(t, "next"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		want := reply.Draw(t, "reply")
		wire := rapid.SampledFrom([]protocol.Wire{protocol.SDK, protocol.Documented}).Draw(t, "wire")
		payload := protocol.AppendReply(nil, wire, &want)
		got, err := protocol.ParseReply(payload)
		if err != nil || !sameReply(&got, &want) {
			t.Fatalf("%q reads %+v, %v; want %+v", payload, got, err, want)
		}
	})
}

func sameReply(got *protocol.Response, want *statestore.Reply) bool {
	switch want.Kind {
	case statestore.OK:
		return got.Kind == protocol.Simple && string(got.Text) == "OK"
	case statestore.NotApplied, statestore.Conflict:
		return got.NotApplied()
	case statestore.Loaded:
		return got.Kind == protocol.Array && len(got.Array) == 3 && got.Array[0].Int == int64(want.Count) &&
			sameBlob(&got.Array[1], want.Value) && sameBlob(&got.Array[2], want.Context)
	case statestore.Value:
		return got.Kind == protocol.Blob && bytes.Equal(got.Blob, want.Value)
	case statestore.Nil:
		return got.Kind == protocol.Nil
	case statestore.Count:
		return got.Kind == protocol.Int && got.Int == int64(want.Count)
	case statestore.Error:
		f, ok := got.Fault()
		return ok && f == want.Fault
	}
	if got.Kind != protocol.Array || len(got.Array) != min(2, 1+len(want.Next)) || len(got.Array[0].Array) != len(want.Keys) {
		return false
	}
	for i, key := range want.Keys {
		if !bytes.Equal(got.Array[0].Array[i].Blob, key) {
			return false
		}
	}
	return len(want.Next) == 0 || bytes.Equal(got.Array[1].Blob, want.Next)
}

// sameBlob tells nil from an empty blob.
func sameBlob(got *protocol.Response, want []byte) bool {
	if want == nil {
		return got.Kind == protocol.Nil
	}
	return got.Kind == protocol.Blob && bytes.Equal(got.Blob, want)
}

// An array that claims much and brings little costs little.
func TestParseReplyBelievesNoClaim(t *testing.T) {
	payload := append([]byte("*1000000\r\n"), bytes.Repeat([]byte{'x'}, 1_000_000)...)
	allocs := testing.AllocsPerRun(10, func() {
		if _, err := protocol.ParseReply(payload); err == nil {
			t.Fatal("read")
		}
	})
	if allocs > 1 {
		t.Errorf("%v allocations", allocs)
	}
}

var malformedEvents = []string{
	"", "+OK\r\n", string(words("NOTIFY")), string(words("NOTIFY SET")), string(words("NOTIFY SET VALUE")), string(words("NOTIFY SET VALUE a b")),
	string(words("NOTIFY SET OTHER a")), string(words("NOTIFY DELETE VALUE a")), string(words("NOTIFY EXPIRE")), string(words("KEYNOTIFY DELETE")),
	string(words("NOTIFY DELETE")) + "x",
}

func TestParseEvent(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]statestore.Event{
		string(words("NOTIFY SET VALUE abc")): {Kind: statestore.KeySet, Value: []byte("abc")},
		string(words("notify set value abc")): {Kind: statestore.KeySet, Value: []byte("abc")},
		string(words("NOTIFY DELETE")):        {Kind: statestore.KeyDeleted},
		string(words("NOTIFY DEL")):           {Kind: statestore.KeyDeleted},
	} {
		if got, err := protocol.ParseEvent([]byte(payload)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q reads %+v, %v; want %+v", payload, got, err, want)
		}
	}
	for _, payload := range malformedEvents {
		if got, err := protocol.ParseEvent([]byte(payload)); !errors.Is(err, protocol.ErrMalformed) {
			t.Errorf("%q reads %+v, %v", payload, got, err)
		}
	}
}

func FuzzParseReply(f *testing.F) {
	for _, tc := range responses {
		f.Add([]byte(tc.payload))
	}
	for _, payload := range malformedResponses {
		f.Add([]byte(payload))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := protocol.ParseReply(payload)
		if err != nil {
			return
		}
		within(t, payload, &r)
		// Written again it reads the same.
		again, err := protocol.ParseReply(appendResponse(nil, &r))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%q reads %+v, written again %+v, %v", payload, r, again, err)
		}
	})
}

// appendResponse writes what ParseReply has read.
func appendResponse(dst []byte, r *protocol.Response) []byte {
	switch r.Kind {
	case protocol.Simple:
		return append(append(append(dst, '+'), r.Text...), "\r\n"...)
	case protocol.Error:
		return append(append(append(dst, "-ERR "...), r.Text...), "\r\n"...)
	case protocol.Int:
		return append(strconv.AppendInt(append(dst, ':'), r.Int, 10), "\r\n"...)
	case protocol.Nil:
		return append(dst, "$-1\r\n"...)
	case protocol.Blob:
		return protocol.AppendReply(dst, protocol.SDK, &statestore.Reply{Kind: statestore.Value, Value: r.Blob})
	}
	dst = append(strconv.AppendInt(append(dst, '*'), int64(len(r.Array)), 10), "\r\n"...)
	for i := range r.Array {
		dst = appendResponse(dst, &r.Array[i])
	}
	return dst
}

// within checks that all bytes of the response are views of the payload.
func within(t *testing.T, payload []byte, r *protocol.Response) {
	t.Helper()
	start := uintptr(unsafe.Pointer(unsafe.SliceData(payload)))
	for _, b := range [][]byte{r.Text, r.Blob} {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		if len(b) > 0 && (at < start || at+uintptr(len(b)) > start+uintptr(len(payload))) {
			t.Fatalf("%q isn't a view of %q", b, payload)
		}
	}
	for i := range r.Array {
		within(t, payload, &r.Array[i])
	}
}

func FuzzParseEvent(f *testing.F) {
	for _, payload := range malformedEvents {
		f.Add([]byte(payload))
	}
	f.Add(words("NOTIFY SET VALUE abc"))
	f.Add(words("notify delete"))
	f.Add(words("NOTIFY DEL"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		ev, err := protocol.ParseEvent(payload)
		if err != nil {
			return
		}
		for _, wire := range []protocol.Wire{protocol.SDK, protocol.Documented} {
			again, err := protocol.ParseEvent(protocol.AppendEvent(nil, wire, &ev))
			if err != nil || !reflect.DeepEqual(again, ev) {
				t.Fatalf("%q reads %+v, written again %+v, %v", payload, ev, again, err)
			}
		}
	})
}
