package registry

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Detach ends the connection's part in the session; a second call does nothing. graceful: the
// client has sent a DISCONNECT with reason code 0, which withdraws its will.
func (r *Registry) Detach(t *session.Turn, s *session.Session, c *peer.Peer, graceful bool) {
	s.Mu.Lock()
	if s.Peer != c {
		s.Mu.Unlock()
		return
	}
	s.Peer, s.Detaching = nil, c
	s.Away, s.AwayByWall = r.WallMs(), false
	var now *will.Will
	switch {
	case s.Will == nil:
	case graceful: // [MQTT-3.1.2-10]
		r.WithdrawWill(s)
	case s.Will.Delay == 0 || !s.Persistent():
		now, s.Will = s.Will, nil
	default:
		s.Will.Due = s.Away + int64(s.Will.Delay)*1000
		r.scheduleWill(s)
	}
	ends := !s.Persistent()
	if !ends {
		r.SaveAway(s, now != nil)
		r.scheduleExpiry(s)
		r.Principals.Away(&s.Place, s)
	}
	s.ClientLeft()
	shared := s.SharedSubscriptions()
	s.Mu.Unlock()

	if now != nil {
		r.publishWill(t, now)
	}
	if ends {
		r.endSession(t, s)
		return
	}
	for _, sub := range shared {
		sub.Group.TakeBack(t, sub)
	}
}

// Detached says that the connection's reader is done with the session.
func (r *Registry) Detached(s *session.Session, c *peer.Peer) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Detaching == c {
		s.Detaching = nil
	}
}

// endSession removes a session that has no connection, or loses it now, with all
// that belongs to it. Its will, if it is delayed, is published now. When it
// returns the session is gone, whichever goroutine has ended it.
func (r *Registry) endSession(t *session.Turn, s *session.Session) {
	r.endSessionIf(t, s, func() bool { return true })
}

// endSessionIf ends the session if that is still due, which it asks with the
// session's lock held, and says whether it did.
func (r *Registry) endSessionIf(t *session.Turn, s *session.Session, due func() bool) bool {
	s.Lifecycle.Lock()
	defer s.Lifecycle.Unlock()
	s.Mu.Lock()
	if s.Ended || !due() {
		s.Mu.Unlock()
		return false
	}
	s.Ended = true
	s.ChooseQueueFull(0)
	c := s.Peer
	s.Peer = nil
	w := s.Will
	s.Will = nil
	r.timers.Remove(s.ExpireAt)
	r.timers.Remove(s.WillAt)
	subs := make([]*session.Subscription, 0, len(s.Subs))
	for _, sub := range s.Subs {
		subs = append(subs, sub)
	}
	s.Replays = nil
	s.Mu.Unlock()

	// A shared group takes back what it can use, and has that on disk before the
	// session's own rows go, or a crash between the two would lose it.
	for _, sub := range subs {
		r.Remove(t, sub)
	}
	s.Mu.Lock()
	for _, sub := range subs {
		sub.Gone = true
	}
	clear(s.Subs)
	s.Place.ReturnSubscriptions(len(subs))
	// A will's row stays until the will is published.
	r.DeleteSession(s, w != nil)
	s.Discard()
	s.CreditReceived()
	s.Mu.Unlock()
	r.forget(s) // from here on there may be a new session of this name
	if w != nil {
		r.publishWill(t, w)
	}
	if c != nil {
		c.Disconnect(mqtt.QuotaExceeded, "the session's queue is full (--max-queued-bytes, --max-queued-messages, --max-queued-memory); the session has ended")
	}
	return true
}

// endOverflowed ends a session whose queue passed its bound: a hole in what a
// subscriber gets must never be silent.
func (r *Registry) endOverflowed(t *session.Turn, s *session.Session) {
	s.Mu.Lock()
	queued, bytes, ended := s.Routed.Messages, s.Routed.Bytes, s.Ended
	s.Mu.Unlock()
	if ended {
		return
	}
	r.Counters.SessionsOverflowed.Add(1)
	r.Log.Warn("ending a session because its queue is full", "client", s.ID, "messages", queued, "bytes", bytes)
	r.endSession(t, s)
}
