package pages

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for want, words := range map[string][][]byte{
		"SCAN a*":                       Options{}.Words("a*", nil),
		"SCAN a* token BINARY":          Options{Binary: true}.Words("a*", []byte("token")),
		"SCAN a* token VALUES":          Options{Values: true}.Words("a*", []byte("token")),
		"SCAN a* VALUES DETAILS BINARY": Options{Values: true, Details: true, Binary: true}.Words("a*", nil),
	} {
		var got []string
		for _, w := range words {
			got = append(got, string(w))
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func blob(s string) protocol.Response {
	return protocol.Response{Kind: protocol.Blob, Blob: []byte(s)}
}

func integer(n int64) protocol.Response { return protocol.Response{Kind: protocol.Int, Int: n} }

func array(of ...protocol.Response) protocol.Response {
	return protocol.Response{Kind: protocol.Array, Array: of}
}

var none = protocol.Response{Kind: protocol.Nil}

func TestRead(t *testing.T) {
	t.Parallel()
	all := Options{Values: true, Details: true}
	page := array(array(
		array(blob("a"), blob("v"), blob("1:2:n"), integer(1500), blob("0:1:m")),
		array(blob("b"), none, blob("1:3:n"), integer(-1), none),
		array(blob("c"), blob(""), blob("1:4:n"), integer(1<<62), none),
	), blob("token"))
	entries, next, ok := all.Read(&page)
	if !ok || len(entries) != 3 || string(next) != "token" {
		t.Fatalf("%+v, token %q, %v", entries, next, ok)
	}
	if a := entries[0]; a.Key != "a" || string(a.Value) != "v" || a.Version.String() != "1:2:n" || a.Expiry != 1500*time.Millisecond || a.Token.String() != "0:1:m" {
		t.Errorf("%+v", a)
	}
	if b := entries[1]; !b.TooLarge || b.Value != nil || b.Expiry != 0 || !b.Token.IsZero() {
		t.Errorf("%+v", b)
	}
	if c := entries[2]; c.TooLarge || c.Value == nil || c.Expiry < 200*365*24*time.Hour {
		t.Errorf("%+v", c)
	}
}

// What no server should send is refused.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	keys, values, details := Options{}, Options{Values: true}, Options{Values: true, Details: true}
	for name, test := range map[string]struct {
		o    Options
		page protocol.Response
	}{
		"no array":              {keys, blob("a")},
		"nothing":               {keys, array()},
		"too much":              {keys, array(array(), blob("t"), blob("t"))},
		"keys that are no list": {keys, array(blob("a"))},
		"a number as key":       {keys, array(array(integer(1)))},
		"a number as token":     {keys, array(array(), integer(1))},
		"a key without value":   {values, array(array(blob("a")))},
		"two elements":          {values, array(array(array(blob("a"), blob("v"))))},
		"a number as value":     {values, array(array(array(blob("a"), integer(1), blob("1:2:n"))))},
		"a bad version":         {values, array(array(array(blob("a"), blob("v"), blob("x"))))},
		"no details":            {details, array(array(array(blob("a"), blob("v"), blob("1:2:n"))))},
		"a text as expiry":      {details, array(array(array(blob("a"), blob("v"), blob("1:2:n"), blob("1"), none)))},
		"no time left":          {details, array(array(array(blob("a"), blob("v"), blob("1:2:n"), integer(0), none)))},
		"a negative expiry":     {details, array(array(array(blob("a"), blob("v"), blob("1:2:n"), integer(-2), none)))},
		"a bad token":           {details, array(array(array(blob("a"), blob("v"), blob("1:2:n"), integer(-1), blob("x"))))},
	} {
		if entries, _, ok := test.o.Read(&test.page); ok {
			t.Errorf("%s: read as %+v", name, entries)
		}
	}
}

func TestKeysOnTheWire(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]struct {
		keys  int
		token string
		ok    bool
	}{
		"*1\r\n*0\r\n":                         {0, "", true},
		"*1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n":   {2, "", true},
		"*2\r\n*1\r\n$1\r\na\r\n$3\r\ntok\r\n": {1, "tok", true},
		"*2\r\n*0\r\n$3\r\ntok\r\n":            {0, "tok", true},
		"*0\r\n":                               {},
		"*1\r\n$1\r\na\r\n":                    {},
		"*1\r\n*1\r\n:1\r\n":                   {},
		"*2\r\n*0\r\n:1\r\n":                   {},
		"*3\r\n*0\r\n$1\r\na\r\n$1\r\nb\r\n":   {},
		"+OK\r\n":                              {},
	} {
		r, err := protocol.ParseReply([]byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		keys, token, ok := Options{}.Read(&r)
		if len(keys) != want.keys || string(token) != want.token || ok != want.ok {
			t.Errorf("%q: %d keys, token %q, %v; want %+v", payload, len(keys), token, ok, want)
		}
	}
}

// The same of a page with values.
func TestValuesOnTheWire(t *testing.T) {
	t.Parallel()
	for payload, ok := range map[string]bool{
		"*1\r\n*0\r\n": true,
		"*1\r\n*1\r\n*3\r\n$1\r\na\r\n$1\r\nv\r\n$5\r\n1:2:n\r\n":                true,
		"*2\r\n*1\r\n*3\r\n$1\r\na\r\n$-1\r\n$5\r\n1:2:n\r\n$3\r\ntok\r\n":       true,
		"*1\r\n*1\r\n$1\r\na\r\n":                                                false,
		"*1\r\n*1\r\n*2\r\n$1\r\na\r\n$1\r\nv\r\n":                               false,
		"*1\r\n*1\r\n*3\r\n:1\r\n$1\r\nv\r\n$5\r\n1:2:n\r\n":                     false,
		"*1\r\n*1\r\n*3\r\n$1\r\na\r\n:1\r\n$5\r\n1:2:n\r\n":                     false,
		"*1\r\n*1\r\n*3\r\n$1\r\na\r\n$1\r\nv\r\n$3\r\n1:2\r\n":                  false,
		"*1\r\n*1\r\n*3\r\n$1\r\na\r\n$1\r\nv\r\n$-1\r\n":                        false,
		"*1\r\n*1\r\n*4\r\n$1\r\na\r\n$1\r\nv\r\n$5\r\n1:2:n\r\n$5\r\n1:2:n\r\n": false,
	} {
		r, err := protocol.ParseReply([]byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		entries, _, got := Options{Values: true}.Read(&r)
		if got != ok {
			t.Errorf("%q: %v, want %v", payload, got, ok)
		}
		for _, e := range entries {
			if e.Key != "a" || e.TooLarge != (e.Value == nil) || e.Version.String() != "1:2:n" {
				t.Errorf("%q: %+v", payload, e)
			}
		}
	}
}
