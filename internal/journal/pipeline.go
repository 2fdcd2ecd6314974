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
// thousand. So callers don't commit: they append to the batch that is filling,
// and one goroutine, the committer, moves batches to disk.
//
//	callers ──append──▶ filling ──seal──▶ sealed ──write, fsync──▶ durable ──call──▶ complete
//	                       │                            │              │
//	                 under mu, a memcpy            the log         to Pebble, later and
//	                                              (package wal)    by others (apply.go)
//
// The committer takes the filling batch as soon as it has rows, puts an empty one
// in its place, writes it to the log and waits for the fsync. While the disk works
// the next batch fills with all that comes meanwhile: batches grow with the load by
// themselves, and latency stays near one fsync and a half. Then it calls the waiters.
//
// One batch is on its way at a time, and one goroutine does all of it. With two of
// each the disk need not wait for the callbacks; but the waiters are then spread
// over two batches, and an fsync, its wake-ups and a write to each client are paid
// for half as many rows: SETs and publishes took a tenth to a fifth more of a
// processor, and there were no more of them in a second, with 1 to 3,200 waiting.
//
// Who may touch what. Everything about a batch is guarded by Journal.mu, with
// two exceptions: once sealed, its rows belong to the committer; and so does a
// list of waiters that it has taken out of the batch. No I/O and no callback
// happens under mu. Callers hold their own locks (a shard's, a session's) while
// they append or await; callbacks take those same locks, and that is sound because
// the committer holds none when it calls.
//
// Complete against a late Await. A waiter registered for batch s must be
// called, and an answer of false from Await must mean that every callback of s
// has returned: otherwise a reply given at once could overtake one that is
// about to be given. So complete only moves while mu is held and the batch's
// list is seen empty. The committer takes the list, calls it without the lock,
// and looks again; waiters that came meanwhile are called in the next round, still
// in the order in which they came. If clients keep asking for what the batch
// wrote, faster than one goroutine can answer, that would never end; so after a
// few rounds Admit blocks, and each caller gets in one more waiter at most.
//
// With another Durability than Sync the log returns from Commit when a batch is
// written (durability.go).
//
// Failure. When a commit fails, or does not end within CommitTimeout, memory
// may hold what the disk does not. The journal stops where it is: no further
// callback runs, and Fatal is called, once, which by default ends the process.

// Seq numbers batches, rising by one from 1 within one run of the process.
// Zero stands for "nothing to wait for": what was loaded at start, for example.
type Seq uint64

// A Waiter is called when its batch is durable: in the order of batches, and
// within a batch in the order of registration, always by the same goroutine.
// Durable works in memory only and must not block; the next batch's callbacks
// wait for it. It may append, and it may await.
type Waiter interface{ Durable(batch Seq) }

// patientRounds is how many lists of late waiters the committer calls before
// it makes Admit block until there are none.
const patientRounds = 3

type batch struct {
	seq     Seq
	rows    *pebble.Batch
	waiters []Waiter
	sealed  time.Duration // when, by uptime
}

// An Append is the right to add rows to the filling batch, from Begin to End.
// The rows of one Append are in one batch: after a crash either all of them
// are there or none.
type Append struct {
	j *Journal
	b *batch
}

// Begin locks the filling batch. Between it and End nothing but the methods of
// Append may be called: all other writers wait.
func (j *Journal) Begin() Append {
	j.mu.Lock()
	return Append{j: j, b: j.filling}
}

// Seq is the number that End will return, for a waiter that wants to know it:
// once End has returned, the waiter may have been called already.
func (a Append) Seq() Seq { return a.b.seq }

// Set adds a row, or replaces it. Both arguments are copied.
func (a Append) Set(key, value []byte) {
	_ = a.b.rows.Set(key, value, nil) // fails only on an indexed batch
}

// SetDeferred adds a row whose key and value the caller fills in place, all of
// both, before it calls anything else on this Append.
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
	j.mu.Unlock()
	return s
}

// Await asks for w to be called when batch s is durable. False means that s is
// complete already, callbacks included, and that w will not be called. A
// caller that awaits at a client's pace calls Admit in between.
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
		return true // dropped, like the rows that it would wait for
	}
	b := j.batch(s)
	b.waiters = append(b.waiters, w)
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

// Complete is the newest batch that is durable and whose callbacks have all
// returned; so are all before it.
func (j *Journal) Complete() Seq { return Seq(j.complete.Load()) }

// Applied is the newest batch whose rows, and those of all before it, Probe sees.
func (j *Journal) Applied() Seq { return Seq(j.appliedTo.Load()) }

