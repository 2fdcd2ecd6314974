package journal

import "time"

// gathering lets the committer wait for callers that are about to write.
//
// A client that has waited for a batch often writes again when it has the answer. If the committer
// sealed the next batch as soon as it has a row, that batch would have those that came while the last
// one was under way, and the others would come too late: two halves of the clients would take turns,
// each with an fsync, and in a cluster with messages to each node. So the committer first waits for
// those whose batch has just completed. It stops when nearly all have come, or when none has come for
// a quarter of the time that the last commit took. If few have come, and not soon, it does not wait
// before the next batches. It never waits for a caller who is alone.
type gathering struct {
	enough chan struct{} // capacity 1: as many as want have come, or the batch is large
	timer  *time.Timer
	want   int // guarded by Journal.mu: send to enough when the filling batch has as many waiters; 0: don't

	// The committer's.
	commit   time.Duration       // that the last one took
	callers  map[Waiter]struct{} // of the batch whose waiters are being called; at most maxCallers
	served   int                 // how many these are
	expected int                 // that probably write soon: those of the batch that completed last, and others that wrote meanwhile
	missed   int                 // how often waiting has gained little, successively; at most maxMissed
	skip     int                 // for how many batches not to wait
}

const (
	gatherPauses   = 8                     // that the committer waits at most, if callers come in each
	minGatherPause = 50 * time.Microsecond // a commit of less than four of them is cheaper than to wait
	maxGatherPause = 5 * time.Millisecond
	cheapWait      = 8 // a wait for an eighth of a commit at most costs less than a batch of the last callers
	maxMissed      = 2 // so often successively, and the committer does not wait for the next
	missedSkip     = 4 // batches
	maxCallers     = 4096
)

func newGathering() gathering {
	g := gathering{enough: make(chan struct{}, 1), timer: time.NewTimer(time.Hour), callers: map[Waiter]struct{}{}}
	g.timer.Stop()
	return g
}

// call notes that a caller's batch is durable.
func (g *gathering) call(w Waiter) {
	g.served++
	if len(g.callers) < maxCallers {
		g.callers[w] = struct{}{}
	}
}

// complete notes that all callers of a batch were called. Those of the next batch are there already; one that
// has requests in both, or was called and has written again, counts once.
func (g *gathering) complete(next []Waiter) {
	g.expected = g.served
	for _, w := range next[:min(len(next), maxCallers)] {
		if _, again := g.callers[w]; !again {
			g.expected++
		}
	}
	g.served = 0
	clear(g.callers)
}

// wanted is how many callers to wait for: nearly all that are expected.
func (g *gathering) wanted() int { return g.expected - g.expected/16 }

// judge notes whether it was worth waiting for want callers, which has raised their number.
func (g *gathering) judge(from, to, want int, waited time.Duration) {
	if 8*(to-from) >= from || to >= want && waited <= g.commit/cheapWait {
		g.missed = 0
		return
	}
	if g.missed = min(g.missed+1, maxMissed); g.missed == maxMissed {
		g.skip = missedSkip
	}
}

// gather waits for callers. mu is held, but not while it waits.
func (j *Journal) gather() {
	g, from := &j.gathering, len(j.filling.waiters)
	pause, want := min(g.commit/4, maxGatherPause), g.wanted()
	if from >= want || pause < minGatherPause {
		return
	}
	if g.skip > 0 {
		g.skip--
		return
	}
	came, begun := from, time.Now()
	for range gatherPauses {
		if came >= want || j.tooLarge || j.closing || j.err != nil {
			break
		}
		g.want = want
		g.timer.Reset(pause)
		j.mu.Unlock()
		select {
		case <-g.enough:
			g.timer.Stop()
		case <-g.timer.C:
		}
		j.mu.Lock()
		if g.want == 0 { // enough was sent to, and the timer may have been faster
			select {
			case <-g.enough:
			default:
			}
		}
		g.want = 0
		if len(j.filling.waiters) == came {
			break
		}
		came = len(j.filling.waiters)
	}
	g.judge(from, came, want, time.Since(begun))
}

// tellGatherer wakes gather if what it waits for is there. mu is held.
func (j *Journal) tellGatherer() {
	if want := j.gathering.want; want != 0 && (len(j.filling.waiters) >= want || j.tooLarge) {
		j.gathering.want = 0
		j.gathering.enough <- struct{}{}
	}
}
