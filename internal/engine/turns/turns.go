// Package turns bounds how many SCANs read at the same time; others wait in the order of
// asking.
package turns

import "time"

// interval is how often one that waits for its place looks whether it is still wanted.
const interval = 20 * time.Millisecond

// Places are those of the SCANs that may read at the same time. Safe for concurrent use.
type Places chan struct{}

// New makes so many places.
func New(places int) Places { return make(Places, places) }

// Take waits for a place. It returns false, without one, if gone says so meanwhile.
func (p Places) Take(gone func() bool) bool {
	if gone() {
		return false
	}
	select {
	case p <- struct{}{}:
		return true
	default:
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !gone() {
		select {
		case p <- struct{}{}:
			return true
		case <-tick.C:
		}
	}
	return false
}

// Give gives a place back.
func (p Places) Give() { <-p }

// Pass lets another SCAN that waits have the place first.
func (p Places) Pass() {
	<-p
	p <- struct{}{}
}
