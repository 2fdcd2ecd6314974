package statestore_test

import (
	"bytes"
	"encoding/base64"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Protocol, section 7: the token is opaque, printable, valid only with its
// pattern, and survives a restart; any other is malformed.
func TestSection7TokenComesBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.SliceOf(rapid.Byte()).Draw(t, "pattern")
		after := rapid.SliceOf(rapid.Byte()).Draw(t, "after")
		token := statestore.EncodeToken(nil, pattern, after)
		for _, c := range token {
			if c <= ' ' || c > '~' {
				t.Fatalf("the token %q isn't printable", token)
			}
		}
		got, ok := statestore.DecodeToken(pattern, token)
		if !ok || !bytes.Equal(got, after) {
			t.Fatalf("%q reads %q, %v; want %q", token, got, ok, after)
		}
		other := rapid.SliceOf(rapid.Byte()).Draw(t, "other pattern")
		if _, ok := statestore.DecodeToken(other, token); ok && !bytes.Equal(other, pattern) {
			t.Fatalf("the token of %q is valid with %q", pattern, other)
		}
	})
}

// The token of a release must be good for the next one.
func TestSection7TokenSurvivesARestart(t *testing.T) {
	t.Parallel()
	const token = "ATAh2hKF0iuPa2V5LTc"
	if got := statestore.EncodeToken([]byte("> "), []byte("key-*"), []byte("key-7")); string(got) != "> "+token {
		t.Errorf("the token is %q, but was %q", got, token)
	}
}

func TestSection7AnyOtherTokenIsMalformed(t *testing.T) {
	t.Parallel()
	pattern := []byte("key-*")
	token := statestore.EncodeToken(nil, pattern, []byte("key-7"))
	raw, err := base64.RawURLEncoding.DecodeString(string(token))
	if err != nil {
		t.Fatal(err)
	}
	format := bytes.Clone(raw)
	format[0]++
	bad := [][]byte{
		nil,
		[]byte("x"),
		[]byte("key-7"),
		token[:len(token)-1],
		append(bytes.Clone(token), 'A'),
		append(bytes.Clone(token), '\n'),
		append([]byte("\r\n"), token...),
		append(bytes.Clone(token), '='),
		[]byte(base64.RawURLEncoding.EncodeToString(raw[:8])),
		[]byte(base64.RawURLEncoding.EncodeToString(format)),
	}
	for i := range raw {
		flipped := bytes.Clone(raw)
		flipped[i] ^= 1
		bad = append(bad, []byte(base64.RawURLEncoding.EncodeToString(flipped)))
	}
	for _, token := range bad {
		if got, ok := statestore.DecodeToken(pattern, token); ok {
			t.Errorf("the token %q is accepted as %q", token, got)
		}
	}
}

// A byte that changes sides between pattern and key must be noticed.
func TestSection7TokenKnowsWhereThePatternEnds(t *testing.T) {
	t.Parallel()
	of := func(pattern, after string) []byte {
		token := statestore.EncodeToken(nil, []byte(pattern), []byte(after))
		raw, _ := base64.RawURLEncoding.DecodeString(string(token))
		return raw[:9]
	}
	if bytes.Equal(of("ab", "c"), of("a", "bc")) {
		t.Error("two scans share a checksum")
	}
}

func FuzzDecodeToken(f *testing.F) {
	f.Add([]byte("key-*"), statestore.EncodeToken(nil, []byte("key-*"), []byte("key-7")))
	f.Add([]byte("*"), statestore.EncodeToken(nil, []byte("*"), nil))
	f.Add([]byte("*"), []byte("ATAh\n2hKF"))
	f.Fuzz(func(t *testing.T, pattern, token []byte) {
		after, ok := statestore.DecodeToken(pattern, token)
		if ok && !bytes.Equal(statestore.EncodeToken(nil, pattern, after), token) {
			t.Fatalf("%q isn't the token that we make for %q after %q", token, pattern, after)
		}
	})
}
