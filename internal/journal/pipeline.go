package journal

import (
	"fmt"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

// The pipeline
//
// A commit costs an fsync, and an fsync costs the same for one row as for ten
// thousand. So callers do not commit. They append to the filling batch, and one
// goroutine, the committer, moves batches to disk.
//
//	callers ──append──▶ filling ──seal──▶ sealed ──write, fsync──▶ durable ──call──▶ complete
//	                       │                            │              │
//	                 under mu, a memcpy            the log         to Pebble, later,
//	                                              (package wal)    by the applier (apply.go)
//
// The committer takes the filling batch as soon as it has rows and most of those that are about to
// write have come (gather.go), puts an empty batch in its place, writes the taken one to the log and
// waits for the fsync. Then it calls the waiters. While the disk works, the next batch fills: batches
// grow with the load, and latency stays near one and a half fsyncs.
//
// One batch at a time is sealed, and one goroutine does all of the work on it. With two
// batches and two goroutines the disk would not wait for the callbacks. But then each
// fsync, with its wake-ups and its write to each client, serves half as many rows: SETs and
// publishes took 10 to 20 % more processor time, and their number per second did not rise,
// with 1 to 3,200 of them waiting. The same holds in a cluster of three on one machine, where
// a commit takes several times as long: with 800 SETs waiting and a second batch under way,
// the nodes took 10 % more processor time, and there were no more SETs in a second.
//
// Ownership. Journal.mu guards everything about a batch, with two exceptions: the rows of
// a sealed batch belong to the committer, and so does a list of waiters that it has taken
// out of the batch. No I/O and no callback happens under mu. Callers hold their own locks
// (a shard's, a session's) while they append or await. Callbacks acquire the same locks,
// which cannot deadlock because the committer holds no lock when it calls them.
//
// Completion and a late Await. A waiter registered for batch s must be called, and Await
// may return false only when every callback of s has returned: otherwise a reply that is
// sent at once could overtake one that a callback is about to send. So the committer
// publishes a batch as complete only while it holds mu and the batch's list of waiters is
// empty. It takes the list, calls the waiters without mu, and checks the list again; it
// calls waiters that were added meanwhile in the next round, in their order. If clients
// kept asking for what the batch wrote, faster than the committer calls waiters, that would
// never end. So after a few rounds Admit blocks, and each caller adds one more waiter at
// most.
//
// With another Durability than Sync, Commit of the log returns when a batch is written
// (durability.go).
//
// Failure. When a commit fails, or does not end within CommitTimeout, memory may hold
// changes that the disk does not. The journal then stops: no further callback runs, and it
// calls Fatal once, which by default ends the process.

// Seq numbers batches, rising by one from 1 within one run of the process.
// Zero means that there is nothing to wait for, for example for rows that the start read.
type Seq uint64

// A Waiter is called when its batch is durable: in the order of batches, and
// within a batch in the order of registration, always by the same goroutine.
// Durable works in memory only and must not block; the next batch's callbacks
// wait for it. It may append, and it may await. Waiters are compared: the same one is the same caller.
type Waiter interface{ Durable(batch Seq) }

// patientRounds is how many lists of late waiters the committer calls before it makes
// Admit block until the batch has no more waiters.
const patientRounds = 3

type batch struct {
	seq     Seq
	rows    *pebble.Batch
	waiters []Waiter
	sealed  time.Duration // when it was sealed, by uptime
}

// An Append is the right to add rows to the filling batch, from Begin to End.
// The rows of one Append are in one batch: after a crash either all of them
// are there or none.
type Append struct {
	j *Journal
	b *batch
}

// Begin locks the filling batch. Until End the caller may only call methods of the Append:
// all other writers wait for it.
func (j *Journal) Begin() Append {
	j.mu.Lock()
	return Append{j: j, b: j.filling}
}

// Seq is the number that End will return. A waiter that needs the number must get it
// before End, because the journal may call the waiter before End returns.
func (a Append) Seq() Seq { return a.b.seq }

// Set adds a row, or replaces it. Both arguments are copied.
func (a Append) Set(key, value []byte) {
	_ = a.b.rows.Set(key, value, nil) // fails only on an indexed batch
}

// SetDeferred adds a row and returns its key and value for the caller to fill. The caller
// must fill all of both before it calls another method of this Append.
func (a Append) SetDeferred(keyLen, valueLen int) (key, value []byte) {
	op := a.b.rows.SetDeferred(keyLen, valueLen)
	return op.Key, op.Value
}

// Delete removes a row; it need not exist. key is copied.
func (a Append) Delete(key []byte) {
	_ = a.b.rows.Delete(key, nil)
}

// DeleteRange removes every row with from <= key < to. Both are copied.
func (a Append) DeleteRange(from, to []byte) {
	_ = a.b.rows.DeleteRange(from, to, nil)
}

// End unlocks the batch and returns its number. w, if not nil, is called when
// the batch is durable. After Close the rows are dropped and w is never called:
// no caller is told that they are durable.
func (a Append) End(w Waiter) Seq {
	j, b, s := a.j, a.b, a.b.seq // b may be another batch as soon as mu is free
	if j.closed {
		b.rows.Reset()
		j.mu.Unlock()
		return s
	}
	if w != nil {
		b.waiters = append(b.waiters, w)
	}
	if !j.dirty {
		j.dirty = true
		j.work.Signal()
	}
	if !j.tooLarge && b.rows.Len() > j.o.BatchBytes {
		j.tooLarge = true
		j.slow.Store(true)
	}
	j.tellGatherer()
	j.mu.Unlock()
	return s
}

// Await makes the journal call w when batch s is durable. False means that s is complete
// already, callbacks included, and that the journal will not call w. A caller that awaits
// once for each request of a client calls Admit between the requests.
func (j *Journal) Await(s Seq, w Waiter) bool {
	if s <= j.Complete() {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if s <= j.Complete() {
		return false
	}
	if j.closed && s == j.filling.seq {
		return true // w is never called: Close has dropped the rows of this batch
	}
	b := j.batch(s)
	b.waiters = append(b.waiters, w)
	j.tellGatherer()
	return true
}

// batch finds the batch numbered s, which is not complete. mu is held.
func (j *Journal) batch(s Seq) *batch {
	if s == j.filling.seq {
		return j.filling
	}
	if j.sealed != nil && s == j.sealed.seq {
		return j.sealed
	}
	panic(fmt.Sprintf("journal: batch %d was never given out (filling is %d)", s, j.filling.seq))
}

// Complete is the newest complete batch: it and all batches before it are durable, and all
// of their callbacks have returned.
func (j *Journal) Complete() Seq { return Seq(j.complete.Load()) }

// Applied is the newest batch whose rows, and those of all before it, Probe sees.
func (j *Journal) Applied() Seq { return Seq(j.appliedTo.Load()) }

// Last is the newest batch that has rows. If the caller calls Last after Iterate or Get,
// the rows that these returned are in that batch or in an earlier one.
func (j *Journal) Last() Seq {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last()
}

func (j *Journal) last() Seq {
	if j.dirty {
		return j.filling.seq
	}
	return j.filling.seq - 1
}

// Admit blocks while the filling batch is larger than Options.BatchBytes, or while late
// waiters keep a batch from completing. So a disk that does not keep up slows down the
// callers that depend on it, and only those. Call Admit before a write and after an Await,
// with no lock held, and never from a callback.
func (j *Journal) Admit() {
	if !j.slow.Load() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.slow.Load() && !j.closed && j.err == nil {
		j.moved.Wait()
	}
}

// relax lets callers of Admit continue, if neither of the reasons to block holds any more.
// mu is held.
func (j *Journal) relax() {
	if !j.tooLarge && !j.tooLate {
		j.slow.Store(false)
		j.moved.Broadcast()
	}
}

// WaitDurable blocks until everything that was appended before the call is durable and
// visible to Iterate and Get. A callback must not call it.
func (j *Journal) WaitDurable() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for target := j.last(); j.durable < target && j.err == nil; {
		j.moved.Wait()
	}
}

// runCommitter is the committer's loop. It ends when the journal is closed and all rows are
// durable, or when the journal has failed.
func (j *Journal) runCommitter() {
	defer close(j.drained)
	defer failstop.End(j.o.Logger, "the journal's committer")
	for {
		b := j.seal()
		if b == nil {
			return
		}
		j.addMeta(b)
		rows := rowsOf(b.rows)
		j.batchBytes.Observe(int64(len(rows)))
		begun := time.Now()
		number, err := j.log.Commit(rows)
		j.gathering.commit = time.Since(begun)
		if err != nil {
			j.fail(fmt.Errorf("batch %d could not be written: %w", b.seq, err))
			return
		}
		j.addPending(b, number)
		if !j.callWaiters(b) {
			return
		}
		if j.o.Idle != nil {
			j.o.Idle()
		}
	}
}

// seal waits for rows and seals their batch. It returns nil when the journal is closed and
// has no more rows, or has failed.
func (j *Journal) seal() *batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.err == nil && !j.dirty && !j.closing {
		j.work.Wait()
	}
	if j.dirty && j.lastRows > 1 {
		// The last batch had several rows, so other goroutines probably write: one that is
		// ready to run may be about to append.
		j.mu.Unlock()
		runtime.Gosched()
		j.mu.Lock()
	}
	if j.dirty && !j.closing {
		j.gather()
	}
	if j.err != nil {
		return nil
	}
	if j.closing {
		j.closed = true // End drops later rows
	}
	if !j.dirty {
		return nil
	}
	b := j.filling
	j.lastRows = b.rows.Count()
	b.sealed = j.uptime.Now()
	j.sealed, j.filling = b, j.free
	j.filling.seq = b.seq + 1
	j.dirty = false
	j.tooLarge = false
	j.relax()
	return b
}

