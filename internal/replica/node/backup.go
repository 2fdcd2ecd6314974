package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
)

// appliedPause is how often AwaitApplied looks.
const appliedPause = 10 * time.Millisecond

// Committed is the index of the last entry that a quorum has, of a node that leads: what any leader has
// acknowledged before the call is in the entries up to it. It fails with consensus.ErrNotLeader, or
// ErrStopped.
func (n *Node) Committed() (index uint64, err error) {
	n.mu.Lock()
	o := n.office
	n.mu.Unlock()
	if o == nil || !o.AwaitRead() {
		return 0, consensus.ErrNotLeader
	}
	// A batch's Commit returns a moment before the entry's index is noted; deciding is held until then.
	if !n.do(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		index = n.committed
	}) {
		return 0, ErrStopped
	}
	return index, nil
}

// AwaitApplied waits until the database of this node has the rows of all entries up to index, which is
// committed. It fails with ErrStopped, or ctx's error.
func (n *Node) AwaitApplied(ctx context.Context, index uint64) error {
	tick := time.NewTicker(appliedPause)
	defer tick.Stop()
	for !n.hasApplied(index) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			given := n.given.Load()
			return fmt.Errorf("this node has %d of the log's %d entries: %w", min(given, index), index, ctx.Err())
		case <-n.ending.Done():
			return ErrStopped
		}
	}
	return nil
}

// hasApplied says whether the database has an entry: Replay has given it to the journal, or the journal has
// all that is committed, because it commits batches in the office of this moment.
func (n *Node) hasApplied(index uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.checkpoint != nil && (n.given.Load() >= index || n.commits != nil && n.commits == n.office)
}

// Database is a node's database as package backup sees it.
type Database struct{ n *Node }

// Database gives it. It is the same for each call.
func (n *Node) Database() Database { return Database{n} }

// FS is the file system that it is on.
func (d Database) FS() vfs.FS { return d.n.o.FS }

// TableSize says how many tables it has, and their bytes; 0: no journal is open.
func (d Database) TableSize() (tables int, bytes int64) {
	d.n.mu.Lock()
	size := d.n.tableSize
	d.n.mu.Unlock()
	if size == nil {
		return 0, 0
	}
	return size()
}

var errNoJournal = errors.New("the data of this node are not open at the moment: try again")

// Checkpoint copies it, as journal.LogOptions.Copy does.
func (d Database) Checkpoint(dir string, copies bool) error {
	d.n.mu.Lock()
	checkpoint := d.n.checkpoint
	d.n.mu.Unlock()
	if checkpoint == nil {
		return errNoJournal
	}
	return checkpoint(dir, copies)
}
