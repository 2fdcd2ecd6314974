// Package reserved says which topics are not routed like others: those of a Handler, and
// those to which only the server publishes.
package reserved

import (
	"bytes"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Topics are reserved topics. They are not changed.
type Topics struct {
	Handlers []string // publishes to them go to a Handler: two, so that comparing is faster than a map
	Servers  []string // prefixes: clients can't publish to topics that begin with them, may subscribe to anything below and get nothing
}

// Handled says whether publishes to the topic go to a Handler.
func (r *Topics) Handled(name []byte) bool {
	for _, handled := range r.Handlers {
		if string(name) == handled {
			return true
		}
	}
	return false
}

// Protected says whether clients must not publish to the topic. $SYS is the broker's own, but
// for the state of bridges, which they publish.
func (r *Topics) Protected(name []byte) bool {
	if topic.OwnSys(name) {
		return true
	}
	for _, prefix := range r.Servers {
		if len(name) >= len(prefix) && string(name[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

// Below says whether a filter matches only what is below a protected prefix.
func (r *Topics) Below(filter string) bool {
	for _, prefix := range r.Servers {
		if strings.HasPrefix(filter, prefix+"/") {
			return true
		}
	}
	return false
}

// TooManyLevels says whether a topic name has more levels than limit; most are too short
// to, and needn't be looked at.
func TooManyLevels(name []byte, limit int) bool {
	return len(name) >= limit && bytes.Count(name, []byte{'/'}) >= limit
}
