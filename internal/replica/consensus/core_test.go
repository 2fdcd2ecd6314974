package consensus

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// single is a world of one node, which leads.
func single(t *testing.T) *node {
	t.Helper()
	w := newWorld(plan{seed: 1, nodes: 1})
	w.run(5 * time.Second)
	n := w.nodes[0]
	if w.violation != nil || !n.core.Office().Ready {
		t.Fatalf("the node is not ready to lead: %+v, %v", n.core.Office(), w.violation)
	}
	return n
}

func TestQuestionsAreBounded(t *testing.T) {
	n := single(t)
	for i := range maxAsked {
		if _, err := n.core.AskQuorum(n.moment()); err != nil {
			t.Fatalf("question %d: %v", i+1, err)
		}
	}
	if _, err := n.core.AskQuorum(n.moment()); !errors.Is(err, ErrTooManyQuestions) {
		t.Errorf("one question more: %v", err)
	}
	if got := len(n.core.Work(n.clock()).Reads); got != maxAsked {
		t.Errorf("%d answers, want %d", got, maxAsked)
	}
	if _, err := n.core.AskQuorum(n.moment()); err != nil {
		t.Errorf("a question after the answers: %v", err)
	}
}

func TestProposalHasTheIndexThatItGetsInTheLog(t *testing.T) {
	n := single(t)
	p, err := n.core.Propose([]byte("data"))
	if err != nil {
		t.Fatal(err)
	}
	n.work()
	n.w.run(6 * time.Second)
	entries, err := n.log.Entries(p.Index, p.Index+1, 1000)
	if err != nil || string(entries[0].GetData()) != "data" || entries[0].GetTerm() != p.Term {
		t.Errorf("entry %d is %v (%v), want the one that was proposed in term %d", p.Index, entries, err, p.Term)
	}
	if n.machine.at.Index != p.Index {
		t.Errorf("the state machine has entries up to %d, want %d", n.machine.at.Index, p.Index)
	}
}

// An entry takes one message to each follower. Those of one that comes alone learn with the next
// heartbeat that it is committed.
func TestEntryTakesOneMessageToEachFollower(t *testing.T) {
	w := newWorld(plan{seed: 1, nodes: 3})
	w.run(5 * time.Second)
	n := w.leader()
	if n == nil {
		t.Fatal("no node leads")
	}
	const entries = 100
	before := w.appends
	for range entries {
		n.propose()
		w.run(w.now + 20*time.Millisecond) // in which it is committed
		if n.machine.at.Index != n.core.tail {
			t.Fatalf("the leader has entries up to %d, and proposed %d", n.machine.at.Index, n.core.tail)
		}
	}
	ticks := entries * int(20*time.Millisecond) / int(tick)
	if sent, most := w.appends-before, 2*(entries+ticks+1); sent > most {
		t.Errorf("%d messages for %d entries, want at most %d: those with entries, and one for each follower and tick", sent, entries, most)
	}
	w.run(w.now + 2*tick)
	for _, follower := range w.nodes {
		if follower.machine.at.Index != n.core.tail {
			t.Errorf("node %d has entries up to %d two ticks later, the last is %d", follower.id, follower.machine.at.Index, n.core.tail)
		}
	}
	if w.violation != nil {
		t.Error(w.violation)
	}
}

func TestLeaderThatGivesItsOfficeAwayHasNoLease(t *testing.T) {
	w := newWorld(plan{seed: 1, nodes: 3})
	w.run(5 * time.Second)
	n := w.leader()
	if n == nil || !w.holds(n) {
		t.Fatal("no leader has a lease")
	}
	if err := n.core.Transfer(n.id%3 + 1); err != nil {
		t.Fatal(err)
	}
	if n.core.Lease().Valid(n.moment()) {
		t.Error("the lease is valid during the transfer")
	}
	if _, err := n.core.Propose(nil); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a proposal during the transfer: %v", err)
	}
	n.work()
	w.run(6 * time.Second)
	if next := w.leader(); next == nil || next == n {
		t.Errorf("the leadership was not transferred from node %d", n.id)
	}
	if w.violation != nil {
		t.Error(w.violation)
	}
}

