package node

import (
	"fmt"
	"sync/atomic"

	"go.etcd.io/raft/v3/raftpb"

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

func (s *storing) add(m []*raftpb.Message) {
	if len(m) == 0 {
		return
	}
	s.mu.Lock()
	s.messages = append(s.messages, m...)
	s.mu.Unlock()
	s.wakeUp()
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
	var asked uint64 // tables were asked for when they ended here
	for {
		select {
		case <-n.ending.Done():
			return
		case <-n.storing.wake:
		}
		messages, tables, long := n.storing.take()
		n.storing.since.Store(int64(n.now()))
		if err := n.storeAll(messages); err != nil {
			n.fail(fmt.Errorf("entries or votes could not be written: %w", err))
			return
		}
		n.storing.since.Store(0)
		for _, m := range messages {
			select {
			case n.stored <- m:
			case <-n.ending.Done():
				return
			}
		}
		if n.log.Bytes() <= n.o.LogKeep {
			continue
		}
		if err := n.log.Compact(n.log.Before(n.o.LogKeep/2, tables)); err != nil {
			n.fail(fmt.Errorf("the log could not be trimmed: %w", err))
			return
		}
		if n.log.Bytes() > n.o.LogKeep && long != nil && asked != tables+1 {
			asked = tables + 1
			long()
		}
	}
}

// storeAll makes what messages say durable, with one fsync.
func (n *Node) storeAll(messages []*raftpb.Message) error {
	var sync bool
	for _, m := range messages {
		if _, at, isSnapshot := consensus.SnapshotOf(n.log, m); isSnapshot {
			return fmt.Errorf("this node was away for too long: the leader has dropped the entries up to %d, and this version cannot send a node all data, so the node stays out of the cluster; a larger --cluster-log-keep on all nodes lets nodes be away for longer", at.Index)
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
