// Package rounds calls a function from time to time, on a goroutine of its own. The engine has its
// clean-up done by it. It knows nothing of what is done.
package rounds

import (
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

// Rounds are the calls. The zero value is ready for Start.
type Rounds struct {
	done  chan struct{}
	ended chan struct{}
	once  sync.Once // Stop
}

// Start begins to call round: every so often, and after a pause if it says that there is more to
// do. A panic of it ends the process; what is for the log.
func (r *Rounds) Start(every, pause time.Duration, round func() (more bool), log *slog.Logger, what string) {
	r.done, r.ended = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(r.ended)
		timer := time.NewTimer(every)
		defer timer.Stop()
		defer failstop.End(log, what)
		for {
			select {
			case <-r.done:
				return
			case <-timer.C:
			}
			if round() {
				timer.Reset(pause)
			} else {
				timer.Reset(every)
			}
		}
	}()
}

// Stop ends the calls, and returns when none is under way. It may be called several times.
func (r *Rounds) Stop() {
	r.once.Do(func() { close(r.done) })
	<-r.ended
}
