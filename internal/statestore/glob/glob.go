// Package glob matches keys against the patterns of SCAN (protocol, section 7).
//
// In a pattern * stands for any number of code points, none included, and ? for
// one. [abc] stands for one of these, [a-z] for one of a range, [!abc] for one
// that isn't listed; [*] is a literal in brackets. A pattern is matched against
// the whole key. Anything else in it is literal, a backslash and a ] outside
// brackets included; so is a - that is first or last in its brackets. Keys that
// are not UTF-8 never match.
//
// A pattern can be compiled to match byte by byte as well: then ? stands for one byte,
// a class is one of bytes, and patterns and keys need not be UTF-8.
//
// The protocol's parser judges patterns by it, the engine matches keys with it.
package glob

import (
	"bytes"
	"errors"
	"slices"
	"unicode/utf8"
)

// ErrMalformed is returned for a pattern that is empty or not UTF-8, or that has
// a class that is unclosed or empty, or a range that is reversed.
var ErrMalformed = errors.New("malformed pattern: it must be UTF-8 and not empty, each [ needs its ] with something between, and a range must not be reversed")

// Glob is a compiled pattern. It is immutable and safe for concurrent use. The
// zero value matches nothing but the empty key.
type Glob struct {
	// segments are what stands between the stars. The first is bound to the
	// beginning of the key, the last to its end; those between may be anywhere
	// in their order.
	segments []segment
	prefix   []byte

	// bytewise: keys are matched byte by byte. The segments are those of a pattern in
	// which each byte has become the code point of the same number; keys are put into
	// that form before they are held against them. The prefix is as it was.
	bytewise bool
}

// segment matches a fixed number of code points.
type segment struct {
	steps []step
	runes int
	finder
}

// step is a run of literal bytes, or else one code point out of a class.
type step struct {
	literal []byte
	class   []byte // what stands in the brackets, without a !
	negated bool
	any     bool // ?
}

// Compile reads a pattern, of which it keeps nothing. The error is ErrMalformed.
func Compile(pattern []byte) (Glob, error) {
	if !Valid(pattern) {
		return Glob{}, ErrMalformed
	}
	var g Glob
	var current segment
	rest := bytes.Clone(pattern)
	for len(rest) > 0 {
		t, n, _ := next(rest)
		rest = rest[n:]
		if t.kind == tokenStar {
			g.segments = append(g.segments, current)
			current = segment{}
			continue
		}
		current.add(t)
	}
	g.segments = append(g.segments, current)
	if steps := g.segments[0].steps; len(steps) > 0 {
		g.prefix = steps[0].literal
	}
	for i := 1; i < len(g.segments)-1; i++ { // those that may be anywhere
		if s := &g.segments[i]; len(s.steps) > 1 || len(s.steps) == 1 && s.steps[0].literal == nil {
			s.finder = newFinder(s)
		}
	}
	return g, nil
}

// CompileBytes is Compile for matching byte by byte; the pattern need not be UTF-8.
func CompileBytes(pattern []byte) (Glob, error) {
	g, err := Compile(widen(nil, pattern))
	if err != nil {
		return Glob{}, err
	}
	g.bytewise = true
	g.prefix = narrow(g.prefix)
	return g, nil
}

// ValidBytes reports whether CompileBytes would accept the pattern.
func ValidBytes(pattern []byte) bool { return Valid(widen(nil, pattern)) }

// widen appends, for each byte of b, the code point of the same number. If all of them
// are ASCII, it is b itself that is returned.
func widen(dst, b []byte) []byte {
	if isASCII(b) {
		return b
	}
	for _, c := range b {
		dst = utf8.AppendRune(dst, rune(c))
	}
	return dst
}

