// Package lag measures how far a follower is behind its leader, by what the leader says in its
// messages. Package node calls it for each message; the health of a node and its metrics are
// told by it.
package lag

import (
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// certain is how many heartbeats of a leader that sends no entries say that the follower has all
// of them. A leader answers the answer to its first one with entries, if the follower lacks any.
const certain = 2

// Meter is how far one node is behind. Heard may be called by one goroutine, Behind and Last by any. The
// zero value has heard nothing.
type Meter struct {
	term, leader uint64 // of the last message; Heard's
	heartbeats   int    // of that leader; Heard's

	last      atomic.Int64  // what Last gives
	committed atomic.Uint64 // index of the last entry that the leader has said to be committed
	known     atomic.Bool   // the leader has said where it is
}

// Heard takes note of a message of another node, at a time of a clock that the caller chooses.
func (m *Meter) Heard(message *raftpb.Message, now time.Duration) {
	kind := message.GetType()
	if kind != raftpb.MsgApp && kind != raftpb.MsgHeartbeat || message.GetTerm() < m.term {
		return
	}
	m.last.Store(int64(now))
	if message.GetTerm() != m.term || message.GetFrom() != m.leader {
		m.term, m.leader, m.heartbeats = message.GetTerm(), message.GetFrom(), 0
		m.known.Store(false)
	}
	if kind == raftpb.MsgHeartbeat { // its index is that of this node, if this node has less than the leader
		if m.heartbeats++; m.heartbeats >= certain {
			m.known.Store(true)
		}
		return
	}
	m.committed.Store(max(m.committed.Load(), message.GetCommit()))
	m.known.Store(true)
}

// Last is when a leader was heard last; 0: none was.
func (m *Meter) Last() time.Duration { return time.Duration(m.last.Load()) }

// Behind is how many committed entries a node lacks that has those up to index; false: it has
// not yet heard from its leader what there is.
func (m *Meter) Behind(index uint64) (entries uint64, known bool) {
	committed := m.committed.Load()
	return committed - min(index, committed), m.known.Load()
}
