package sockets

import "time"

// AcceptFailures paces a listener that cannot accept, and what is said of it. The zero value
// is one that has not failed; one goroutine uses it.
type AcceptFailures struct {
	pause  time.Duration // before the next attempt
	since  int           // failures since the last line in the log
	logged time.Time     // when that was
}

const (
	shortestAcceptPause = 5 * time.Millisecond
	longestAcceptPause  = time.Second
	// acceptLogPause is how often failures are worth a line in the log.
	acceptLogPause = 10 * time.Second
)

// Next is how long to wait after one more failure.
func (f *AcceptFailures) Next() time.Duration {
	f.since++
	f.pause = min(max(2*f.pause, shortestAcceptPause), longestAcceptPause)
	return f.pause
}

// WorthALine says whether a line is due, and how many failures it tells of.
func (f *AcceptFailures) WorthALine(now time.Time) (failures int, due bool) {
	if !f.logged.IsZero() && now.Sub(f.logged) < acceptLogPause {
		return 0, false
	}
	failures, f.since, f.logged = f.since, 0, now
	return failures, true
}

// Succeeded says that a connection was accepted.
func (f *AcceptFailures) Succeeded() { f.pause = 0 }
