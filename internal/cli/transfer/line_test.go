package transfer

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// keyLines are lines of keys, and what is next to them.
var keyLines = []struct {
	line string
	fast bool // readKeyLine reads it
}{
	{`{"key":"k","value":"v","version":"1700000000000:1:StateStore"}`, true},
	{`{"key":"k","value":""}`, true},
	{`{"key":"k"}`, false}, // no value
	{`{"value":"v","key":"k"}`, true},
	{`{"key":"k","value":"v","fencing_token":"1700000000000:00001:node"}`, true},
	{`{"key":"k","value":"v","expires":"2026-11-24T20:00:00.5Z"}`, true},
	{`{"key":"\"\\\/\b\f\n\r\t","value":"\u0000\u001f\u00e9\u20ac\uFFFDé€𝄞"}`, true},
	{`{"key":"` + "\x7f" + `","value":"</&>"}`, true},

	{`{"key":"\ud834\udd1e","value":"v"}`, false}, // a surrogate pair
	{`{"key":"\ud834","value":"v"}`, false},       // half of one
	{"{\"key\":\"\xff\",\"value\":\"v\"}", false}, // not UTF-8
	{"{\"key\":\"k\",\"value\":\"\\n\xff\"}", false},
	{"{\"key\":\"a\tb\",\"value\":\"v\"}", false}, // a control character
	{`{"key":"","value":"v"}`, false},
	{`{"value":"v"}`, false},
	{`{"key":"k","key":"l"}`, false},
	{`{"Key":"k"}`, false},
	{`{"key":"k","valve":"v"}`, false},
	{`{"key":"k","value":null}`, false},
	{`{"key":"k","value":"v","expires":"tomorrow"}`, false},
	{`{"key":"k","value":"v","fencing_token":"7"}`, false},
	{`{"key":"k","value_base64":"AA=="}`, false},
	{`{"key":"k", "value":"v"}`, false},
	{`{"key":"k","value":"v"} `, false},
	{`{"key":"k","value":"v"}{}`, false},
	{`{"key":"k","value":"v",}`, false},
	{`{"key":"k","value":"v"`, false},
	{`{"key":"k","value":"v`, false},
	{`{"key":"k","value":"v\`, false},
	{`{"key":"k","value":"\u00e`, false},
	{`{"key":"k","value":"\u00eg"}`, false},
	{`{"key":"k","value":"\x"}`, false},
	{`{"topic":"t","payload":"p"}`, false},
	{`{}`, false},
	{`{`, false},
	{``, false},
	{`["key"]`, false},
}

func TestReadKeyLine(t *testing.T) {
	t.Parallel()
	for _, test := range keyLines {
		r, ok := readKeyLine([]byte(test.line))
		if ok {
			_, ok = r.entry()
		}
		if ok != test.fast {
			t.Errorf("%s: %v, want %v", test.line, ok, test.fast)
		}
		agrees(t, []byte(test.line))
	}
}

// A value does not keep a line in memory that is much longer.
func TestAValueHoldsNoLongLine(t *testing.T) {
	t.Parallel()
	for versionBytes, want := range map[int]bool{wordsBytes + 1: true, wordsBytes + 2: false} {
		line := []byte(`{"key":"k","value":"v","version":"` + strings.Repeat("1", versionBytes) + `"}`)
		e, err := readRecord(line)
		if err != nil || string(e.value) != "v" {
			t.Fatalf("got %q, %v", e.value, err)
		}
		line[len(`{"key":"k","value":"`)] = 'w'
		if got := string(e.value) == "w"; got != want {
			t.Errorf("with a version of %d bytes: a view of the line is %v, want %v", versionBytes, got, want)
		}
	}
}

// agrees checks that a line is what encoding/json makes of it.
func agrees(t *testing.T, line []byte) {
	t.Helper()
	got, gotErr := readRecord(line)
	want, wantErr := decodeRecord(line)
	if got.key != want.key || string(got.value) != string(want.value) || !got.expires.Equal(want.expires) || got.token != want.token ||
		!reflect.DeepEqual(got.message, want.message) || (gotErr == nil) != (wantErr == nil) {
		t.Errorf("%q: %+v, %v; want %+v, %v", line, got, gotErr, want, wantErr)
	}
}

// However a line is written, both ways to read it give the same entry.
func FuzzReadRecord(f *testing.F) {
	for _, test := range keyLines {
		f.Add([]byte(test.line), "k", []byte("v"))
	}
	f.Add([]byte(nil), "\x00\u2028<>&\"\\", []byte("\xff\xfe"))
	f.Fuzz(func(t *testing.T, line []byte, key string, value []byte) {
		agrees(t, line)
		var r record
		r.Key, r.KeyBase64 = text([]byte(key))
		r.Value, r.ValueBase64 = text(value)
		exported, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		agrees(t, exported)
	})
}
