package engine

import "github.com/holdfast-mqtt/holdfast/internal/statestore"

// sayFull logs that a bound of the whole store refuses writes; once in a while, as long as
// that is so.
func (e *Local) sayFull(b statestore.Bound) {
	e.mu.Lock()
	line := e.notices.Full(b, e.clock.SinceStart(), &e.quota)
	e.mu.Unlock()
	line.Log(e.o.Logger)
}

// sayNearlyFull warns of remembered messages that come near their bound.
func (e *Local) sayNearlyFull() {
	e.mu.Lock()
	line := e.notices.NearlyFull(e.clock.SinceStart(), &e.quota)
	e.mu.Unlock()
	line.Log(e.o.Logger)
}
