package wire

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestValidUTF8(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		s    string
		want bool
	}{
		{"empty", "", true},
		{"ASCII", "a/b", true},
		{"two, three and four bytes", "é日🐝", true},
		{"control characters", "\x01\x1F\x7F\u0085", true},
		{"byte order mark", "\uFEFFa", true},
		{"non-characters", "\uFFFE\uFFFF\U0010FFFF", true},
		{"U+0000", "\x00", false},
		{"U+0000 as two bytes", "\xC0\x80", false},
		{"lone continuation", "\x80", false},
		{"cut character", "\xE6\x97", false},
		{"overlong", "\xE0\x80\x80", false},
		{"high surrogate", "\xED\xA0\x80", false},
		{"low surrogate", "\xED\xBF\xBF", false},
		{"beyond U+10FFFF", "\xF4\x90\x80\x80", false},
		{"no UTF-8 at all", "\xFF", false},
	}
	for _, c := range cases {
		// At every place of an ASCII text of every length that the fast path treats differently.
		for before := range 40 {
			for after := range 40 {
				s := strings.Repeat("a", before) + c.s + strings.Repeat("z", after)
				if got := ValidUTF8([]byte(s)); got != c.want {
					t.Fatalf("%s: ValidUTF8(%q) = %v", c.name, s, got)
				}
			}
		}
	}
}

func TestValidTopicName(t *testing.T) {
	t.Parallel()
	for b := range 128 {
		for before := range 20 {
			for after := range 20 {
				name := []byte(strings.Repeat("a", before) + string(rune(b)) + strings.Repeat("z", after))
				if got, want := ValidTopicName(name), b != 0 && b != '+' && b != '#'; got != want {
					t.Fatalf("ValidTopicName(%q) = %v", name, got)
				}
			}
		}
	}
}

func FuzzValidUTF8(f *testing.F) {
	for _, s := range []string{"", "a", "statestore/v1/é", "01234567\x00", "0123456789abcdef0123456789abcdef+", "\xED\xA0\x80"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want := utf8.Valid(b) && !bytes.Contains(b, []byte{0})
		if got := ValidUTF8(b); got != want {
			t.Errorf("ValidUTF8(%q) = %v", b, got)
		}
		if got := ValidTopicName(b); got != (want && !bytes.ContainsAny(b, "+#")) {
			t.Errorf("ValidTopicName(%q) = %v", b, got)
		}
	})
}
