package policy

import (
	"bytes"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// topicPattern is a topic filter of a rule, taken apart. Wildcards are levels of their own
// kind, so that a level of text never is one, whatever it says.
type topicPattern struct {
	item
	levels []level
	tokens bool // one of the levels is a token, for which bind puts a text
	exact  bool // all levels are text
}

type level struct {
	kind  levelKind
	text  string
	token token
}

type levelKind byte

const (
	textLevel  levelKind = iota
	plusLevel            // +
	hashLevel            // #, the last
	tokenLevel           // {principal.…}
)

// parseTopic reads a topic filter of a rule; wrong says what is wrong with it.
func parseTopic(it item) (p *topicPattern, wrong string) {
	p = &topicPattern{item: it, exact: true}
	if strings.HasPrefix(it.text, "$share/") {
		return nil, "a shared subscription needs permission for its filter; leave out $share and the group"
	}
	for text := range strings.SplitSeq(it.text, "/") {
		l := level{text: text}
		t, isToken, wrong := parseToken(text)
		switch {
		case wrong != "":
			return nil, wrong
		case isToken:
			l.kind, l.token = tokenLevel, t
			p.tokens = true
		case strings.Contains(text, "{principal."):
			return nil, "a token must be a level by itself, as in clients/{principal.clientId}/#"
		case text == "+":
			l.kind = plusLevel
			p.exact = false
		case text == "#":
			l.kind = hashLevel
			p.exact = false
		}
		p.levels = append(p.levels, l)
	}
	if !topic.ValidFilter(it.text) {
		return nil, "this is not a topic filter: + must be a whole level, and # the whole last level"
	}
	return p, ""
}

// bind puts the client's values in the place of tokens. It returns nil if the client has
// no such value, or one that would be more than one ordinary level: then this pattern
// allows it nothing.
func (p *topicPattern) bind(id *access.Identity) *topicPattern {
	if !p.tokens {
		return p
	}
	bound := &topicPattern{item: p.item, levels: append([]level(nil), p.levels...), exact: p.exact}
	for i := range bound.levels {
		l := &bound.levels[i]
		if l.kind != tokenLevel {
			continue
		}
		value := l.token.of(id)
		// A $ at the beginning of a topic stands for a tree of the broker's own, $SYS, or
		// for a shared subscription.
		if value == "" || strings.ContainsAny(value, "/+#\x00") || i == 0 && value[0] == '$' {
			return nil
		}
		l.kind, l.text = textLevel, value
	}
	return bound
}

// covers says whether the pattern, which is bound, matches every topic name that the
// filter matches. For a topic name, which is a filter that matches itself, that is whether
// the pattern matches it.
//
// Level by level: # covers all that follows, and the level above it; + covers any one
// level and + itself, but no #; text covers the same text only. A pattern that begins with
// a wildcard doesn't match what begins with $ [MQTT-4.7.2-1].
func (p *topicPattern) covers(filter []byte) bool {
	if len(filter) > 0 && filter[0] == '$' && p.levels[0].kind != textLevel {
		return false
	}
	rest, more := filter, true
	for i := range p.levels {
		l := &p.levels[i]
		if l.kind == hashLevel {
			return true
		}
		if !more {
			return false
		}
		var one []byte
		one, rest, more = cutLevel(rest)
		switch {
		case len(one) == 1 && one[0] == '#':
			// "x/#" matches "x" as well, but the first level of "#" is always there.
			return i == 0 && l.kind == plusLevel && len(p.levels) == 2 && p.levels[1].kind == hashLevel
		case l.kind == plusLevel:
		case string(one) != l.text, len(one) == 1 && one[0] == '+':
			return false
		}
		if !more && i+2 == len(p.levels) && p.levels[i+1].kind == hashLevel {
			return true // "sport/#" matches "sport"
		}
	}
	return !more
}

var slash = []byte{'/'}

func cutLevel(s []byte) (one, rest []byte, more bool) { return bytes.Cut(s, slash) }

// name is the text of a bound pattern without wildcards.
func (p *topicPattern) name() string {
	texts := make([]string, len(p.levels))
	for i := range p.levels {
		texts[i] = p.levels[i].text
	}
	return strings.Join(texts, "/")
}
