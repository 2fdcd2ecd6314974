package consensus

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

// Store appends to the log what a message of Work.Store says, except for its snapshot. If
// sync is true, Log.Sync must return before Core.Stored is called; otherwise nothing was
// written, because only the index of the last committed entry has changed, and it tells of no
// removal (removals.go).
func Store(l *raftlog.Log, m *raftpb.Message) (sync bool, err error) {
	before := l.State()
	s := stateOf(before, m)
	if len(m.GetEntries()) == 0 && s.Term == before.Term && s.Vote == before.Vote && !mustKeep(m) {
		l.SetCommit(s.Commit)
		return false, nil
	}
	return true, l.Append(s, m.GetEntries())
}

// CannotWait says whether a message of Work.Store is to be stored without waiting for a later one:
// entries are to be durable, or something is to be sent when it is stored. Another one tells how far
// entries are committed, or of a term in which this node has not answered yet.
func CannotWait(m *raftpb.Message) bool {
	return len(m.GetEntries()) > 0 || len(m.GetResponses()) > 0 || !raft.IsEmptySnap(m.GetSnapshot())
}

// stateOf is the state that m tells; without one in m, it is the one before.
func stateOf(before raftlog.State, m *raftpb.Message) raftlog.State {
	if m.Term == nil {
		return before
	}
	return raftlog.State{Term: m.GetTerm(), Vote: m.GetVote(), Commit: m.GetCommit()}
}

// SnapshotOf says which entry the snapshot of a message of Work.Store ends with; false: the
// message has none. The caller installs it before it calls Store: Log.BeginSnapshot with the
// state that is returned, then it replaces the state machine, durably, then Log.EndSnapshot.
func SnapshotOf(l *raftlog.Log, m *raftpb.Message) (s raftlog.State, at raftlog.Position, ok bool) {
	if raft.IsEmptySnap(m.GetSnapshot()) {
		return s, at, false
	}
	meta := m.GetSnapshot().GetMetadata()
	return stateOf(l.State(), m), raftlog.Position{Index: meta.GetIndex(), Term: meta.GetTerm()}, true
}
