package node

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
)

// storing is what waits for the storer.
type storing struct {
	wake  chan struct{}
	since atomic.Int64 // when it began with what it stores, by Node.now; 0: it waits for work

	mu       lockrank.Mutex[lockrank.ReplicaQueue]
	messages []*raftpb.Message // guarded by mu
	tables   uint64            // guarded by mu: up to this entry the database's tables have the rows
	long     func()            // guarded by mu: has tables written; nil: there is no journal
}

// add gives messages to the storer. What need not be stored at once waits for what must.
func (s *storing) add(m []*raftpb.Message) {
	if len(m) == 0 {
		return
	}
	s.mu.Lock()
	s.messages = append(s.messages, m...)
	s.mu.Unlock()
	if slices.ContainsFunc(m, consensus.CannotWait) {
		s.wakeUp()
	}
}

func (s *storing) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // the storer is about to look
	}
}

// take takes what there is to be stored.
func (s *storing) take() (m []*raftpb.Message, tables uint64, long func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, s.messages = s.messages, nil
	return m, s.tables, s.long
}

// setTables tells up to which entry tables have the rows, and how to have more written.
func (s *storing) setTables(index uint64, long func()) {
	s.mu.Lock()
	s.tables, s.long = max(s.tables, index), long
	s.mu.Unlock()
	s.wakeUp()
}

// store is the storer's loop: it alone writes to the log.
func (n *Node) store() {
	defer n.guard("the node's log")
	var asked uint64          // tables were asked for when they ended here,
	var askedAt time.Duration // and at this time, by now
	var looked time.Duration  // at the free space, by now
	for {
		select {
		case <-n.ending.Done():
			return
		case <-n.storing.wake:
		}
		if now := n.now(); looked == 0 || now-looked > spacePause {
			looked = now
			n.lookAtSpace()
		}
		messages, tables, long := n.storing.take()
		n.storing.since.Store(int64(n.now()))
		if err := n.storeAll(messages); errors.Is(err, ErrStopped) {
			return
		} else if err != nil {
			n.fail(fmt.Errorf("entries or votes could not be written: %w", err))
			return
		}
		n.storing.since.Store(0)
		if len(messages) > 0 && !n.do(func() {
			for _, m := range messages {
				n.send(n.core.Stored(m))
				n.work()
			}
		}) {
			return
		}
		if err := n.trim(tables); err != nil {
			n.fail(fmt.Errorf("the log could not be trimmed: %w", err))
			return
		}
		if unwritten := n.log.Bytes() - n.log.Droppable(tables); unwritten > n.o.LogKeep/2 && long != nil && (asked != tables+1 || n.now()-askedAt > tablesPause) {
			asked, askedAt = tables+1, n.now()
			long()
			time.AfterFunc(tablesPause+tablesPause/8, n.storing.wakeUp) // a cluster without writes has nothing else that wakes it
		}
	}
}

// tablesPause is when tables are asked for again that have not been written: the rows may not
// have been in the database yet.
const tablesPause = 200 * time.Millisecond

// spacePause is how often the storer looks at the free space.
const spacePause = 250 * time.Millisecond

// lookAtSpace notes whether the disk has room for a leader's entries: a quarter of the reserve
// that a server keeps, below which it accepts no write that makes its data grow, is left for
// tables and for what this node has to store itself.
func (n *Node) lookAtSpace() {
	usage, err := n.o.FS.GetDiskUsage(n.o.Dir)
	if err != nil {
		return
	}
	reserve, _ := datadir.NewSpace(n.o.FS, n.o.Dir, 0, n.o.Logger).Reserve()
	full := usage.AvailBytes < uint64(reserve)/4
	if n.full.Swap(full) == full {
		return
	}
	if full {
		n.o.Logger.Error("the disk is full: this node takes nothing more from the leader until there is room", "node", n.o.Name, "dir", n.o.Dir, "free_bytes", usage.AvailBytes)
	} else {
		n.o.Logger.Info("the disk has room again", "node", n.o.Name, "dir", n.o.Dir, "free_bytes", usage.AvailBytes)
	}
}

// trimShare of Options.LogKeep is what is trimmed at once at least: each time costs an fsync.
const trimShare = 16

// trim drops the entries that tables have, the last of which is tables, and that need not be
// kept for others: more than half of LogKeep only if a node that answers lacks them, and more
// than LogKeep only while a node gets a snapshot, and then goes on from there.
func (n *Node) trim(tables uint64) error {
	keep, most := n.o.LogKeep, n.o.LogKeep
	if n.generous.Load() {
		most = n.logWhileSending()
	}
	before := max(n.log.Before(keep/2, min(tables, n.needed.Load())), n.log.Before(most, tables))
	if n.log.Droppable(before) < keep/trimShare {
		return nil
	}
	return n.log.Compact(before)
}

// makeRoom releases the room that is kept on the disk, because the log found none. True: there
// was some.
func (n *Node) makeRoom() bool {
	n.mu.Lock()
	ofJournal := n.noRoom
	n.mu.Unlock()
	if ofJournal != nil {
		return ofJournal()
	}
	return datadir.NewSpace(n.o.FS, n.o.Dir, 0, n.o.Logger).ReleaseBallast("the node's log found no room on the disk: going on in the room that was kept")
}

// storeAll makes what messages say durable, with one fsync.
func (n *Node) storeAll(messages []*raftpb.Message) error {
	var sync bool
	for _, m := range messages {
		if s, at, isSnapshot := consensus.SnapshotOf(n.log, m); isSnapshot {
			if err := n.install(s, at); err != nil {
				return err
			}
		}
		wrote, err := consensus.Store(n.log, m)
		if err != nil {
			return err
		}
		sync = sync || wrote
	}
	if !sync {
		return nil
	}
	return n.log.Sync()
}
