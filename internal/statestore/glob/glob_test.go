package glob_test

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
)

// Protocol, section 7, each sentence about patterns with its examples.
var patterns = []struct {
	rule    string
	pattern string
	match   []string
	differ  []string
}{
	{"a literal is matched against the whole key", "abc", []string{"abc"}, []string{"", "ab", "abcd", "xabc", "ABC"}},
	{"* is any number of code points", "*", []string{"", "a", "/", "a/b\r\n", "é🙂"}, nil},
	{"* at the end", "ab*", []string{"ab", "abc", "ab*"}, []string{"a", "xab"}},
	{"* at the beginning", "*ab", []string{"ab", "cab", "abab"}, []string{"a", "abx"}},
	{"* in between", "a*b*c", []string{"abc", "aXbYc", "abbcc", "abcbc"}, []string{"ab", "ac", "acb", "abcX"}},
	{"what stands around a * does not overlap", "aba*ba", []string{"ababa", "abaXba"}, []string{"aba", "abba"}},
	{"** is *", "a**b", []string{"ab", "aXb"}, []string{"a"}},
	{"? is one code point", "?", []string{"a", "é", "🙂", "*"}, []string{"", "ab", "e\u0301"}},
	{"? between stars", "*?*", []string{"a", "🙂", "ab"}, []string{""}},
	{"?? before the end", "*??", []string{"ab", "é🙂", "xyz"}, []string{"", "a", "é"}},
	{"[abc] is one of these", "x[abc]y", []string{"xay", "xby", "xcy"}, []string{"xy", "xdy", "xaby", "x[abc]y"}},
	{"[a-z] is one of a range", "[a-z]", []string{"a", "m", "z"}, []string{"A", "aa", "-", ""}},
	{"a range of one", "[a-a]", []string{"a"}, []string{"b", "-"}},
	{"a range of code points", "[à-é]", []string{"à", "é", "ç"}, []string{"e", "ê", "\u00c3"}},
	{"[!abc] is one that is not there", "[!abc]", []string{"d", "é", "!", "🙂"}, []string{"a", "c", "", "dd"}},
	{"[!a-z] negates ranges too", "[!a-z0]", []string{"A", "1"}, []string{"k", "0"}},
	{"a literal in brackets: *", "a[*]b", []string{"a*b"}, []string{"ab", "aXb"}},
	{"a literal in brackets: ?", "a[?]", []string{"a?"}, []string{"ab"}},
	{"a literal in brackets: [", "a[[]b", []string{"a[b"}, []string{"ab"}},
	{"] outside brackets is literal", "a]b", []string{"a]b"}, []string{"ab"}},
	{"! that is not first is literal", "[a!]", []string{"a", "!"}, []string{"b"}},
	{"! after ! is literal", "[!!]", []string{"a"}, []string{"!"}},
	{"- that is first is literal", "[-a]", []string{"-", "a"}, []string{"b"}},
	{"- that is last is literal", "[a-]", []string{"-", "a"}, []string{"b"}},
	{"- after ! is literal", "[!-a]", []string{"b"}, []string{"-", "a"}},
	{"- after a range is literal", "[a-c-e]", []string{"a", "b", "c", "-", "e"}, []string{"d"}},
	{"a range can begin with -", "[--0]", []string{"-", ".", "0"}, []string{",", "1"}},
	{"^ is literal", "[^a]", []string{"^", "a"}, []string{"b"}},
	{"a backslash is literal", `a\*`, []string{`a\`, `a\b`}, []string{"a*"}},
	{"keys that are not UTF-8 never match", "*", nil, []string{"\xff", "a\xc3", "\xed\xa0\x80"}},
}

// Protocol, section 7: with BINARY, the same patterns are matched byte by byte.
func TestPatternsOfBytes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern string
		match   []string
		differ  []string
	}{
		{"*", []string{"", "a", "\xff", "caf\xe9", "é🙂"}, nil},
		{"caf?", []string{"cafe", "caf\xe9"}, []string{"café", "caf"}},
		{"caf??", []string{"café"}, []string{"caf\xe9"}},
		{"caf\xe9*", []string{"caf\xe9", "caf\xe9 1", "caf\xe9\xff"}, []string{"café", "caf"}},
		{"*\x00", []string{"\x00", "\xff\x00"}, []string{"", "\x00a"}},
		{"*\xe9?b*c", []string{"\xe9xbc", "a\xe9\xffb\xffc"}, []string{"\xe9bc", "éxbc"}},
		{"[\x80-\xff]", []string{"\x80", "\xc3", "\xff"}, []string{"\x7f", "é"}},
		{"[!\x80-\xff]", []string{"a"}, []string{"\x80", "é"}},
		{"[é]", []string{"\xc3", "\xa9"}, []string{"é", "\xe9"}},
		{"é", []string{"é"}, []string{"\xe9", "\xc3"}},
		{"日*", []string{"日", "日本", "日\xff"}, []string{"\xe6"}},
	} {
		g, err := glob.CompileBytes([]byte(test.pattern))
		if err != nil || !glob.ValidBytes([]byte(test.pattern)) {
			t.Fatalf("%q: %v", test.pattern, err)
		}
		for _, key := range test.match {
			if !g.Match([]byte(key)) || !strings.HasPrefix(key, string(g.Prefix())) {
				t.Errorf("%q does not match %q, or has not its prefix %q", test.pattern, key, g.Prefix())
			}
		}
		for _, key := range test.differ {
			if g.Match([]byte(key)) {
				t.Errorf("%q matches %q", test.pattern, key)
			}
		}
	}
	for _, pattern := range []string{"", "[", "[\xff", "[]", "[\xff-\x80]"} {
		if _, err := glob.CompileBytes([]byte(pattern)); !errors.Is(err, glob.ErrMalformed) || glob.ValidBytes([]byte(pattern)) {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

// What is ASCII matches byte by byte as it matches by code points.
func TestPatternsOfBytesAgreeOnASCII(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[ab?*!\[\]-]{1,8}`)
	rapid.Check(t, func(t *rapid.T) {
		pattern, key := []byte(text.Draw(t, "pattern")), []byte(text.Draw(t, "key"))
		points, err := glob.Compile(pattern)
		byBytes, byBytesErr := glob.CompileBytes(pattern)
		if !errors.Is(byBytesErr, err) || points.Match(key) != byBytes.Match(key) {
			t.Fatalf("%q, %q: %v and %v, %v and %v", pattern, key, points.Match(key), byBytes.Match(key), err, byBytesErr)
		}
	})
}

var malformedPatterns = []string{
	"",               // empty
	"\xff", "a\xc3*", // not UTF-8
	"[", "a[", "[a", "[!", "[!a", "a[b*", // an unclosed class
	"[]", "[!]", "a[]b", "[]]", "[]a]", "[!]a]", // an empty class
	"[z-a]", "[ab-a]", "[!z-a]", "[é-a]", "[a--]", // a reversed range
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, tc := range patterns {
		g, err := glob.Compile([]byte(tc.pattern))
		if err != nil {
			t.Errorf("%s: Compile(%q): %v", tc.rule, tc.pattern, err)
			continue
		}
		for _, key := range tc.match {
			if !g.Match([]byte(key)) {
				t.Errorf("%s: %q doesn't match %q", tc.rule, tc.pattern, key)
			}
		}
		for _, key := range tc.differ {
			if g.Match([]byte(key)) {
				t.Errorf("%s: %q matches %q", tc.rule, tc.pattern, key)
			}
		}
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, pattern := range malformedPatterns {
		if _, err := glob.Compile([]byte(pattern)); !errors.Is(err, glob.ErrMalformed) {
			t.Errorf("Compile(%q) = %v, want ErrMalformed", pattern, err)
		}
		if glob.Valid([]byte(pattern)) {
			t.Errorf("Valid(%q)", pattern)
		}
	}
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"abc": "abc", "abc*": "abc", "*abc": "", "a?c": "a", "ab[cd]": "ab", "[ab]c": "", "[!a]": "",
		"é*": "é", "a[*]b*c": "a*b", "[[]*": "[",
	} {
		g, err := glob.Compile([]byte(pattern))
		if err != nil || string(g.Prefix()) != want {
			t.Errorf("prefix of %q is %q, %v; want %q", pattern, g.Prefix(), err, want)
		}
	}
}

func TestCompileKeepsNothing(t *testing.T) {
	t.Parallel()
	pattern := []byte("a[bc]d*e")
	g, err := glob.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	copy(pattern, "XXXXXXXX")
	if !g.Match([]byte("abd-e")) || string(g.Prefix()) != "a" {
		t.Error("the glob has changed with the bytes it was compiled from")
	}
}

// asRegexp translates a pattern in the most obvious way; ok is false if it is
// malformed.
func asRegexp(pattern string) (re *regexp.Regexp, ok bool) {
	if pattern == "" || !utf8.ValidString(pattern) {
		return nil, false
	}
	var b strings.Builder
	b.WriteString(`\A(?s:`)
	runes := []rune(pattern)
	for i := 0; i < len(runes); i++ {
		switch runes[i] {
		case '*':
			b.WriteString(`.*`)
		case '?':
			b.WriteString(`.`)
		case '[':
			end := i + 1
			for end < len(runes) && runes[end] != ']' {
				end++
			}
			if end == len(runes) || !classAsRegexp(&b, runes[i+1:end]) {
				return nil, false
			}
			i = end
		default:
			fmt.Fprintf(&b, `\x{%x}`, runes[i])
		}
	}
	b.WriteString(`)\z`)
	return regexp.MustCompile(b.String()), true
}

func classAsRegexp(b *strings.Builder, class []rune) (ok bool) {
	b.WriteString(`[`)
	if len(class) > 0 && class[0] == '!' {
		b.WriteString(`^`)
		class = class[1:]
	}
	if len(class) == 0 {
		return false
	}
	for len(class) > 0 {
		low, high, n := class[0], class[0], 1
		if len(class) > 2 && class[1] == '-' {
			high, n = class[2], 3
		}
		if low > high {
			return false
		}
		fmt.Fprintf(b, `\x{%x}-\x{%x}`, low, high)
		class = class[n:]
	}
	b.WriteString(`]`)
	return true
}

// agree checks a pattern and a key against the translation.
func agree(t interface{ Fatalf(string, ...any) }, pattern, key string) {
	re, want := asRegexp(pattern)
	g, err := glob.Compile([]byte(pattern))
	if (err == nil) != want || glob.Valid([]byte(pattern)) != want {
		t.Fatalf("pattern %q: %v, Valid %v; want well-formed %v", pattern, err, glob.Valid([]byte(pattern)), want)
	}
	if !want {
		return
	}
	matches := g.Match([]byte(key))
	if want := utf8.ValidString(key) && re.MatchString(key); matches != want {
		t.Fatalf("%q against %q: %v, want %v", pattern, key, matches, want)
	}
	if matches && !bytes.HasPrefix([]byte(key), g.Prefix()) {
		t.Fatalf("%q matches %q, which doesn't begin with the prefix %q", pattern, key, g.Prefix())
	}
}

func TestMatchAgreesWithRegexp(t *testing.T) {
	t.Parallel()
	pattern := rapid.StringOfN(rapid.SampledFrom([]rune("**?[]!-abcé")), 0, 12, -1)
	key := rapid.StringOfN(rapid.SampledFrom([]rune("aabbc-!]é")), 0, 12, -1)
	rapid.Check(t, func(t *rapid.T) {
		agree(t, pattern.Draw(t, "pattern"), key.Draw(t, "key"))
	})
}

// Segments longer than a word of the finder's bits, and longer than those on its stack.
func TestLongSegmentsAgreeWithRegexp(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{"[ab]", "?", "[!c]", "a", "[a-c]", "é", "[!é]", "[à-ü]"})
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(part, 1, 4).Draw(t, "parts")
		segment := strings.Repeat(strings.Join(parts, ""), rapid.SampledFrom([]int{1, 16, 21, 32, 64, 300}).Draw(t, "times"))
		keys := rapid.StringOfN(rapid.SampledFrom([]rune("aabbcé")), 1, 6, -1)
		key := strings.Repeat(keys.Draw(t, "key"), rapid.SampledFrom([]int{1, 40, 250}).Draw(t, "times")) + keys.Draw(t, "end")
		agree(t, "*"+segment+"*", key)
		agree(t, "a*"+segment+"*"+segment+"*", key)
	})
}

