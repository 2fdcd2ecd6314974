package routing

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Route delivers o to the sessions whose subscriptions match, and says how many
// there were.
func (rt *Router) Route(t *session.Turn, o *message.Outgoing) (matched int) {
	matches := rt.Match(t, o.Topic)
	t.Worked += len(matches) / session.MatchesPerUnit
	if len(matches) == 0 {
		return 0
	}
	if sameFilter(matches) { // no session can be in it twice
		t.Chain = t.Chain[:0]
		for i := range matches {
			rt.DeliverTo(t, matches, i, o)
		}
		return len(matches)
	}
	// A client whose subscriptions overlap gets one copy, at the highest QoS and
	// with the identifiers of all of them [MQTT-3.3.4-2, 3.3.4-3].
	chain := ChainMatches(t, matches)
	for i := range matches {
		if !chain[i].Follows {
			rt.DeliverTo(t, matches, i, o)
		}
	}
	return len(matches)
}

// ChainMatches links the matches of each session.
func ChainMatches(t *session.Turn, matches []*session.Subscription) []session.Link {
	if t.Seen == nil {
		t.Seen = make(map[*session.Session]int)
	}
	clear(t.Seen)
	t.Chain = slices.Grow(t.Chain[:0], len(matches))[:len(matches)]
	clear(t.Chain)
	var s *session.Session // of the match before, which is noted in t.Seen when another follows
	last := 0
	for i, sub := range matches {
		if sub.Session == nil {
			continue
		}
		if sub.Session != s {
			if s != nil {
				t.Seen[s] = last
			}
			s = sub.Session
			before, again := t.Seen[s]
			if !again {
				last = i
				continue
			}
			last = before
		}
		t.Chain[last].Next, t.Chain[i].Follows = i, true
		last = i
	}
	return t.Chain
}

func sameFilter(matches []*session.Subscription) bool {
	for _, sub := range matches[1:] {
		if sub.Filter != matches[0].Filter {
			return false
		}
	}
	return true
}

// NeedsDisk says whether o, a client's publish, would be journaled: for the sake
// of QoS 2, as a retained message, or in the queue of a session on disk.
func (rt *Router) NeedsDisk(t *session.Turn, o *message.Outgoing, with *message.PublishRows) bool {
	if with.Received != 0 || o.Retain && len(o.Payload) > 0 {
		return true
	}
	if o.QoS == 0 {
		return false
	}
	for _, sub := range rt.Match(t, o.Topic) {
		if sub.Session == nil && groupOf(sub).AnyDurable() || sub.Session != nil && sub.Session.Saves(sub) {
			return true
		}
	}
	return false
}

// DeliverTo delivers to the session, or group, of match i, on behalf of all
// subscriptions that t.Chain leads to from there.
func (rt *Router) DeliverTo(t *session.Turn, matches []*session.Subscription, i int, o *message.Outgoing) {
	first := matches[i]
	if first.Session == nil {
		groupOf(first).Deliver(t, o)
		return
	}
	s := first.Session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if qos, retain, any := gather(t, matches, i, o); any {
		s.Deliver(t, first, o, min(o.QoS, qos), o.Retain && retain)
	}
}

// gather combines the subscriptions of one session that match: match i, and those to which
// t.Chain leads from there. It puts their identifiers into t.SubIDs. any is false if none of
// them is to get the message. The session's lock is held.
func gather(t *session.Turn, matches []*session.Subscription, i int, o *message.Outgoing) (qos byte, retain, any bool) {
	t.SubIDs = t.SubIDs[:0]
	if s := matches[i].Session; s.Ended {
		return 0, false, false
	}
	for more := true; more; {
		if sub := matches[i]; !sub.Gone && !(sub.NoLocal && o.Publisher == sub.Session.ID) {
			any = true
			if r := sub.Replay; r != nil && o.Stamp != 0 && o.Stamp <= r.Owed.Since {
				r.Owed.Routed = append(r.Owed.Routed, o.Stamp)
			}
			qos = max(qos, sub.QoS)
			retain = retain || sub.RetainAsPublished
			if sub.ID != 0 {
				t.SubIDs = append(t.SubIDs, sub.ID)
			}
		}
		if more = i < len(t.Chain) && t.Chain[i].Next != 0; more {
			i = t.Chain[i].Next
		}
	}
	return qos, retain, any
}

// DeliverOne delivers to the only subscription that matches.
func (rt *Router) DeliverOne(t *session.Turn, sub *session.Subscription, o *message.Outgoing) {
	t.Chain, t.Matches = t.Chain[:0], append(t.Matches[:0], sub)
	rt.DeliverTo(t, t.Matches, 0, o)
}

// Publish routes a message, stores it if it is to be retained, and journals both in one
// batch with the rows of with. It returns how many subscriptions matched, the batch that
// an acknowledgement must wait for, and the code QuotaExceeded if the message was not
// routed or not retained for lack of room.
//
// A message that can't be retained is routed all the same, and with.Unretained is set:
// clients that fill the store of retained messages must not keep a device from reaching
// its subscribers. The message that was retained before it stays.
func (rt *Router) Publish(t *session.Turn, o *message.Outgoing, with *message.PublishRows) (matched int, batch journal.Seq, code mqtt.ReasonCode) {
	if o.QoS > 0 && rt.refuses(t, o) {
		return 0, 0, mqtt.QuotaExceeded
	}
	if o.Retain {
		topic := rt.Retained.LockOf(o.Topic)
		topic.Lock()
		stored := rt.Retained.Put(o)
		if !stored {
			topic.Unlock()
			made := rt.Retained.MakeRoom()
			topic.Lock()
			stored = made && rt.Retained.Put(o)
		}
		defer topic.Unlock()
		switch {
		case !stored:
			with.Unretained, code = true, mqtt.QuotaExceeded
			if !with.Mute {
				with.Received = 0 // a failure in PUBREC ends the handshake [MQTT-4.3.3-9]
			}
		case retained.Counts(o.Topic):
			with.Retained = o.Kept()
		}
	}
	matched = rt.Route(t, o)
	t.Promises.Return()
	return matched, rt.Commit(t, with), code
}
