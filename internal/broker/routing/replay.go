package routing

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// NewReplay begins a replay to a subscription, once it is in the index of filters;
// its session's lock is held.
//
// A publish that has been stored by then and not yet matched will be routed to
// it: DeliverTo notes that, so that it isn't sent twice.
func (rt *Router) NewReplay(sub *session.Subscription) *session.Replay {
	sub.Replay = &session.Replay{Sub: sub, Owed: rows.Owed{Filter: sub.Filter, Since: rt.Retained.LastStamp()}, Fresh: true}
	return sub.Replay
}

// Owed gives the replays that have something to send. What is retained from now on
// is routed to their subscriptions anyway.
func (rt *Router) Owed(s *session.Session, replays []*session.Replay) []*session.Replay {
	return slices.DeleteFunc(replays, func(r *session.Replay) bool {
		found := false
		rt.Retained.Match(r.Owed.Filter, "", 1, func(*retained.Entry) { found = true })
		if !found {
			s.Mu.Lock()
			r.End()
			s.Mu.Unlock()
		}
		return !found
	})
}

// StartReplays adds replays to the session and goes on with them.
func (rt *Router) StartReplays(t *session.Turn, s *session.Session, replays []*session.Replay) {
	if len(replays) == 0 {
		return
	}
	s.Mu.Lock()
	for _, r := range replays {
		r.Fresh = false
	}
	s.AddReplays(replays...)
	if s.Replays.Len() > 2*len(s.Subs) { // a client may subscribe again and again, and take nothing
		dropStale(t, s)
	}
	s.Mu.Unlock()
	rt.Commit(t, nil)
	rt.ResumeFeed(t, s)
}

// dropStale drops replays whose subscription is gone or was made again since, with what they
// keep in memory. The one that a goroutine sends is its to end. s.Mu is held.
func dropStale(t *session.Turn, s *session.Session) {
	first := s.Replays.First()
	s.RemoveReplays(func(r *session.Replay) bool {
		if !r.Stale() || s.Replaying && r == first {
			return false
		}
		if r.Key != nil {
			t.Deletes = append(t.Deletes, r.Key)
		}
		return true
	})
}

// ResumeFeed feeds a session from what isn't in its queue in memory: messages that are
// on disk only, backlogs of shared subscriptions that found it full, retained
// messages for new subscriptions. Called with no lock
// held whenever the queue has got shorter; one goroutine does each at a time.
func (rt *Router) ResumeFeed(t *session.Turn, s *session.Session) {
	if !t.MustNotBlock {
		rt.LoadMessages(t, s)
	}
	rt.DispatchTo(t, s)
	if t.MustNotBlock {
		if s.Lacks() || s.MayReplay() {
			rt.Background(func(t *session.Turn) { rt.ResumeFeed(t, s) })
		}
		return
	}
	debt := 0 // of the replay: its next goroutine takes it over, when this one has to wait for the client
	for {
		t.Pace(debt)
		s.Mu.Lock()
		if s.Replaying || s.Replays == nil || s.Peer == nil || !s.RoomToReplay() {
			s.Mu.Unlock()
			return
		}
		s.Replaying = true
		r := s.Replays.First()
		r.Work = min(r.Work+session.ReplayAhead, session.MaxDebt)
		debt = r.Work
		s.Mu.Unlock()

		t.Worked += session.ReplayAhead
		began := r.Owed.After
		more, after := rt.replayPage(t, s, r)
		rt.Commit(t, s.Replayed(t, r, began, &more))
		if after > rt.Journal.Complete() {
			t.Flush() // which also sends the SUBACK
			if t.Self != nil {
				t.Self.Transport.Flush()
			}
			t.LeaveGate()
			if !rt.WaitDurable(after) {
				return
			}
			r.Durable = after
		}

		s.Mu.Lock()
		s.Replaying = false
		if !more && s.Replays.First() == r {
			s.RemoveReplays(func(first *session.Replay) bool { return first == r })
			r.End()
		}
		s.Mu.Unlock()
	}
}

// replayPage enqueues the next retained messages of r. after is the batch that must be
// durable before it goes on; 0: none.
func (rt *Router) replayPage(t *session.Turn, s *session.Session, r *session.Replay) (more bool, after journal.Seq) {
	page := make([]*retained.Entry, 0, session.ReplayAhead)
	next, more := rt.Retained.Match(r.Owed.Filter, r.Owed.After, session.ReplayAhead, func(e *retained.Entry) {
		page = append(page, e)
	})
	for _, e := range page {
		switch outcome, after := rt.replayOne(t, s, r, e); {
		case outcome == unwanted:
			return false, 0
		case outcome == held:
			return true, after // r.Owed.After says where to go on
		}
		r.Owed.After = e.Name()
	}
	r.Owed.After = next
	return more, 0
}

// replayed is what became of one message of a replay.
type replayed uint8

const (
	passed   replayed = iota // it has been sent, or is not to be
	held                     // the output is full, or a batch must be durable first
	unwanted                 // no session waits for it, nor for the rest
)

// replayOne enqueues the retained message of one topic, unless it was stored
// after the subscription was made and has thus been routed to it. after is the batch that
// must be durable before the message may be enqueued; 0: it has been.
func (rt *Router) replayOne(t *session.Turn, s *session.Session, r *session.Replay, e *retained.Entry) (outcome replayed, after journal.Seq) {
	topic := rt.Retained.LockOfEntry(e)
	topic.Lock()
	defer topic.Unlock()
	m, found := rt.Retained.Retained(e)
	if found && m.Stamp <= r.Owed.Since && m.AfterBatch > max(r.Durable, rt.Journal.Complete()) {
		return held, m.AfterBatch // a transaction has stored or deleted it: no client sees that before it is durable
	}
	if !found || len(m.Payload()) == 0 || m.Stamp > r.Owed.Since {
		return passed, 0
	}
	if m.ExpiresAt != 0 && m.ExpiresAt <= rt.Now() {
		rt.Retained.Remove(m)
		return passed, 0
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if r.Stale() || s.Ended {
		return unwanted, 0
	}
	if s.Peer == nil || s.Peer.Transport.Full() {
		return held, 0
	}
	if slices.Contains(r.Owed.Routed, m.Stamp) || r.Sub.NoLocal && m.Publisher == s.ID { // [MQTT-3.8.3-3]
		return passed, 0
	}
	m.Keep()
	o := m.Outgoing()
	defer o.Done()
	t.SubIDs = t.SubIDs[:0]
	if r.Sub.ID != 0 {
		t.SubIDs = append(t.SubIDs, r.Sub.ID)
	}
	s.Deliver(t, r.Sub, &o, min(m.QoS, r.Sub.QoS), true)
	return passed, 0
}
