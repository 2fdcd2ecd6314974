package event

import (
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
