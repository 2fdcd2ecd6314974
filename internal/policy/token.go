package policy

import (
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// token stands in a pattern for a text of the client's identity.
type token struct {
	kind      tokenKind
	attribute string
}

type tokenKind byte

const (
	clientIDToken tokenKind = iota + 1
	usernameToken
	attributeToken
)

const (
	tokenOpening    = "{principal."
	attributePrefix = "attributes."
	knownTokens     = "{principal.clientId}, {principal.username} and {principal.attributes.NAME}"
)

// parseToken reads text that is a token as a whole.
func parseToken(text string) (t token, isToken bool, wrong string) {
	name, ok := strings.CutPrefix(text, tokenOpening)
	if !ok {
		return token{}, false, ""
	}
	name, ok = strings.CutSuffix(name, "}")
	if !ok {
		return token{}, false, ""
	}
	attribute, isAttribute := strings.CutPrefix(name, attributePrefix)
	switch {
	case name == "clientId":
		return token{kind: clientIDToken}, true, ""
	case name == "username":
		return token{kind: usernameToken}, true, ""
	case isAttribute && attribute != "" && !strings.ContainsAny(attribute, "{}"):
		return token{kind: attributeToken, attribute: attribute}, true, ""
	}
	return token{}, false, "unknown token " + text + "; known are " + knownTokens
}

// of is the client's text; empty: it has none.
func (t token) of(id *access.Identity) string {
	switch t.kind {
	case clientIDToken:
		return id.ClientID
	case usernameToken:
		return id.Username
	default:
		return id.Attributes[t.attribute]
	}
}

// part is a piece of a pattern in which tokens may stand anywhere: text, or a token.
type part struct {
	text  string
	value bool  // text is what a token stood for, and not a pattern
	token token // kind 0: text
}

// splitTokens cuts a pattern into text and tokens.
func splitTokens(pattern string) (parts []part, wrong string) {
	for rest := pattern; rest != ""; {
		at := strings.Index(rest, tokenOpening)
		if at < 0 {
			return append(parts, part{text: rest}), ""
		}
		if at > 0 {
			parts = append(parts, part{text: rest[:at]})
		}
		rest = rest[at:]
		end := strings.IndexByte(rest, '}')
		if end < 0 {
			return nil, "a token has no }; known are " + knownTokens
		}
		t, _, wrong := parseToken(rest[:end+1])
		if wrong != "" {
			return nil, wrong
		}
		parts = append(parts, part{token: t})
		rest = rest[end+1:]
	}
	return parts, ""
}
