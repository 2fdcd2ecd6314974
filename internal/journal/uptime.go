package journal

import (
	"sync/atomic"
	"time"
)

// uptime is the clock for tasks that must end within a limit: how long the process has
// been running. The machine's wall clock may step, and a process that was stopped, or a
// machine that was suspended, must not make a healthy disk look as if it hung. So a watchdog
// calls tick regularly, and time in which even the watchdog did not run does not count. Time
// in which tables wait for file descriptors does not count either: the disk is sound, and
// everything acknowledged is in the log.
type uptime struct {
	monotonic func() time.Duration
	skipped   atomic.Int64 // ns that do not count
	ticked    atomic.Int64 // when the watchdog last called tick, by monotonic, ns
	lacking   atomic.Int64 // when a table last found no file descriptor, by monotonic, ns; 0: never
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
	return max(1, u.monotonic()-time.Duration(u.skipped.Load()))
}

// watch begins a watchdog's ticks.
func (u *uptime) watch() { u.ticked.Store(int64(u.monotonic())) }

// lackDescriptor notes that a table found no file descriptor.
func (u *uptime) lackDescriptor() { u.lacking.Store(max(1, int64(u.monotonic()))) }

// tick is called by the one watchdog at an interval, and returns the time. Pebble tries a
// table that has failed again at once, so while descriptors are lacking, each interval has
// many attempts.
func (u *uptime) tick(interval time.Duration) time.Duration {
	now := u.monotonic()
	gap := now - time.Duration(u.ticked.Swap(int64(now)))
	lacking := u.lacking.Load()
	switch {
	case lacking != 0 && now-time.Duration(lacking) < missedTicks*interval:
		u.skipped.Add(int64(gap))
	case gap > missedTicks*interval:
		u.skipped.Add(int64(gap - interval))
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
