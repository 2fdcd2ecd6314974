package registry

import (
	"math"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/timers"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
)

// The broker's clock is the time since the start, so it does not step. The rows on disk
// have times of the wall clock. At the start, the wall clock of that moment converts them.
//
// If the wall clock was behind then and is set right later, FollowClock moves the deadlines
// of the sessions and wills that were read from disk. A session that has lost its
// connection in this run keeps its interval; FollowClock writes its row again with the
// right time. If the wall clock is set back, nothing moves: the latest time that it has
// shown counts.
//
// Messages do not follow: a message that was published in this run must expire neither
// early nor late, and a row does not say in which run it was written. So if the clock was
// behind at the start, a message of an earlier run lives longer by that. How far behind is
// bounded: the server does not start while its clock is behind the last version that the
// store has issued (Engine.Ready).

// minClockStepMs is what the wall clock must have gained to have been stepped.
const minClockStepMs = 1000

// FollowClock looks whether the wall clock was stepped forward, and if so moves what
// follows it. Called by one goroutine.
func (r *Registry) FollowClock() {
	step := r.WallMs() - r.Now() - r.Epoch - r.steppedMs
	if step < minClockStepMs {
		return
	}
	r.steppedMs += step
	sessions := r.All()
	r.Log.Warn("the machine's clock was stepped forward: sessions that were away at the start follow it", "step_ms", step)
	for _, s := range sessions {
		r.Journal.Admit()
		r.moveClock(s, step)
	}
}

// moveClock moves what follows the wall clock in a session.
func (r *Registry) moveClock(s *session.Session, step int64) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended || s.Peer != nil || s.Away == 0 {
		return
	}
	if !s.AwayByWall { // it has left in this run
		s.Away += step
		if s.Will != nil && s.Will.Due != 0 {
			s.Will.Due += step
		}
		if s.SID != 0 {
			r.SaveAway(s, true) // a will that is just being published goes with that
		}
		return
	}
	if s.ExpireAt != nil && r.timers.Remove(s.ExpireAt) {
		r.scheduleExpiry(s)
	}
	if s.Will != nil && r.timers.Remove(s.WillAt) {
		r.scheduleWill(s)
	}
}

// scheduleExpiry ends the session after its expiry interval; s.Mu is held.
func (r *Registry) scheduleExpiry(s *session.Session) {
	if s.Expiry == math.MaxUint32 {
		return // only if that is what MaxSessionExpiry allows
	}
	interval := int64(s.Expiry) * 1000
	left := interval - max(0, r.WallMs()-s.Away) // not more than all of it, whatever the clock says
	var due *timers.Timer
	due = r.timers.Add(r.Now()+max(0, left), func() {
		r.Do(func(t *session.Turn) {
			// The client may have come back meanwhile, and even have left again.
			if r.endSessionIf(t, s, func() bool { return s.ExpireAt == due }) {
				r.Counters.SessionsExpired.Add(1)
			}
		})
	})
	s.ExpireAt = due
}

// scheduleWill publishes the will after its delay; s.Mu is held.
func (r *Registry) scheduleWill(s *session.Session) {
	w := s.Will
	left := min(w.Due-r.WallMs(), int64(w.Delay)*1000)
	s.WillAt = r.timers.Add(r.Now()+max(0, left), func() {
		r.Do(func(t *session.Turn) { r.publishDelayed(t, s, w) })
	})
}

// publishDelayed publishes a delayed will, unless the client has come back.
func (r *Registry) publishDelayed(t *session.Turn, s *session.Session, w *will.Will) {
	s.Lifecycle.Lock() // or the row of the client's next will could go with this one's
	defer s.Lifecycle.Unlock()
	s.Mu.Lock()
	due := s.Will == w && s.Peer == nil
	if due {
		s.Will = nil
	}
	s.Mu.Unlock()
	if due {
		r.publishWill(t, w)
	}
}
