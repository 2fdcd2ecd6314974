package journal

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

// presenceInterval is how often the journal looks whether its directory is where it was.
const presenceInterval = 250 * time.Millisecond

// runPresence fails the journal when its directory is gone, or its lock.
//
// After each fsync the log asks whether its file still has a name, so that nothing that
// came after a deletion is acknowledged. A directory that was moved or replaced keeps what
// was acknowledged, but another server may begin at its path; that is what is looked at
// here.
func (j *Journal) runPresence() {
	defer failstop.End(j.o.Logger, "the journal's look at its directory")
	tick := time.NewTicker(presenceInterval)
	defer tick.Stop()
	for {
		select {
		case <-j.drained:
			return
		case <-j.failed:
			return
		case <-tick.C:
		}
		err := j.lock.Check()
		if err == nil {
			err = j.log.Check()
		}
		if err != nil {
			j.fail(err)
			return
		}
	}
}
