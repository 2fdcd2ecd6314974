package journal

import (
	"sync/atomic"
	"time"
)

// uptime is the clock of what is under way: how long the process has been running. The
// machine's wall clock may step, and that the process was stopped, or the machine
// suspended, must not make a healthy disk look as if it hung. So a watchdog looks at it
// regularly (see tick), and time in which even the watchdog did not run does not count.
type uptime struct {
	monotonic func() time.Duration
	asleep    atomic.Int64 // ns in which the watchdog did not run
	ticked    atomic.Int64 // when the watchdog last looked, by monotonic, ns
}

// missedTicks is how many intervals must pass without a tick for the process to count
// as having been stopped. On a machine that is merely busy it is late by less.
const missedTicks = 4

func newUptime() *uptime {
	start := time.Now()
	return &uptime{monotonic: func() time.Duration { return time.Since(start) }}
}

// now is above 0.
func (u *uptime) now() time.Duration {
	return max(1, u.monotonic()-time.Duration(u.asleep.Load()))
}

// watch begins a watchdog's ticks.
func (u *uptime) watch() { u.ticked.Store(int64(u.monotonic())) }

// tick is called by the one watchdog at an interval, and gives the time.
func (u *uptime) tick(interval time.Duration) time.Duration {
	now := u.monotonic()
	if gap := now - time.Duration(u.ticked.Swap(int64(now))); gap > missedTicks*interval {
		u.asleep.Add(int64(gap - interval))
	}
	return u.now()
}

// task is something that one goroutine at a time does and the watchdog watches.
type task struct{ since atomic.Int64 } // by uptime, ns; 0: it is not under way

func (t *task) begin(u *uptime) { t.since.Store(int64(u.now())) }

func (t *task) end() { t.since.Store(0) }

// isLate says whether the task has been under way for longer than limit.
func (t *task) isLate(now, limit time.Duration) bool {
	since := t.since.Load()
	return since != 0 && now-time.Duration(since) > limit
}
