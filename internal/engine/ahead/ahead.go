// Package ahead says in the log when the store's versions have come far ahead of the wall
// clock, and when they are back.
package ahead

import (
	"log/slog"
	"time"
)

// Warning is how far versions may be ahead of the wall clock before it is logged
// (protocol, section 4).
const Warning = 5 * time.Second

// again is how long a client that puts the versions ahead again, or another one that does,
// is not named once more.
const again = time.Minute

// Warnings says when versions have come far ahead of the wall clock, whose request did it,
// and when they are back: with the first version that is issued once the clock has caught
// up. The zero value has said nothing. It belongs to one goroutine.
type Warnings struct {
	Far bool // they are, and the log has it
	by  string
	at  time.Duration // since the start
}

// Say says that versions are ahead of the wall clock by so much, because of the client by,
// or if that is empty because the clock was stepped back; now is the time since the start.
// It returns whether they are not far ahead.
func (w *Warnings) Say(log *slog.Logger, ahead, limit time.Duration, by string, now time.Duration) (near bool) {
	far := ahead > Warning
	switch {
	case far && (!w.Far || by != w.by) && (w.at == 0 || now-w.at >= again):
		w.at, w.by = max(now, 1), by
		if by != "" {
			log.Warn("versions are ahead of the machine's clock: a client's timestamp was, so its clock is fast", "ahead", ahead, "limit", limit, "client", by)
		} else {
			log.Warn("versions are ahead of the machine's clock: it was stepped back", "ahead", ahead, "limit", limit)
		}
	case !far && w.Far:
		log.Info("versions are no longer ahead of the machine's clock", "ahead", ahead)
	}
	w.Far = far
	return !far
}
