package policy

import (
	"bytes"
	"encoding/base64"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
)

// keyPattern is a key of a rule: text or bytes that a key must be, or a pattern. Client
// IDs of a Connect resource are such patterns as well.
type keyPattern struct {
	item
	parts []part  // with tokens, for bindKey
	match matcher // if there are no tokens
	kind  keyKind
}

type keyKind byte

const (
	exactKey   keyKind = iota // keyType String and Binary
	globKey                   // keyType Pattern
	starredKey                // a client ID: * is its only wildcard
)

// matcher matches a key.
type matcher struct {
	exact []byte // if pieces and glob are nil
	// pieces are what stands between the stars of a pattern that has no other wildcards.
	// It matches byte by byte, so that * is every key, UTF-8 or not.
	pieces [][]byte
	glob   *glob.Glob
}

// parseKey reads a key of a rule; wrong says what is wrong with it.
func parseKey(it item, kind keyKind) (p *keyPattern, wrong string) {
	p = &keyPattern{item: it, kind: kind}
	parts, wrong := splitTokens(it.text)
	if wrong != "" {
		return nil, wrong
	}
	sample := make([]part, len(parts)) // whether it is a pattern doesn't depend on the tokens' values
	for i, one := range parts {
		sample[i] = one
		if one.token.kind == 0 {
			continue
		}
		switch {
		case i > 0 && parts[i-1].token.kind != 0:
			return nil, "two tokens need text between them, or it is open where the first one's value ends"
		case i > 0 && kind == globKey && strings.LastIndexByte(parts[i-1].text, '[') > strings.LastIndexByte(parts[i-1].text, ']'):
			return nil, "a token must not stand in brackets"
		}
		p.parts = parts
		sample[i] = part{text: "x", value: true}
	}
	m, wrong := compileKey(sample, kind)
	if p.parts == nil {
		p.match = m
	}
	return p, wrong
}

// parseBinary reads a key of the type Binary.
func parseBinary(it item) (p *keyPattern, wrong string) {
	key, err := base64.StdEncoding.DecodeString(it.text)
	if err != nil || len(key) == 0 {
		return nil, "a Binary key is the key in base 64"
	}
	return &keyPattern{item: it, match: matcher{exact: key}}, ""
}

// compileKey makes a matcher of texts, of which those that are values match as they are.
func compileKey(parts []part, kind keyKind) (m matcher, wrong string) {
	pieces, classes := [][]byte{nil}, false
	for _, one := range parts {
		last := len(pieces) - 1
		if one.value || kind == exactKey {
			pieces[last] = append(pieces[last], one.text...)
			continue
		}
		classes = classes || kind == globKey && strings.ContainsAny(one.text, "?[")
		for i, text := range strings.Split(one.text, "*") {
			if i > 0 {
				pieces = append(pieces, nil)
			}
			pieces[len(pieces)-1] = append(pieces[len(pieces)-1], text...)
		}
	}
	switch {
	case classes:
		var pattern strings.Builder
		for _, one := range parts {
			if one.value {
				one.text = quoteGlob.Replace(one.text)
			}
			pattern.WriteString(one.text)
		}
		g, err := glob.Compile([]byte(pattern.String()))
		if err != nil {
			return matcher{}, err.Error()
		}
		return matcher{glob: &g}, ""
	case len(pieces) == 1:
		return matcher{exact: pieces[0]}, ""
	}
	return matcher{pieces: pieces}, ""
}

// quoteGlob makes a pattern of a text that matches just the text.
var quoteGlob = strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")

// bindKey puts the client's values in the place of tokens, as text. It returns nil if
// the client has no such value, or one by which it could reach into what is another
// client's: one with a /, or with the character that ends it in the pattern. So of
// clients:{principal.clientId}:* the client ID a:b gets nothing, or it would get what is
// the client a's.
func (p *keyPattern) bindKey(id *access.Identity) *keyPattern {
	if p.parts == nil {
		return p
	}
	parts := make([]part, len(p.parts))
	for i, one := range p.parts {
		parts[i] = one
		if one.token.kind == 0 {
			continue
		}
		value := one.token.of(id)
		if value == "" || strings.IndexByte(value, '/') >= 0 {
			return nil
		}
		if i+1 < len(p.parts) {
			if end := p.parts[i+1].text[0]; !p.isWildcard(end) && strings.IndexByte(value, end) >= 0 {
				return nil
			}
		}
		parts[i] = part{text: value, value: true}
	}
	m, wrong := compileKey(parts, p.kind)
	if wrong != "" { // a value that is not UTF-8 beside a class
		return nil
	}
	return &keyPattern{item: p.item, kind: p.kind, match: m}
}

// isWildcard says whether a character of the pattern begins a wildcard.
func (p *keyPattern) isWildcard(c byte) bool {
	return c == '*' && p.kind != exactKey || (c == '?' || c == '[') && p.kind == globKey
}

// openEnded says whether a wildcard follows a token: then the client "a" is allowed what
// is meant for the client "ab".
func (p *keyPattern) openEnded() bool {
	for i := 0; i+1 < len(p.parts); i++ {
		if p.parts[i].token.kind != 0 && p.isWildcard(p.parts[i+1].text[0]) {
			return true
		}
	}
	return false
}

func (m *matcher) matches(key []byte) bool {
	switch {
	case m.glob != nil:
		return m.glob.Match(key)
	case m.pieces != nil:
		return matchPieces(m.pieces, key)
	}
	return bytes.Equal(m.exact, key)
}

// matchPieces says whether the pieces are in the key in their order, the first at its
// beginning and the last at its end. For the pieces between the first place is enough.
func matchPieces(pieces [][]byte, key []byte) bool {
	first, last := pieces[0], pieces[len(pieces)-1]
	if len(key) < len(first)+len(last) || !bytes.HasPrefix(key, first) || !bytes.HasSuffix(key, last) {
		return false
	}
	key = key[len(first) : len(key)-len(last)]
	for _, piece := range pieces[1 : len(pieces)-1] {
		at := bytes.Index(key, piece)
		if at < 0 {
			return false
		}
		key = key[at+len(piece):]
	}
	return true
}