// The longest pattern that the protocol lets through, of classes that nearly match
// everywhere in a large key: a matcher that tries it at each place takes seconds.
func TestMatchIsLinear(t *testing.T) {
	t.Parallel()
	g, err := glob.Compile([]byte("*" + strings.Repeat("[ab]", 254) + "c*"))
	if err != nil {
		t.Fatal(err)
	}
	key := bytes.Repeat([]byte("ab"), 1<<20)
	began := time.Now()
	if g.Match(key) {
		t.Error("matched")
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("a key of %d bytes took %v", len(key), took)
	}
	key[len(key)-1] = 'c'
	if !g.Match(key) {
		t.Error("did not match")
	}
}

func FuzzGlob(f *testing.F) {
	for _, tc := range patterns {
		for _, key := range append(tc.match, tc.differ...) {
			f.Add(tc.pattern, key)
		}
	}
	for _, pattern := range malformedPatterns {
		f.Add(pattern, "a")
	}
	f.Fuzz(func(t *testing.T, pattern, key string) {
		if len(pattern) > 100 || len(key) > 1000 {
			return // the translation is too slow, and what it tells is in shorter ones
		}
		agree(t, pattern, key)
	})
}

// A pattern made to be slow: a matcher that tries every way of dividing the key
// among the stars would not come back.
func TestMatchIsNotExponential(t *testing.T) {
	t.Parallel()
	g, err := glob.Compile([]byte(strings.Repeat("*a?", 30) + "b"))
	if err != nil {
		t.Fatal(err)
	}
	if g.Match([]byte(strings.Repeat("a", 10_000))) {
		t.Error("matched")
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	pattern := []byte("thermostat-[0-9]?*/set[!x]oint*")
	g, err := glob.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	key := []byte("thermostat-17é/room/setPoint")
	allocs := testing.AllocsPerRun(100, func() {
		if !g.Match(key) || !glob.Valid(pattern) {
			t.Fatal("no match")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkMatch(b *testing.B) {
	key := []byte("site/thermostat-17/setPoint")
	for _, pattern := range []string{"site/*", "*/setPoint", "site/*-17/*", "site/thermostat-[0-9][0-9]/*", "*-[0-9][0-9]/*"} {
		b.Run(pattern, func(b *testing.B) {
			g, err := glob.Compile([]byte(pattern))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if !g.Match(key) {
					b.Fatal("no match")
				}
			}
		})
	}
}
