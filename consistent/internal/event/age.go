package event

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

var (
	// ErrTooOld: older than the period for which messages are remembered.
	ErrTooOld = errors.New("the message is too old to tell whether it has been processed")
	// ErrTimeAhead: its time is further ahead than it may be.
	ErrTimeAhead = errors.New("the message's time is too far ahead; set the clock of its sender, or of this machine, right")
)

// CheckAge tells why a new message can't be processed, if messages are remembered for keep and clocks
// differ by at most skew: a duplicate of it might have been forgotten, or be forgotten before it
// comes.
func CheckAge(m *client.Message, now time.Time, keep, skew time.Duration) error {
	t, ok := Time(m)
	if !ok {
		return nil
	}
	switch age := now.Sub(t); {
	case age > keep:
		return fmt.Errorf("%w: its CloudEvents time is %v, and messages are remembered for %v", ErrTooOld, t, keep)
	case -age > skew:
		return fmt.Errorf("%w: its CloudEvents time is %v, which is %v ahead", ErrTimeAhead, t, -age)
	}
	return nil
}
