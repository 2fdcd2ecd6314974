package event

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// NameRule says what ValidName demands.
const NameRule = "it begins the keys of the store, so it must be UTF-8, not empty, without '/' and NUL"

// ValidName tells whether a handler can have a name.
func ValidName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "/\x00") && utf8.ValidString(name)
}

// TopicRule says what ValidTopic demands.
const TopicRule = "it must be the name of a topic: UTF-8, not empty, without '+', '#' and NUL"

// ValidTopic tells whether a message can be published to a topic.
func ValidTopic(name string) bool { return utf8.ValidString(name) && topic.ValidName([]byte(name)) }

// reserved names begin keys that are no states: dead letters, what httpin remembers, marks of timers.
var reserved = []string{"dead-letters", "httpin", "holdfast-timers"}

// Filters are the subscriptions of a member of a group, "" for none, each once.
func Filters(group string, of []string) (filters []string) {
	for _, f := range of {
		if group != "" {
			f = "$share/" + group + "/" + f
		}
		if !slices.Contains(filters, f) {
			filters = append(filters, f)
		}
	}
	return filters
}

// CheckHandler looks at what one handler can get wrong by itself: its name, its topic filter and
// its dead-letter topic.
func CheckHandler(name, filter, deadLetter string) error {
	switch {
	case !ValidName(name):
		return fmt.Errorf("WithName(%q): %s", name, NameRule)
	case slices.Contains(reserved, name):
		return fmt.Errorf("WithName(%q): the keys of the store that begin so are those of this module: %s", name, strings.Join(reserved, ", "))
	case !utf8.ValidString(filter) || !topic.ValidFilter(filter):
		return errors.New("that is not a topic filter: it must be UTF-8 and not empty, and a level may be '+' or, the last one, '#'")
	case strings.HasPrefix(filter, "$share/"):
		return errors.New("give the filter without $share, and the group with WithShare")
	case !ValidTopic(deadLetter):
		return fmt.Errorf("WithDeadLetterTopic(%q): %s", deadLetter, TopicRule)
	}
	return nil
}

// CheckDeadLetters tells whether a handler would get dead letters of its own, or those of another
// one, as messages; or the other one those of the first.
func CheckDeadLetters(filter, deadLetter, otherFilter, otherDeadLetter string) error {
	if topic.Matches(otherFilter, []byte(deadLetter)) {
		return fmt.Errorf("its dead-letter topic %q is matched by the filter %q: dead letters would be processed", deadLetter, otherFilter)
	}
	if topic.Matches(filter, []byte(otherDeadLetter)) {
		return fmt.Errorf("the filter matches the dead-letter topic %q: dead letters would be processed", otherDeadLetter)
	}
	return nil
}
