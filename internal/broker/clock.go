package broker

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

// followClock looks whether the wall clock was stepped forward, and if so moves what
// follows it. The sweep's.
func (b *Broker) followClock() {
	step := b.wallMs() - b.Now() - b.epoch - b.steppedMs
	if step < minClockStepMs {
		return
	}
	b.steppedMs += step
	b.mu.Lock()
	sessions := make([]*Session, 0, len(b.sessions))
	for _, s := range b.sessions {
		sessions = append(sessions, s)
	}
	b.mu.Unlock()
	b.log.Warn("the machine's clock was stepped forward: sessions that were away at the start follow it", "step_ms", step)
	for _, s := range sessions {
		b.journal.Admit()
		s.followClock(step)
	}
}

func (s *Session) followClock(step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.conn != nil || s.away == 0 {
		return
	}
	if !s.awayByWall { // it has left in this run
		s.away += step
		if s.will != nil && s.will.due != 0 {
			s.will.due += step
		}
		if s.sid != 0 {
			s.b.saveAway(s, true) // a will that is just being published goes with that
		}
		return
	}
	if s.expireAt != nil && s.b.timers.remove(s.expireAt) {
		s.b.scheduleExpiry(s)
	}
	if s.will != nil && s.b.timers.remove(s.willAt) {
		s.b.scheduleWill(s)
	}
}