// addMeta adds the meta record to the batch, if it differs from the one on disk. It asks
// for the record after the batch was sealed, so the record covers every row of the batch.
func (j *Journal) addMeta(b *batch) {
	f := j.metaFunc.Load()
	if f == nil {
		return
	}
	j.metaNext = (*f)(j.metaNext[:0], b.seq)
	if string(j.metaNext) == string(j.metaLast) {
		return
	}
	_ = b.rows.Set(MetaKey, j.metaNext, nil)
	j.metaLast = append(j.metaLast[:0], j.metaNext...)
}

// callWaiters calls the waiters of a durable batch until it has no more, then publishes
// the batch as complete. It returns false if the journal has failed meanwhile.
func (j *Journal) callWaiters(b *batch) bool {
	for round := 0; ; round++ {
		j.mu.Lock()
		if j.err != nil {
			j.mu.Unlock()
			return false
		}
		if len(b.waiters) == 0 {
			break
		}
		if round > patientRounds {
			j.tooLate = true
			j.slow.Store(true)
		}
		waiters := b.waiters
		b.waiters, j.spareWaiters = j.spareWaiters[:0], nil
		j.mu.Unlock()
		for i, w := range waiters {
			waiters[i] = nil
			j.gathering.call(w)
			w.Durable(b.seq)
		}
		j.spareWaiters = waiters
	}
	b.rows.Reset()
	next := j.filling.waiters // more may be appended, these do not change until seal
	j.complete.Store(uint64(b.seq))
	j.sealed, j.free = nil, b
	j.tooLate = false
	j.relax()
	j.mu.Unlock()
	j.gathering.complete(j.lastRows, next)
	return true
}

