package transfer

import (
	"bytes"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/hlc"
)

// readKeyLine reads a line in the form in which export writes a key: one object of strings, each
// field at most once. ok is false for everything else, valid or not, of which encoding/json then
// makes an entry or an error. encoding/json takes three times as long for a line of a key, which
// is most of what an import computes. The strings without escapes are views of the line.
func readKeyLine(line []byte) (r keyLine, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte{'{'})
	for ok {
		var name, text []byte
		if name, rest, ok = cutString(rest); !ok {
			return r, false
		}
		if rest, ok = bytes.CutPrefix(rest, []byte{':'}); !ok {
			return r, false
		}
		if text, rest, ok = cutString(rest); !ok {
			return r, false
		}
		field := r.field(name)
		if field == nil || *field != nil {
			return r, false
		}
		*field = text
		if bytes.Equal(rest, []byte{'}'}) {
			return r, len(r.key) > 0 && r.value != nil
		}
		rest, ok = bytes.CutPrefix(rest, []byte{','})
	}
	return r, false
}

// keyLine has the fields of the line of a key; nil: it lacks the field.
type keyLine struct {
	key, value, version, token, expires []byte
}

// wordsBytes is more than a version, a token and a time take.
const wordsBytes = 1024

func (r *keyLine) field(name []byte) *[]byte {
	switch string(name) {
	case "key":
		return &r.key
	case "value":
		return &r.value
	case "version":
		return &r.version
	case "fencing_token":
		return &r.token
	case "expires":
		return &r.expires
	}
	return nil
}

// entry is that of the line. ok is false if a field is not what it has to be.
func (r *keyLine) entry() (e entry, ok bool) {
	e.key, e.value = string(r.key), r.value
	if len(r.version)+len(r.token)+len(r.expires) > len(r.value)+wordsBytes {
		e.value = bytes.Clone(r.value) // or the window of an import would count much less than it holds
	}
	if r.expires != nil && e.expires.UnmarshalText(r.expires) != nil {
		return entry{}, false
	}
	if len(r.token) > 0 {
		var err error
		if e.token, err = hlc.Parse(string(r.token)); err != nil {
			return entry{}, false
		}
	}
	return e, true
}

// cutString cuts a JSON string off the beginning of text, and decodes it. Its text is never nil.
// ok is false if there is none, or one that encoding/json treats in a way of its own: one that is
// not UTF-8, or has half of a surrogate pair.
func cutString(text []byte) (s, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		return nil, nil, false
	}
	text = text[1:]
	plain := endOfPlain(text)
	if plain < len(text) && text[plain] == '"' {
		return text[:plain], text[plain+1:], utf8.Valid(text[:plain])
	}
	s = append(make([]byte, 0, len(text)), text[:plain]...)
	for text = text[plain:]; len(text) > 0; {
		switch {
		case text[0] == '"':
			return s, text[1:], utf8.Valid(s)
		case text[0] != '\\' || len(text) < 2:
			return nil, nil, false // a control character, or the end
		case text[1] == 'u':
			r, ok := hexRune(text[2:])
			if !ok || !utf8.ValidRune(r) {
				return nil, nil, false
			}
			s, text = utf8.AppendRune(s, r), text[6:]
		default:
			c, ok := unescaped(text[1])
			if !ok {
				return nil, nil, false
			}
			s, text = append(s, c), text[2:]
		}
		plain := endOfPlain(text)
		s, text = append(s, text[:plain]...), text[plain:]
	}
	return nil, nil, false
}

// endOfPlain is where the first byte is that does not stand for itself.
func endOfPlain(text []byte) int {
	for i, c := range text {
		if c == '"' || c == '\\' || c < 0x20 {
			return i
		}
	}
	return len(text)
}

// unescaped is what a character behind a backslash stands for.
func unescaped(c byte) (byte, bool) {
	switch c {
	case '"', '\\', '/':
		return c, true
	case 'b':
		return '\b', true
	case 'f':
		return '\f', true
	case 'n':
		return '\n', true
	case 'r':
		return '\r', true
	case 't':
		return '\t', true
	}
	return 0, false
}

// hexRune reads four hexadecimal digits.
func hexRune(text []byte) (r rune, ok bool) {
	if len(text) < 4 {
		return 0, false
	}
	for _, c := range text[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
