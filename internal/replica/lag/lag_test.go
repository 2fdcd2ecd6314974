package lag

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

func message(kind raftpb.MessageType, from, term, commit uint64) *raftpb.Message {
	return &raftpb.Message{Type: &kind, From: &from, Term: &term, Commit: &commit}
}

func TestBehind(t *testing.T) {
	t.Parallel()
	var m Meter
	expect := func(step string, has, entries uint64, known bool) {
		t.Helper()
		if e, k := m.Behind(has); e != entries || k != known {
			t.Errorf("%s: %d entries, known %v; want %d, %v", step, e, k, entries, known)
		}
	}
	expect("before it has heard anything", 5, 0, false)
	m.Heard(message(raftpb.MsgHeartbeat, 1, 3, 5), 1)
	expect("after one heartbeat", 5, 0, false)
	m.Heard(message(raftpb.MsgHeartbeat, 1, 3, 5), 2)
	expect("after two, and no entries", 5, 0, true)
	m.Heard(message(raftpb.MsgApp, 1, 3, 100), 3)
	expect("after entries", 5, 95, true)
	expect("when it has them", 100, 0, true)
	expect("when it has more", 101, 0, true)
	m.Heard(message(raftpb.MsgApp, 2, 2, 500), 4) // of a former leader
	m.Heard(message(raftpb.MsgVote, 2, 4, 500), 5)
	expect("after what says nothing", 90, 10, true)
	if m.Last() != 3 {
		t.Errorf("a leader was heard at %d, want 3", m.Last())
	}
	m.Heard(message(raftpb.MsgHeartbeat, 2, 4, 90), 6)
	expect("after the first heartbeat of another leader", 90, 10, false)
	m.Heard(message(raftpb.MsgApp, 2, 4, 101), 7)
	expect("after its first entries", 90, 11, true)
}
