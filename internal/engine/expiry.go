package engine

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine/ahead"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Expiry
//
// From its deadline on a key is absent to every command, because the rules say
// so; what remains to be done is to delete it, on disk too, and to tell its
// watchers within 50 ms. Each shard has a heap of its records with a deadline
// and publishes the earliest. One goroutine sleeps until the earliest of all,
// deletes what is due, and sleeps again.
//
// A deadline that is earlier than the one it sleeps for wakes it. That none is
// missed takes an order: who sets a deadline publishes the shard's earliest
// first and then looks at the time of waking; the loop publishes the time of
// waking first and then looks at the shards. One of the two sees the other.
type expiry struct {
	wakeMs atomic.Int64  // what the loop sleeps for
	poke   chan struct{} // there is an earlier one
	done   chan struct{} // the loop is to end
	ended  chan struct{} // it has
	once   sync.Once     // stop
}

const (
	expireAtOnce = 64              // bounds how many keys expire under one lock of a shard
	longestSleep = 5 * time.Second // also paces the look at the clock
)

func (x *expiry) start(e *Local) {
	x.poke = make(chan struct{}, 1)
	x.done = make(chan struct{})
	x.ended = make(chan struct{})
	go x.run(e)
}

func (x *expiry) stop() {
	x.once.Do(func() { close(x.done) })
	<-x.ended
}

// arm wakes the loop if it sleeps for longer than until the deadline, which the
// shard has published.
func (x *expiry) arm(deadlineMs int64) {
	if deadlineMs < x.wakeMs.Load() {
		x.wake()
	}
}

func (x *expiry) wake() {
	select {
	case x.poke <- struct{}{}:
	default: // it is about to wake
	}
}

func (x *expiry) run(e *Local) {
	defer close(x.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer failstop.End(e.o.Logger, "the expiry of keys")
	var said ahead.Warnings
	for {
		e.FollowClock()
		e.ExpireDue()
		e.warnOfClock(&said)
		next := e.nextDeadline()
		x.wakeMs.Store(next)
		if e.nextDeadline() < next {
			continue
		}
		timer.Reset(e.sleepFor(next))
		select {
		case <-x.done:
			return
		case <-x.poke:
		case <-timer.C:
		}
	}
}

func (e *Local) sleepFor(deadlineMs int64) time.Duration {
	ms := min(max(0, deadlineMs-e.nowMs()), cmp.Or(e.o.longestSleep, longestSleep).Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

func (e *Local) nextDeadline() int64 {
	next := int64(table.Never)
	for i := range e.shards {
		next = min(next, e.shards[i].next.Load())
	}
	return next
}

// ExpireDue deletes every key whose deadline has come. The engine does it by
// itself in time; tests that have moved their clock call it.
//
// Where very many are due at once, the deletions take longer than watchers should wait
// for theirs (60,000 took 50 to 170 ms). So after some of each shard those that are
// watched come first.
func (e *Local) ExpireDue() {
	now := e.nowMs()
	e.eachDue(now, func(sh *shard) {
		e.expireSome(sh)
	})
	e.eachDue(now, e.expireWatched)
	e.eachDue(now, func(sh *shard) {
		for sh.next.Load() <= now {
			e.journal.Admit()
			e.expireSome(sh)
		}
	})
}

// eachDue calls fn for each shard that has keys whose deadline has come.
func (e *Local) eachDue(now int64, fn func(*shard)) {
	for i := range e.shards {
		if sh := &e.shards[i]; sh.next.Load() <= now {
			e.journal.Admit()
			fn(sh)
		}
	}
}

// expireWatched deletes those keys of a shard that are due and watched.
func (e *Local) expireWatched(sh *shard) {
	now := e.nowMs()
	var due []string
	sh.mu.Lock()
	for key := range sh.watchers {
		r := sh.table.Get([]byte(key), maphash.String(e.seed, key))
		if r.Live() && r.DeadlineMs() != 0 && r.DeadlineMs() <= now {
			due = append(due, key)
		}
	}
	sh.mu.Unlock()
	for some := range slices.Chunk(due, expireAtOnce) {
		e.journal.Admit()
		sh.mu.Lock()
		for _, key := range some {
			e.expire(sh, sh.table.Get([]byte(key), maphash.String(e.seed, key)))
		}
		sh.mu.Unlock()
	}
}

// expireSome returns how many keys it has deleted.
func (e *Local) expireSome(sh *shard) (n int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for ; n < expireAtOnce; n++ {
		r := sh.table.First()
		if !r.Exists() || !e.expire(sh, r) {
			break
		}
	}
	return n
}

// makeRoom deletes some keys whose time has come ahead of the loop, for a write that
// was refused because of a quota. It returns false if there are none, or if the quota
// is one that they don't count against. A stripe of keys may be held.
func (e *Local) makeRoom(refusedBy statestore.Bound) bool {
	switch refusedBy {
	case statestore.MaxKeys, statestore.MaxBytes, statestore.MaxKeysOfClient, statestore.MaxBytesOfClient, statestore.MaxMemory:
	default:
		return false
	}
	now := e.nowMs()
	for i := range e.shards {
		if sh := &e.shards[i]; sh.next.Load() <= now && e.expireSome(sh) > 0 {
			return true
		}
	}
	return false
}

// expire deletes the record's entry if its deadline has come. The shard's lock
// is held; the record stays as a tombstone.
func (e *Local) expire(sh *shard, r table.Record) bool {
	if !r.Live() || r.DeadlineMs() == 0 {
		return false
	}
	d := e.newDecision()
	defer d.release()
	key := sh.table.Key(r)
	d.value = append(d.value[:0], key...)
	key = d.value // the record's own goes with it
	d.decide(sh, key, r, nil, func(d *decision, stored *statestore.Entry) {
		statestore.Expire(key, stored, &d.env, &d.res)
	})
	if !d.res.Changed {
		return false
	}
	e.expired.Add(1)
	d.carryOut(sh, key, maphash.Bytes(e.seed, key), r, nil)
	return true
}

// warnOfClock says what said finds worth saying. It belongs to the expiry's loop.
func (e *Local) warnOfClock(said *ahead.Warnings) {
	s := e.Stats()
	if said.Say(e.o.Logger, time.Duration(s.AheadMs)*time.Millisecond, e.o.MaxSkew, s.AheadBy, e.clock.SinceStart()) && s.AheadBy != "" {
		e.mu.Lock()
		e.aheadBy = "" // the next time it may be another reason
		e.mu.Unlock()
	}
}
