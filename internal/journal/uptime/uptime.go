// Package uptime is the clock of watchdogs: how long the process has been running. Package journal
// measures by it how long the disk takes. It knows nothing of what is measured.
package uptime

import (
	"sync/atomic"
	"time"
)

// Clock is the clock for tasks that must end within a limit: how long the process has
// been running. The machine's wall clock may step, and a process that was stopped, or a
// machine that was suspended, must not make a healthy disk look as if it hung. So a watchdog
// calls Tick regularly, and time in which even the watchdog did not run does not count. Time
// in which tables wait for file descriptors does not count either: the disk is sound, and
// everything acknowledged is in the log.
type Clock struct {
	monotonic func() time.Duration
	skipped   atomic.Int64 // ns that do not count
	ticked    atomic.Int64 // when the watchdog last called Tick, by monotonic, ns
	lacking   atomic.Int64 // when a table last found no file descriptor, by monotonic, ns; 0: never
}

// missedTicks is how many intervals must pass without a tick for the process to count
// as having been stopped. On a machine that is merely busy it is late by less.
const missedTicks = 4

// New makes a clock that begins now.
func New() *Clock {
	start := time.Now()
	return NewOf(func() time.Duration { return time.Since(start) })
}

// NewOf makes a clock of another one, which does not go back.
func NewOf(monotonic func() time.Duration) *Clock { return &Clock{monotonic: monotonic} }

// Monotonic is how long the clock has run, with the time in which the process did not.
func (u *Clock) Monotonic() time.Duration { return u.monotonic() }

// Skipped is the time that does not count.
func (u *Clock) Skipped() time.Duration { return time.Duration(u.skipped.Load()) }

// Now is above 0.
func (u *Clock) Now() time.Duration {
	return max(1, u.monotonic()-time.Duration(u.skipped.Load()))
}

// Watch begins a watchdog's ticks.
func (u *Clock) Watch() { u.ticked.Store(int64(u.monotonic())) }

// LackDescriptor notes that a table found no file descriptor.
func (u *Clock) LackDescriptor() { u.lacking.Store(max(1, int64(u.monotonic()))) }

// Tick is called by the one watchdog at an interval, and returns the time. Pebble tries a
// table that has failed again at once, so while descriptors are lacking, each interval has
// many attempts.
func (u *Clock) Tick(interval time.Duration) time.Duration {
	now := u.monotonic()
	gap := now - time.Duration(u.ticked.Swap(int64(now)))
	lacking := u.lacking.Load()
	switch {
	case lacking != 0 && now-time.Duration(lacking) < missedTicks*interval:
		u.skipped.Add(int64(gap))
	case gap > missedTicks*interval:
		u.skipped.Add(int64(gap - interval))
	}
	return u.Now()
}

// Task is something that one goroutine at a time does and the watchdog watches.
type Task struct{ since atomic.Int64 } // by uptime, ns; 0: it is not under way

// Begin begins it.
func (t *Task) Begin(u *Clock) { t.since.Store(int64(u.Now())) }

// End ends it.
func (t *Task) End() { t.since.Store(0) }

// IsLate says whether the task has been under way for longer than limit.
func (t *Task) IsLate(now, limit time.Duration) bool {
	since := t.since.Load()
	return since != 0 && now-time.Duration(since) > limit
}
