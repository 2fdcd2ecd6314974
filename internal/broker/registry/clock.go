package registry

import (
	"math"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/timers"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
)

// The broker's clock does not step: it is the time since the start. On disk are times of
// the wall clock. Sessions and wills that were read from disk were placed by the wall
// clock of the start; if that was behind, and is set right, they are placed anew. A step
// back moves none: of all times that the wall clock has claimed the latest counts. What
// began in this run keeps its length, and is written again with the right time.
//
// Messages are converted by the wall clock of the start as long as the broker runs: one
// that was published in this run must expire neither early nor late, and rows don't say
// which run they are of. So a message from an earlier run lives longer by as much as the
// clock was behind when the broker started; the server doesn't start while its clock is
// behind the last version that the store has issued (Engine.Ready).

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
	s.Leaving.Lock() // or the row of the client's next will could go with this one's
	defer s.Leaving.Unlock()
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