// Last is the newest batch that anything was appended to. What Iterate or Get
// returned was appended in this batch or before it, if Last is asked after.
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

// Admit blocks while the filling batch is larger than Options.BatchBytes, or
// while late waiters keep a batch from completing. Call it before a write and
// after an Await, with no lock held, and never from a callback: it is how a disk
// that does not keep up slows down the callers that depend on it, and only those.
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

// relax lets callers of Admit go on, unless there is another reason to hold them.
// mu is held.
func (j *Journal) relax() {
	if !j.tooLarge && !j.tooLate {
		j.slow.Store(false)
		j.moved.Broadcast()
	}
}

// WaitDurable blocks until everything that was appended before the call is durable,
// which is when Iterate and Get see it. Not to be called from a callback.
func (j *Journal) WaitDurable() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for target := j.last(); j.durable < target && j.err == nil; {
		j.moved.Wait()
	}
}

// runCommitter is the committer. It ends when the journal is closed and drained, or
// has failed.
func (j *Journal) runCommitter() {
	defer close(j.drained)
	defer failstop.End(j.o.Logger, "the journal's committer")
	for {
		b := j.seal()
		if b == nil {
			return
		}
		j.addMeta(b)
		number, err := j.log.Commit(rowsOf(b.rows))
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

// seal waits for rows and takes them; nil means that there is no more to do.
func (j *Journal) seal() *batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.err == nil && !j.dirty && !j.closing {
		j.work.Wait()
	}
	if j.dirty && j.lastRows > 1 {
		// Other goroutines are at work: one that can run now may be about to append, too.
		j.mu.Unlock()
		runtime.Gosched()
		j.mu.Lock()
	}
	if j.err != nil {
		return nil
	}
	if j.closing {
		j.closed = true // what comes from here on is dropped
	}
	if !j.dirty {
		return nil
	}
	b := j.filling
	j.lastRows = b.rows.Count()
	b.sealed = j.uptime.now()
	j.sealed, j.filling = b, j.free
	j.filling.seq = b.seq + 1
	j.dirty = false
	j.tooLarge = false
	j.relax()
	return b
}

// addMeta puts the meta record into the batch, if it is not the one on disk.
// It is read after the batch was sealed, so it covers every row in it.
func (j *Journal) addMeta(b *batch) {
	f := j.metaFunc.Load()
	if f == nil {
		return
	}
	j.metaNext = (*f)(j.metaNext[:0])
	if string(j.metaNext) == string(j.metaLast) {
		return
	}
	_ = b.rows.Set(MetaKey, j.metaNext, nil)
	j.metaLast = append(j.metaLast[:0], j.metaNext...)
}

// callWaiters calls the waiters of a durable batch until there are no more, then
// publishes the batch as complete. False: the journal has failed meanwhile.
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
			w.Durable(b.seq)
		}
		j.spareWaiters = waiters
	}
	b.rows.Reset()
	j.complete.Store(uint64(b.seq))
	j.sealed, j.free = nil, b
	j.tooLate = false
	j.relax()
	j.mu.Unlock()
	return true
}

// failure is why the journal has failed; nil: it has not.
func (j *Journal) failure() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// fail stops the journal, and says why to Options.Fatal the first time.
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
	}
}

// runWatchdog fails the journal when a batch stays under way for too long. On
// a full disk Pebble retries its flushes forever and writers wait without an
// error: nothing but the clock tells. Close may wait for them, so it ends last.
func (j *Journal) runWatchdog() {
	defer failstop.End(j.o.Logger, "the journal's watchdog")
	limit := j.o.CommitTimeout
	interval := max(limit/8, time.Millisecond)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	j.uptime.watch()
	for {
		select {
		case <-j.idle:
			return
		case <-j.failed:
			return
		case <-tick.C:
			if err := j.stuck(j.uptime.tick(interval), limit); err != nil {
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
	case late && j.waitsForPebble, j.giving.isLate(now, limit):
		return fmt.Errorf("tables have not reached the disk within %v, and no more rows can wait for them: is the disk full, or hanging? What was acknowledged is in the log", limit)
	case late && j.sealed.seq <= j.durable:
		return fmt.Errorf("the callbacks of batch %d have not returned within %v", j.sealed.seq, limit)
	case late:
		return fmt.Errorf("batch %d has not reached the disk within %v: is the disk full, or hanging?", j.sealed.seq, limit)
	case j.syncing.isLate(now, limit):
		return fmt.Errorf("the log has not reached the disk within %v: is the disk full, or hanging?", limit)
	}
	return nil
}