// A leader that no other node could follow goes on.
func TestLeaderThatIsAloneKeepsItsOffice(t *testing.T) {
	n := single(t)
	for _, to := range []uint64{0, n.id} {
		if err := n.core.Transfer(to); !errors.Is(err, ErrAlone) {
			t.Errorf("a transfer to %d: %v", to, err)
		}
	}
	if !n.core.Lease().Valid(n.moment()) {
		t.Error("the leader has given its lease up")
	}
	if _, err := n.core.Propose(nil); err != nil {
		t.Errorf("a proposal: %v", err)
	}
}

// removing is a world of two nodes, in which the leader n has proposed the removal of the other one.
func removing(t *testing.T) (w *world, n *node, p Proposed) {
	t.Helper()
	w = newWorld(plan{seed: 1, nodes: 2})
	w.run(5 * time.Second)
	if n = w.leader(); n == nil {
		t.Fatal("no node leads")
	}
	other, remove := 3-n.id, raftpb.ConfChangeRemoveNode
	p, err := n.core.Change(&raftpb.ConfChange{Type: &remove, NodeId: &other})
	if err != nil {
		t.Fatal(err)
	}
	return w, n, p
}

// A leader does not begin to give its office to the other one of two nodes while that one's removal is under way: it
// might be alone, without a lease and without an end of its office.
func TestNoTransferDuringTheRemovalOfTheOtherNode(t *testing.T) {
	w, n, _ := removing(t)
	other := 3 - n.id
	if err := n.core.Transfer(other); !errors.Is(err, ErrChanging) {
		t.Errorf("a transfer during the removal: %v", err)
	}
	n.work()
	w.run(w.now + 5*time.Second)
	if w.leader() != n || !w.holds(n) || n.core.Transfer(other) == nil {
		t.Errorf("the node that stays leads: %v, with a lease: %v", w.leader() == n, w.holds(n))
	}
	if w.violation != nil {
		t.Error(w.violation)
	}
}

func TestMessagesThatNodesDoNotSendAreDropped(t *testing.T) {
	n := single(t)
	before := n.core.Office()
	from, term := uint64(2), uint64(100)
	for _, typ := range []raftpb.MessageType{raftpb.MsgProp, raftpb.MsgReadIndex, raftpb.MsgHup, raftpb.MsgStorageAppendResp, raftpb.MsgTransferLeader} {
		n.core.Step(&raftpb.Message{Type: typ.Enum(), From: &from, To: &n.id, Term: &term}, n.clock())
	}
	other := uint64(7)
	n.core.Step(&raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: &from, To: &other, Term: &term}, n.clock())
	if after := n.core.Office(); after != before {
		t.Errorf("the office was %+v and is %+v", before, after)
	}
}

func TestLeaderDoesNotProposeItsOwnRemoval(t *testing.T) {
	n := single(t)
	remove := raftpb.ConfChangeRemoveNode
	if _, err := n.core.Change(&raftpb.ConfChange{Type: &remove, NodeId: &n.id}); !errors.Is(err, ErrOwnRemoval) {
		t.Errorf("it was proposed: %v", err)
	}
}

// A node hears that it was removed when the disk of the leader has that, and not before; the cluster goes on then.
func TestRemovalIsOnTheDiskBeforeItIsTold(t *testing.T) {
	w, n, p := removing(t)
	n.work()
	for n.core.node.BasicStatus().GetCommit() < p.Index {
		w.run(w.now + 50*time.Microsecond)
	}
	n.slow = 100 * time.Millisecond // the next write of the leader
	for n.core.removals.stored < p.Index && w.now < 10*time.Second {
		if w.left > 0 || len(n.machine.conf.GetVoters()) != 2 {
			t.Fatalf("nodes that have ended: %d; members: %v; and the leader's disk does not have the removal", w.left, n.machine.conf)
		}
		w.run(w.now + 50*time.Microsecond)
	}
	n.stop(true)
	n.start()
	w.run(w.now + 5*time.Second)
	if w.leader() != n || w.left != 1 {
		t.Errorf("the node that stays leads: %v; nodes that have ended: %d", w.leader() == n, w.left)
	}
	if w.violation != nil {
		t.Error(w.violation)
	}
}
