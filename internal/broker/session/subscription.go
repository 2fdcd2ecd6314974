package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Subscription is one filter of one session, or stands for a shared group.
// Its options are guarded by the session's lock.
type Subscription struct {
	Session *Session
	Filter  string      // as subscribed, $share/… included
	Group   Group       // nil: not shared
	Share   queue.Share // of a member of group

	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	ID                uint32  // Subscription Identifier; 0: none
	Gone              bool    // unsubscribed
	Replay            *Replay // the latest one that isn't over
}

// Memory is about what the subscription takes: itself, its places in the session and
// in the index, which may have a node for each level.
func (sub *Subscription) Memory() int64 { return int64(3*len(sub.Filter)) + 300 }

// SplitShare gives the group's name, empty for a filter that isn't shared, and
// the filter that publishes are matched with.
func SplitShare(filter string) (group, rest string) {
	group, rest, shared, _ := topic.SplitShare(filter)
	if !shared {
		return "", filter
	}
	return group, rest
}