// failure is why the journal has failed; nil: it has not.
func (j *Journal) failure() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// fail stops the journal. The first call passes the reason to Options.Fatal.
func (j *Journal) fail(err error) {
	if j.lastBackground.Load() != nil {
		err = fmt.Errorf("%w (Pebble's last background error: %w)", err, *j.lastBackground.Load())
	}
	err = fmt.Errorf("journal %s: %w", j.o.Dir, err)
	j.mu.Lock()
	first := j.err == nil
	if first {
		j.err = err
		close(j.failed)
		j.work.Broadcast()
		j.moved.Broadcast()
	}
	j.mu.Unlock()
	if first {
		j.o.Fatal(err)
		j.endWaits()
	}
}

// Over is closed when the journal calls no waiter any more: it is closed, or has failed and
// Options.Fatal has returned. What a waiter still waits for is not known to be durable.
func (j *Journal) Over() <-chan struct{} { return j.over }

// runWatchdog fails the journal when a batch or a task does not end within CommitTimeout.
// On a full disk Pebble retries its flushes forever and writers wait without an error, so
// only the clock shows it. Close may wait for such a writer, so the watchdog ends last.
func (j *Journal) runWatchdog() {
	defer failstop.End(j.o.Logger, "the journal's watchdog")
	limit := j.o.CommitTimeout
	interval := max(limit/8, time.Millisecond)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	j.uptime.Watch()
	for {
		select {
		case <-j.idle:
			return
		case <-j.failed:
			return
		case <-tick.C:
			if err := j.stuck(j.uptime.Tick(interval), limit); err != nil {
				j.fail(err)
				return
			}
		}
	}
}

// stuck says what has been under way for longer than limit; nil: nothing.
func (j *Journal) stuck(now, limit time.Duration) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	late := j.sealed != nil && now-j.sealed.sealed > limit
	switch {
	case late && j.waitsForPebble, j.giving.IsLate(now, limit):
		return fmt.Errorf("tables have not reached the disk within %v, and no more rows can wait for them: is the disk full, or hanging? What was acknowledged is in the log", limit)
	case late && j.sealed.seq <= j.durable:
		return fmt.Errorf("the callbacks of batch %d have not returned within %v", j.sealed.seq, limit)
	case late && j.o.Log == nil: // another log may wait for other machines, and its owner watches the disk
		return fmt.Errorf("batch %d has not reached the disk within %v: is the disk full, or hanging?", j.sealed.seq, limit)
	case j.syncing.IsLate(now, limit):
		return fmt.Errorf("the log has not reached the disk within %v: is the disk full, or hanging?", limit)
	}
	return nil
}
