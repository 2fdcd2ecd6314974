package raftlog

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// What the library reads, see raft.Storage.

// InitialState gives the state and the membership with which the library starts.
func (l *Log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	conf := l.o.Conf
	if conf == nil {
		conf = &raftpb.ConfState{}
	}
	return &raftpb.HardState{Term: &s.Term, Vote: &s.Vote, Commit: &s.Commit}, conf, nil
}

// Entries gives entries from lo on and before hi, of maxSize bytes at the most, but one at
// least. Those that are not in memory it reads from the files; where they end, it gives fewer.
func (l *Log) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	l.mu.Lock()
	switch {
	case lo <= l.base.Index:
		l.mu.Unlock()
		return nil, raft.ErrCompacted
	case hi > l.lastIndex()+1 || lo >= hi:
		l.mu.Unlock()
		return nil, raft.ErrUnavailable
	}
	if kept := l.kept; lo < kept {
		l.mu.Unlock()
		return l.readBack(lo, min(hi, kept), maxSize)
	}
	defer l.mu.Unlock()
	from, n, size := l.entries[lo-l.kept:hi-l.kept], 0, uint64(0)
	for _, e := range from {
		size += uint64(len(e.GetData())) + entryHeader
		if n > 0 && size > maxSize {
			break
		}
		n++
	}
	return append([]*raftpb.Entry(nil), from[:n]...), nil
}

// Term is the term of an entry, or of the one before the first.
func (l *Log) Term(index uint64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case index < l.base.Index:
		return 0, raft.ErrCompacted
	case index == l.base.Index:
		return l.base.Term, nil
	case index > l.lastIndex():
		return 0, raft.ErrUnavailable
	}
	return l.termOf(index), nil
}

// LastIndex is the index of the last entry.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastIndex(), nil
}

func (l *Log) lastIndex() uint64 { return l.kept + uint64(len(l.entries)) - 1 }

// FirstIndex is the index of the first entry that the log has, or will have.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base.Index + 1, nil
}

// Before is the index of the last entry that Compact can drop, if keep bytes of the files are
// to stay, and the entries behind most as well.
func (l *Log) Before(keep int64, most uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.base.Index, min(l.keeping(keep), most))
}

// Droppable is about how many bytes of the files Compact frees with an index.
func (l *Log) Droppable(index uint64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.placeBefore(index+1).at-l.first.at)
}

// Base is the entry behind which the log begins.
func (l *Log) Base() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base
}

// SetSnapshots sets what makes a snapshot of the state machine for a follower that needs
// entries which the log does not have any more. snapshots is called with no lock held and must
// not block; raft.ErrSnapshotTemporarilyUnavailable: the library is to ask again.
func (l *Log) SetSnapshots(snapshots func() (*raftpb.Snapshot, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snapshots = snapshots
}

// Snapshot gives a snapshot of the state machine.
func (l *Log) Snapshot() (*raftpb.Snapshot, error) {
	l.mu.Lock()
	snapshots := l.snapshots
	l.mu.Unlock()
	if snapshots == nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return snapshots()
}
