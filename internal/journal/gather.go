package journal

import (
	"hash/maphash"
	"time"
)

// gathering lets the committer wait for callers that are about to write.
//
// A client that has waited for a batch often writes again when it has the answer. If the committer
// sealed the next batch as soon as it has a row, that batch would have those that came while the last
// one was under way, and the others would come too late: two halves of the clients would take turns,
// each with an fsync, and in a cluster with messages to each node. So the committer first waits for
// those whose batch has just completed. It stops when nearly all have come, when none has come for a
// part of the time that the last commit took, and in any case after twice that time. If that has gained
// little, it does not wait before the next batches. It never waits for a caller who is alone.
//
// A batch of a cluster costs three machines wake-ups, and a commit is longer, so it pays to wait longer for callers
// that have one write under way each. (Where they have several, batches are large anyway; and with the log of one
// machine, 800 SETs under way at a time became 7 to 10 % slower by it.) Others that come meanwhile then gain
// nothing, so such a wait was worth it only if callers of the last batch have come.
type gathering struct {
	cluster bool          // the log is not this machine's alone
	enough  chan struct{} // capacity 1: as many as want have come, or the batch is large
	timer   *time.Timer
	want    int // guarded by Journal.mu: send to enough when the filling batch has as many waiters; 0: don't

	// The committer's.
	commit   time.Duration // that the last one took
	callers  callers       // of the batch whose waiters are being called
	served   int           // how many these are
	last     callers       // of the batch that completed last
	expected int           // that probably write soon: those of the batch that completed last, and others that wrote meanwhile
	manyRows bool          // the batch that completed last had several for each caller
	missed   int           // how often waiting has gained little, successively; at most maxMissed
	skip     int           // for how many batches not to wait
	skipped  int           // what skip began with
}

// patience is how long the committer waits for callers.
type patience struct {
	share  time.Duration // of the last commit's time, which divided by it is a pause
	pauses int           // that it waits at most, if callers come in each
	skip   int           // batches before which it does not wait, after it has waited in vain
	most   int           // such batches, whose number doubles each time that it has waited in vain again
}

var (
	usualPatience   = patience{share: 4, pauses: 8, skip: 4, most: 4}
	clusterPatience = patience{share: 1, pauses: 2, skip: 1, most: 8}
)

// callers are waiters by their hash, at most maxCallers: a caller that has gone is not kept in memory.
type callers map[uint64]struct{}

var callerSeed = maphash.MakeSeed()

func (c callers) add(w Waiter) {
	if len(c) < maxCallers {
		c[maphash.Comparable(callerSeed, w)] = struct{}{}
	}
}

func (c callers) has(w Waiter) bool {
	_, is := c[maphash.Comparable(callerSeed, w)]
	return is
}

const (
	minGatherPause = 50 * time.Microsecond // a batch is cheaper than to wait for less
	maxGatherPause = 5 * time.Millisecond
	cheapWait      = 8 // a wait for an eighth of a commit at most costs less than a batch of the last callers
	maxMissed      = 2 // so often successively, and the committer does not wait for the next
	rowsOfMany     = 4 // a batch with as many rows for each caller has several writes of most
	maxCallers     = 4096
)

func newGathering(cluster bool) gathering {
	g := gathering{cluster: cluster, enough: make(chan struct{}, 1), timer: time.NewTimer(time.Hour), callers: callers{}, last: callers{}}
	g.timer.Stop()
	return g
}

// call notes that a caller's batch is durable.
func (g *gathering) call(w Waiter) {
	g.served++
	g.callers.add(w)
}

// complete notes that all callers of a batch with so many rows were called. Those of the next batch are there
// already; one that has requests in both, or was called and has written again, counts once.
func (g *gathering) complete(rows uint32, next []Waiter) {
	g.expected, g.manyRows = g.served, int(rows) >= rowsOfMany*g.served
	for _, w := range next[:min(len(next), maxCallers)] {
		if !g.callers.has(w) {
			g.expected++
		}
	}
	g.served = 0
	g.last, g.callers = g.callers, g.last
	clear(g.callers)
}

// wanted is how many callers to wait for: nearly all that are expected.
func (g *gathering) wanted() int { return g.expected - g.expected/16 }

// patience is that for the next batch.
func (g *gathering) patience() patience {
	if g.cluster && !g.manyRows {
		return clusterPatience
	}
	return usualPatience
}

// judge notes whether it was worth waiting for want callers: as many were there before as from says, and came
// have come.
func (g *gathering) judge(from, want int, came []Waiter, waited time.Duration) {
	p, gained := g.patience(), len(came)
	if p == clusterPatience {
		gained = 0
		for _, w := range came {
			if g.last.has(w) {
				gained++
			}
		}
	}
	if 8*gained >= from || from+gained >= want && waited <= g.commit/cheapWait {
		g.missed, g.skipped = 0, 0
		return
	}
	if g.missed = min(g.missed+1, maxMissed); g.missed == maxMissed {
		g.skip = min(max(p.skip, 2*g.skipped), p.most)
		g.skipped = g.skip
	}
}

// gather waits for callers. mu is held, but not while it waits.
func (j *Journal) gather() {
	g, from := &j.gathering, len(j.filling.waiters)
	p := g.patience()
	pause, want := min(g.commit/p.share, maxGatherPause), g.wanted()
	if from >= want || pause < minGatherPause {
		return
	}
	if g.skip > 0 {
		g.skip--
		return
	}
	came, begun := from, time.Now()
	for range p.pauses {
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
	g.judge(from, want, j.filling.waiters[from:], time.Since(begun))
}

// tellGatherer wakes gather if what it waits for is there. mu is held.
func (j *Journal) tellGatherer() {
	if want := j.gathering.want; want != 0 && (len(j.filling.waiters) >= want || j.tooLarge) {
		j.gathering.want = 0
		j.gathering.enough <- struct{}{}
	}
}
