package topic

import (
	"bytes"
	"strings"
)

// maxLength is the most bytes a topic name or filter may have [MQTT-4.7.3-3].
const maxLength = 65535

// sharePrefix begins a Shared Subscription's topic filter [MQTT-4.8.2-1].
const sharePrefix = "$share/"

// ValidName reports whether name may be published to: not empty [MQTT-4.7.3-1],
// no wildcard characters [MQTT-3.3.2-2], no null character [MQTT-4.7.3-2], at
// most 65,535 bytes. That it is well-formed UTF-8 is for the caller to check.
func ValidName(name []byte) bool {
	return len(name) > 0 && len(name) <= maxLength && !bytes.ContainsAny(name, "+#\x00")
}

// ValidFilter reports whether filter may be subscribed to: as ValidName, and
// `#` only as the whole last level [MQTT-4.7.1-1], `+` only as a whole level
// [MQTT-4.7.1-2]. A shared subscription's filter goes through [SplitShare] first.
func ValidFilter(filter string) bool {
	if len(filter) == 0 || len(filter) > maxLength {
		return false
	}
	for i := 0; i < len(filter); i++ {
		switch filter[i] {
		case 0:
			return false
		case '+':
			if !startsLevel(filter, i) || !endsLevel(filter, i) {
				return false
			}
		case '#':
			if !startsLevel(filter, i) || i != len(filter)-1 {
				return false
			}
		}
	}
	return true
}

func startsLevel(filter string, i int) bool { return i == 0 || filter[i-1] == '/' }

func endsLevel(filter string, i int) bool { return i == len(filter)-1 || filter[i+1] == '/' }

// Levels is the number of levels of a topic name or filter: one more than it has
// separators. Empty levels count.
func Levels(s string) int { return strings.Count(s, "/") + 1 }

// SplitShare splits the filter of a shared subscription, `$share/{group}/{filter}`.
// ok reports whether it is meant as one, that is begins with `$share/`; if not,
// rest is filter. valid reports whether it is a correct one: the group is at
// least one character without wildcards [MQTT-4.8.2-1], followed by a separator
// and a valid filter [MQTT-4.8.2-2].
func SplitShare(filter string) (group, rest string, ok, valid bool) {
	after, ok := strings.CutPrefix(filter, sharePrefix)
	if !ok {
		return "", filter, false, false
	}
	group, rest, found := strings.Cut(after, "/")
	valid = found && group != "" && !strings.ContainsAny(group, "+#\x00") && ValidFilter(rest)
	return group, rest, true, valid
}

// ValidSubscription reports whether filter may be subscribed to, shared or not.
func ValidSubscription(filter string) bool {
	_, rest, shared, valid := SplitShare(filter)
	return (valid || !shared) && ValidFilter(rest)
}

// GroupOf splits a filter that is valid: it gives the group's name, empty for a filter that
// is not shared, and the filter that topics are matched with.
func GroupOf(filter string) (group, rest string) {
	group, rest, _, _ = SplitShare(filter)
	return group, rest
}

// HasWildcard reports whether a valid filter matches more than one name.
func HasWildcard(filter string) bool { return strings.ContainsAny(filter, "+#") }

// Matches reports whether a valid filter matches a valid name (MQTT 5, section 4.7).
func Matches(filter string, name []byte) bool {
	if isSystem(name) && (filter[0] == '+' || filter[0] == '#') {
		return false
	}
	f, n := 0, 0 // where the current level begins
	for {
		if filter[f:] == "#" {
			return true
		}
		fEnd, nEnd := levelEndOf(filter, f), levelEnd(name, n)
		if filter[f:fEnd] != "+" && filter[f:fEnd] != string(name[n:nEnd]) {
			return false
		}
		if nEnd == len(name) {
			// The parent level too belongs to `#`: "sport/#" matches "sport".
			return fEnd == len(filter) || filter[fEnd:] == "/#"
		}
		if fEnd == len(filter) {
			return false
		}
		f, n = fEnd+1, nEnd+1
	}
}

// isSystem reports whether name is apart from filters that begin with a wildcard
// [MQTT-4.7.2-1].
func isSystem(name []byte) bool { return len(name) > 0 && name[0] == '$' }

// levelEnd is where the level that begins at from ends: at a separator or at the
// end.
func levelEnd(name []byte, from int) int {
	if i := bytes.IndexByte(name[from:], '/'); i >= 0 {
		return from + i
	}
	return len(name)
}

func levelEndOf(filter string, from int) int {
	if i := strings.IndexByte(filter[from:], '/'); i >= 0 {
		return from + i
	}
	return len(filter)
}
