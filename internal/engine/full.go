package engine

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// sayFull logs that a bound of the whole store refuses writes, and which client holds
// most of what it bounds; once in a while, as long as that is so.
func (e *Local) sayFull(b statestore.Bound) {
	switch b {
	case statestore.MaxKeys, statestore.MaxBytes, statestore.MaxMemory, statestore.MaxRemembered:
	default:
		return
	}
	now := max(1, e.clock.SinceStart())
	e.mu.Lock()
	if e.fullSaid != 0 && now-e.fullSaid < fullAgain {
		e.mu.Unlock()
		return
	}
	e.fullSaid = now
	most := e.quota.Largest(b == statestore.MaxKeys)
	args := []any{"setting", b, "keys", e.quota.Keys, "bytes", e.quota.Bytes, "remembered", e.quota.Memos}
	e.mu.Unlock()
	if b != statestore.MaxRemembered && most.ID != "" {
		args = append(args, "client", most.ID, "client_keys", most.Keys, "client_bytes", most.Bytes)
	}
	e.o.Logger.Warn("the store is full: writes that make it grow are refused", args...)
}

// fullAgain is how long after that line the next comes.
const fullAgain = time.Minute
