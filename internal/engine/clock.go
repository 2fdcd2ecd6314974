package engine

import (
	"hash/maphash"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Deadlines and the wall clock
//
// On disk a deadline is a time of the wall clock, since nothing else says after a
// restart how long the server was away. While the server runs it must not move when the
// wall clock is stepped (protocol, section 6), so in memory it is on a clock that does
// not: the wall clock as it was at the start, plus the time since.
//
// A machine may start with its clock behind, until NTP sets it right. For deadlines that
// were set in this run that changes nothing. Those that were read from disk, however,
// were placed by the wrong time: a lease of a minute would be held for as long as the
// clock was behind. So they are marked (recordByWall), and a step forward brings them
// forward. A step back moves none: of all times that the wall clock has claimed, the
// latest counts, and no step makes anything live longer. Versions follow the wall clock
// forward only, in any case (package hlc).
//
// What this run has written before such a step has deadlines on disk that lie too early
// by as much, and would not survive a restart. So those rows are written again.

// minClockStepMs is what the wall clock must have gained on the clock of deadlines to
// have been stepped.
const minClockStepMs = 1000

// FollowClock looks whether the wall clock was stepped forward, and if so brings
// deadlines that were read from disk forward by as much. The engine does it by itself
// every few seconds; it should also be called before commands are run, when the clock may
// have been set since Open.
func (e *Local) FollowClock() {
	ahead := e.clock.WallMs() - e.nowMs()
	e.mu.Lock()
	step := ahead - e.steppedMs
	if step < minClockStepMs {
		e.mu.Unlock()
		return
	}
	e.steppedMs += step
	e.mu.Unlock()
	e.o.Logger.Warn("the machine's clock was stepped forward: deadlines from before the start follow it", "step_ms", step)
	for i := range e.shards {
		e.shards[i].follow(e, step)
	}
}

// follow brings the shard's deadlines that were read from disk forward by step ms, and
// writes the rows of the others again.
func (sh *shard) follow(e *Local, step int64) {
	sh.mu.Lock()
	rewrite := sh.table.BringForward(step)
	sh.publish()
	sh.mu.Unlock()
	for some := range slices.Chunk(rewrite, expireAtOnce) {
		e.journal.Admit()
		for _, key := range some {
			e.rewrite(sh, key)
		}
	}
	e.expiry.arm(sh.next.Load())
}

// rewrite writes a key's row with its deadline by the wall clock of now.
func (e *Local) rewrite(sh *shard, key []byte) {
	hash := maphash.Bytes(e.seed, key)
	d := e.newDecision()
	defer d.release()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.Get(key, hash)
	if !r.Live() || r.DeadlineMs() == 0 {
		return
	}
	d.look()
	var entry statestore.Entry
	sh.table.FencedEntry(r, &entry)
	diskMs := d.diskDeadline(&entry)
	d.row = append(append(d.row[:0], rows.KeyPrefix...), key...)
	a := e.journal.Begin()
	rows.Write(a, d.row, &entry, diskMs)
	a.End(nil) // no reply depends on it: the key's last change stays where it is
}
