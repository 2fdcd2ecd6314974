package journal

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// Durability says when a batch counts as durable, which is when its waiters are
// called. The zero value is the only one that keeps every promise.
//
// In the other two a batch is "durable" once it is written. Nothing else changes:
// rows still reach the log in order, a recovered database is still one that existed
// at some moment, and Close still syncs everything. The end of the process alone
// takes nothing away. What a crash of the machine takes away is the end: at most the
// last interval's, or with none whatever the operating system had not written by
// itself.
type Durability struct {
	mode     durabilityMode
	interval time.Duration
}

type durabilityMode byte

const (
	modeSync durabilityMode = iota
	modeInterval
	modeNone
)

// The bounds of an interval: below, sync is the better choice, as it shares its
// fsyncs; above, a mistake is likelier than a wish.
const (
	MinSyncInterval = 10 * time.Millisecond
	MaxSyncInterval = time.Minute
)

var (
	// Sync calls a batch durable after its fsync. The default.
	Sync = Durability{}
	// NoSync calls a batch durable when it is written, and asks for no fsync.
	NoSync = Durability{mode: modeNone}
)

// SyncEvery calls a batch durable when it is written, and asks for an fsync at
// this interval.
func SyncEvery(interval time.Duration) Durability {
	return Durability{mode: modeInterval, interval: interval}
}

// ParseDurability reads "sync", "none" or "interval=" with a number of
// milliseconds or a duration such as 1s.
func ParseDurability(s string) (Durability, error) {
	switch text, isInterval := strings.CutPrefix(s, "interval="); {
	case s == "sync":
		return Sync, nil
	case s == "none":
		return NoSync, nil
	case isInterval:
		unit := ""
		if units.IsDecimal(text) {
			unit = "ms"
		}
		d, err := units.ParseDuration(text + unit)
		if err == nil && d >= MinSyncInterval && d <= MaxSyncInterval {
			return SyncEvery(d), nil
		}
		return Durability{}, fmt.Errorf("interval %q: want a number of milliseconds from %d to %d, for example interval=1000", text, MinSyncInterval.Milliseconds(), MaxSyncInterval.Milliseconds())
	}
	return Durability{}, errors.New("want sync, interval=MS (for example interval=1000) or none")
}

// String is the form that ParseDurability reads.
func (d Durability) String() string {
	switch d.mode {
	case modeInterval:
		return fmt.Sprintf("interval=%d", d.interval.Milliseconds())
	case modeNone:
		return "none"
	}
	return "sync"
}

// KeepsAcknowledged says whether everything that was called durable survives
// the loss of power.
func (d Durability) KeepsAcknowledged() bool { return d.mode == modeSync }

// runInterval syncs the log whenever the interval has passed.
func (j *Journal) runInterval() {
	defer failstop.End(j.o.Logger, "the journal's fsync at an interval")
	tick := time.NewTicker(j.o.Durability.interval)
	defer tick.Stop()
	for {
		select {
		case <-j.drained:
			return
		case <-j.failed:
			return
		case <-tick.C:
		}
		if !j.syncNow() {
			return
		}
	}
}

// syncNow makes everything that was written durable. False: the journal failed.
func (j *Journal) syncNow() bool {
	j.syncing.Begin(j.uptime)
	err := j.log.Sync()
	j.syncing.End()
	if err != nil {
		j.fail(fmt.Errorf("the log could not be synced: %w", err))
		return false
	}
	return true
}

// hangs says whether an fsync at the interval, or what gives Pebble its rows, has been
// under way for longer than limit.
func (j *Journal) hangs(now, limit time.Duration) bool {
	return j.syncing.IsLate(now, limit) || j.giving.IsLate(now, limit)
}
