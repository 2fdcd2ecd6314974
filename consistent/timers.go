package consistent

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
)

// After returns the output m with the request to deliver it after d, from when the server reads
// it: a timer, which is on disk by the same step as the state (protocol, section 14). Its
// CloudEvents time is when it is due. [Message.WithTimerID] gives it an ID, by which
// [CancelTimer] finds it; another output with the same ID takes its place. IDs are those of the
// principal as which the program connects.
//
// A handler with the option [Replay] sets it once, too, and in the order of the states. For that
// the server needs transactions, and each timer takes a key of the store, below the namespace
// and "holdfast-timers/", for as long as messages are remembered.
func After(d time.Duration, m Message) Message { return m.After(d) }

// At is [After] for a time; one that has passed is now. As a state-based handler must decide the
// same again, t must not be derived from time.Now.
func At(t time.Time, m Message) Message { return m.At(t) }

// CancelTimer returns an output that cancels the timer with this ID, in the step in which the
// state changes: after that it is not delivered. There need not be one. Of several outputs about
// one timer the last counts. A message that was delivered before is processed as any other, so
// its handler must see by the state whether it still matters.
func CancelTimer(id string) Message { return timed.Cancel(id) }
