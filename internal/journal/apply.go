package journal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// From the log into Pebble
//
// A batch that is durable waits, with those before it, until a reader needs its rows
// in Pebble, or until applyBytes of rows have gathered and the applier gives them to
// Pebble. All pending rows then go in one batch of Pebble's. Of rows with the same
// key only the last one goes, so a key that is set over and over costs Pebble little, and
// of a message that is queued and soon acknowledged nothing goes (Options.New). They go in
// the order of their keys, so that each finds its place in the memtable near that of the
// one before.
//
// Readers see what is durable, no less and no more. A reader that wants to see what
// has been appended waits for that first (WaitDurable).

const (
	// applyBytes of rows make the applier come.
	applyBytes = 1 << 20
	// maxPendingBytes of rows make the committer wait: Pebble does not keep up.
	maxPendingBytes = 8 << 20
	// maxKeptPending bounds the memory of rows that is held on to.
	maxKeptPending = 4 << 20
)

// addPending leaves a durable batch's rows, which has a number in the log, to the applier
// and to readers. The committer's.
func (j *Journal) addPending(b *batch, number uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.pending) > maxPendingBytes && j.err == nil {
		j.waitsForPebble = true
		j.moved.Wait()
	}
	j.waitsForPebble = false
	j.durable, j.number = b.seq, number
	j.pending = append(j.pending, rowsOf(b.rows)...)
	if len(j.pending) > applyBytes {
		wake(j.toApply)
	}
}

// rowsOf are a batch's rows without what precedes them.
func rowsOf(b *pebble.Batch) []byte { return b.Repr()[batchrepr.HeaderLen:] }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // the receiver is about to look
	}
}

// applyPending gives Pebble all that is durable. Callers that come meanwhile wait, and find
// it done.
func (j *Journal) applyPending() error {
	j.applying.Lock()
	defer j.applying.Unlock()
	j.mu.Lock()
	rows, target, number := j.pending, j.durable, j.number
	if j.applied == target || j.err != nil {
		err := j.err
		j.mu.Unlock()
		return err
	}
	j.pending = j.sparePending[:0]
	j.mu.Unlock()

	err := j.apply(j.db, rows, number)
	if err != nil {
		err = fmt.Errorf("rows that are in the log could not be applied: %w", err)
		j.fail(err)
		return err
	}

	if cap(rows) > maxKeptPending {
		rows = nil
	}
	j.sparePending = rows
	j.mu.Lock()
	defer j.mu.Unlock()
	j.applied = target
	j.appliedTo.Store(uint64(target))
	j.moved.Broadcast()
	return nil
}

// apply gives Pebble the rows of batches up to number, and the news that it has them,
// as one batch. j.applying is held, or no other goroutine
// has the journal yet.
func (j *Journal) apply(to pebble.Writer, rows []byte, number uint64) error {
	j.giving.Begin(j.uptime)
	defer j.giving.End()
	merged := j.db.NewBatchWithSize(len(rows) + 64)
	defer merged.Close()
	if err := j.merging.Merge(merged, rows); err != nil {
		return err
	}
	_ = merged.Set(AppliedKey, binary.BigEndian.AppendUint64(nil, number), nil) // fails only on an indexed batch
	if j.o.Row != nil {
		key, value, err := j.o.Row(nil, number)
		if err != nil {
			return err
		}
		_ = merged.Set(key, value, nil)
	}
	if j.writing { // its first segment has been begun: an older program may have written those before
		_ = merged.Set(wal.LoggedKey, nil, nil)
	}
	return to.Apply(merged, pebble.NoSync)
}

// applyDurable gives Pebble everything that is durable, also what a replay has gathered.
func (j *Journal) applyDurable() error {
	if err := j.applyReplayed(); err != nil {
		return err
	}
	return j.applyPending()
}

// readApplied says up to which batch a view of Pebble has everything; 0 in a new one.
func readApplied(it *pebble.Iterator, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	var applied uint64
	if seekExact(it, AppliedKey) {
		var value []byte
		if value, err = it.ValueAndErr(); err == nil && len(value) != 8 {
			err = fmt.Errorf("the row %s has %d bytes", AppliedKey, len(value))
		}
		if err == nil {
			applied = binary.BigEndian.Uint64(value)
		}
	}
	return applied, errors.Join(err, it.Error(), it.Close())
}

// beginTables has what Pebble has in memory written as tables; the channel is closed when
// it is. Pebble may not be able to begin before it is done with others.
func (j *Journal) beginTables() (written <-chan struct{}, err error) {
	j.applying.Lock()
	defer j.applying.Unlock()
	j.giving.Begin(j.uptime)
	defer j.giving.End()
	return j.db.AsyncFlush()
}

// wantTables has what is in memory written as tables, so that the log is not needed.
func (j *Journal) wantTables() { wake(j.toFlush) }

// runApplier applies what has gathered, has tables written when the log is long, and
// removes those parts of the log that are in tables. It ends after the committer, which
// may have to wait for it until then (see addPending).
func (j *Journal) runApplier() {
	defer failstop.End(j.o.Logger, "the journal's applier")
	for {
		var err error
		select {
		case <-j.drained:
			return
		case <-j.failed:
			return
		case <-j.toApply:
			err = j.applyPending()
		case <-j.toFlush:
			if err = j.applyPending(); err == nil {
				_, err = j.beginTables()
			}
		case <-j.flushed:
			err = j.TrimLog()
		}
		if err != nil {
			j.fail(err)
		}
		j.CheckSpace() // much has been written since the last look
	}
}

// TrimLog removes what is in tables from the log. The journal does it by itself each time
// that tables were written; a test calls it.
func (j *Journal) TrimLog() error {
	applied, err := readApplied(j.db.NewIter(&pebble.IterOptions{OnlyReadGuaranteedDurable: true}))
	if err != nil {
		return err
	}
	if err := j.log.Trim(applied); err != nil {
		return fmt.Errorf("the log could not be trimmed: %w", err)
	}
	return nil
}
