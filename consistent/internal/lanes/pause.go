package lanes

import (
	"math/rand/v2"
	"time"
)

// Pause is the time before the next attempt.
type Pause struct{ Next, Longest time.Duration }

// Take returns the pause, spread at random by half, and doubles it.
func (d *Pause) Take() time.Duration {
	t := d.Next/2 + rand.N(d.Next/2+1)
	d.Next = min(2*d.Next, d.Longest)
	return max(t, 1)
}

// Rest takes a pause. It returns false if one of the channels, which may be nil, is closed
// meanwhile.
func (d *Pause) Rest(a, b <-chan struct{}) bool {
	t := time.NewTimer(d.Take())
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a:
	case <-b:
	}
	return false
}
