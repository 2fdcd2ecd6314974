// Package valid finds arguments that every server would refuse, so that a client says what
// is wrong with them instead of sending them: a PUBLISH to an invalid topic ends the
// connection, and an empty message ID is a syntax error without a name.
package valid

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Publish judges what an application gives for a PUBLISH. response may be empty.
func Publish(name, response string, expiry time.Duration) error {
	switch {
	case !isTopicName(name):
		return fmt.Errorf("topic %q: it must be UTF-8 and not empty, without '+', '#' and NUL, at most %d bytes", name, math.MaxUint16)
	case response != "" && !isTopicName(response):
		return fmt.Errorf("response topic %q: it must be UTF-8 without '+', '#' and NUL, at most %d bytes", response, math.MaxUint16)
	case expiry < 0:
		return fmt.Errorf("expiry %v: it must not be negative; 0 is none", expiry)
	}
	return nil
}

// isTopicName says whether a message can be published to name [MQTT-4.7.3-1].
func isTopicName(name string) bool {
	return name != "" && len(name) <= math.MaxUint16 && utf8.ValidString(name) && !strings.ContainsAny(name, "+#\x00")
}

// Filters judges the topic filters of a subscription.
func Filters(filters []string) error {
	if len(filters) == 0 {
		return errors.New("no topic filter is given: give at least one")
	}
	for _, filter := range filters {
		if !utf8.ValidString(filter) || !topic.ValidFilter(filter) {
			return fmt.Errorf("topic filter %q: it must be UTF-8 and not empty, a level may be '+' or, the last one, '#', and a shared subscription is $share/GROUP/FILTER", filter)
		}
	}
	return nil
}

// Command judges the words of a command: its message ID must not be empty.
func Command(words [][]byte) error {
	at := 0
	switch string(words[0]) {
	case "LOAD", "DONE":
		at = 2
	case "STORE":
		at = 3
	}
	if at > 0 && len(words) > at && len(words[at]) == 0 {
		return errors.New("the message ID is empty: give each message an ID of its own")
	}
	return nil
}
