package session

import "github.com/holdfast-mqtt/holdfast/internal/broker/queue"

// Subscription is one filter of one session, or stands for a shared group.
// Its options are guarded by the session's lock.
type Subscription struct {
	Session *Session
	Filter  string       // as subscribed, $share/… included
	Group   Group        // nil: not shared
	Share   *queue.Share // of a member of group
	Rejects bool         // the group counts the member as one that rejects (Group.NoteRejects), and guards this

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