// narrow undoes widen.
func narrow(b []byte) (narrowed []byte) {
	for _, r := range string(b) {
		narrowed = append(narrowed, byte(r))
	}
	return narrowed
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// Valid reports whether Compile would accept the pattern, without allocating.
func Valid(pattern []byte) bool {
	if len(pattern) == 0 || !utf8.Valid(pattern) {
		return false
	}
	for len(pattern) > 0 {
		_, n, ok := next(pattern)
		if !ok {
			return false
		}
		pattern = pattern[n:]
	}
	return true
}

func (s *segment) add(t token) {
	s.runes++
	if t.kind != tokenLiteral {
		s.steps = append(s.steps, step{class: t.class, negated: t.negated, any: t.kind == tokenAny})
		return
	}
	if last := len(s.steps) - 1; last >= 0 && s.steps[last].literal != nil {
		s.steps[last].literal = append(s.steps[last].literal, t.literal...)
		return
	}
	s.steps = append(s.steps, step{literal: slices.Clone(t.literal)})
}

type tokenKind uint8

const (
	tokenLiteral tokenKind = iota
	tokenAny
	tokenStar
	tokenClass
)

// token is one element of a pattern; its bytes are views of it.
type token struct {
	kind    tokenKind
	literal []byte // one code point
	class   []byte
	negated bool
}

// next reads the first element of a pattern that is UTF-8 and not empty, and its
// length in bytes. ok is false for a class that is malformed.
func next(pattern []byte) (t token, n int, ok bool) {
	switch pattern[0] {
	case '*':
		return token{kind: tokenStar}, 1, true
	case '?':
		return token{kind: tokenAny}, 1, true
	case '[':
		return nextClass(pattern)
	}
	_, n = utf8.DecodeRune(pattern)
	return token{kind: tokenLiteral, literal: pattern[:n]}, n, true
}

// nextClass reads a bracketed class. One literal in brackets is a literal, which
// makes the prefix of a range scan longer.
func nextClass(pattern []byte) (t token, n int, ok bool) {
	end := bytes.IndexByte(pattern, ']')
	if end < 0 {
		return token{}, 0, false
	}
	class, negated := bytes.CutPrefix(pattern[1:end], []byte("!"))
	if len(class) == 0 {
		return token{}, 0, false
	}
	for rest := class; len(rest) > 0; {
		low, high, n := nextRange(rest)
		if low > high {
			return token{}, 0, false
		}
		rest = rest[n:]
	}
	if _, width := utf8.DecodeRune(class); width == len(class) && !negated {
		return token{kind: tokenLiteral, literal: class}, end + 1, true
	}
	return token{kind: tokenClass, class: class, negated: negated}, end + 1, true
}

// nextRange reads the first range, or the first code point as a range of one, of
// what stands in brackets, and its length in bytes.
func nextRange(class []byte) (low, high rune, n int) {
	low, n = utf8.DecodeRune(class)
	if n+1 < len(class) && class[n] == '-' {
		high, width := utf8.DecodeRune(class[n+1:])
		return low, high, n + 1 + width
	}
	return low, low, n
}

// Prefix returns the bytes that every matching key begins with, for a range scan.
// It must not be written to.
func (g Glob) Prefix() []byte { return g.prefix }

// Match reports whether the whole key matches. It doesn't allocate for a pattern of
// up to 1,024 bytes, unless it matches byte by byte a key that isn't ASCII. Its time grows with the length of the key, and for each byte of
// it by an instruction or two per 64 code points of a segment.
func (g Glob) Match(key []byte) bool {
	if !bytes.HasPrefix(key, g.prefix) {
		return false
	}
	if g.bytewise {
		key = widen(nil, key)
	} else if !utf8.Valid(key) {
		return false
	}
	if len(g.segments) == 0 {
		return len(key) == 0
	}
	first, rest := &g.segments[0], g.segments[1:]
	n, ok := first.match(key)
	if !ok {
		return false
	}
	key = key[n:]
	if len(rest) == 0 {
		return len(key) == 0
	}
	for i := range rest[:len(rest)-1] {
		end, ok := rest[i].find(key)
		if !ok {
			return false
		}
		key = key[end:]
	}
	return rest[len(rest)-1].matchEnd(key)
}

// match reports whether the segment is at the beginning of key, and how many
// bytes of it that is.
func (s *segment) match(key []byte) (n int, ok bool) {
	for i := range s.steps {
		st := &s.steps[i]
		if st.literal != nil {
			if !bytes.HasPrefix(key[n:], st.literal) {
				return 0, false
			}
			n += len(st.literal)
			continue
		}
		if n == len(key) {
			return 0, false
		}
		r, width := utf8.DecodeRune(key[n:])
		if !st.any && st.in(r) == st.negated {
			return 0, false
		}
		n += width
	}
	return n, true
}

// in reports whether r is listed in the class.
func (st *step) in(r rune) bool {
	for rest := st.class; len(rest) > 0; {
		low, high, n := nextRange(rest)
		if low <= r && r <= high {
			return true
		}
		rest = rest[n:]
	}
	return false
}

// find returns the end of the first place in key where the segment is. The first
// is enough: what follows a star may begin anywhere after it.
func (s *segment) find(key []byte) (end int, ok bool) {
	switch {
	case len(s.steps) == 0:
		return 0, true
	case s.words == 0: // no more than a literal
		literal := s.steps[0].literal
		i := bytes.Index(key, literal)
		return i + len(literal), i >= 0
	}
	return s.search(key, s.steps[0].literal)
}

// matchEnd reports whether the segment is at the end of key. It has a fixed
// number of code points, so there is one place to look.
func (s *segment) matchEnd(key []byte) bool {
	start := len(key)
	for range s.runes {
		if start == 0 {
			return false
		}
		_, width := utf8.DecodeLastRune(key[:start])
		start -= width
	}
	_, ok := s.match(key[start:])
	return ok
}
