package consensus

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

// maxMachines bounds those that a world gets by and by.
const maxMachines = 12

// reconfigure has leaders change the members again and again, one at a time: a new machine becomes a
// learner, a learner that lacks little gets its vote, any member is removed, also the leader. A
// machine that was removed stays, and may not know it.
func (w *world) reconfigure() {
	w.after(w.between(20*time.Millisecond, 500*time.Millisecond), nil, func() {
		if w.now > w.lasts {
			return
		}
		for _, n := range w.nodes {
			if n.up && n.paused <= w.now && n.core.Office().Leads {
				n.change()
			}
		}
		w.reconfigure()
	})
}

func (n *node) change() {
	w, conf := n.w, n.machine.conf
	what, id := raftpb.ConfChangeRemoveNode, uint64(0)
	switch learners, voters := conf.GetLearners(), conf.GetVoters(); {
	case len(learners) > 0:
		id = learners[0]
		if !w.chance(10) {
			what = raftpb.ConfChangeAddNode
			if p := n.core.Progress()[id]; !p.Active || p.Match == 0 || p.Match+20 < n.machine.at.Index {
				return
			}
		}
	case len(voters) == 1 || len(voters) < 5 && w.chance(60):
		if len(w.nodes) == maxMachines || !n.core.Office().Ready {
			return
		}
		what, id = raftpb.ConfChangeAddLearnerNode, w.newMachine().id
	default:
		id = voters[w.rng.IntN(len(voters))]
		// A leader that removes itself from a cluster of two may take with it that the entry is
		// committed, and have entries that the other one lacks: that one never gets its vote. (Package
		// node gives the leadership away first, always.)
		if len(voters) == 2 && id == n.id {
			return
		}
		w.oneIsLeft = w.oneIsLeft || len(voters) == 2
	}
	p, err := n.core.Change(&raftpb.ConfChange{Type: &what, NodeId: &id})
	if err != nil {
		return
	}
	n.pending[p.Index] = p.Term
	n.work()
}

// newMachine is one that waits to be added.
func (w *world) newMachine() *node {
	n := &node{w: w, id: uint64(len(w.nodes) + 1), disk: newDisk(), rate: 1 + drift*(2*w.rng.Float64()-1), durable: machine{conf: &raftpb.ConfState{}}}
	w.nodes = append(w.nodes, n)
	w.must(raftlog.Create(n.disk, "raft", n.durable.at))
	w.after(w.between(0, time.Second), n, n.start)
	return n
}

// noteChange counts an entry that changes the members, when the leader that has proposed it has it.
func (w *world) noteChange(n *node, e *raftpb.Entry) {
	if e.GetType() != raftpb.EntryConfChange || n.pending[e.GetIndex()] != e.GetTerm() {
		return
	}
	w.changed++
	change := &raftpb.ConfChange{}
	w.must(proto.Unmarshal(e.GetData(), change))
	if change.GetType() == raftpb.ConfChangeRemoveNode && change.GetNodeId() == n.id {
		w.deposedByChange++
	}
}

// isMember says whether the leader counts a node among the members; all are if there is none.
func (w *world) isMember(n *node) bool {
	leader := w.leader()
	if leader == nil {
		return true
	}
	conf := leader.machine.conf
	return slices.Contains(conf.GetVoters(), n.id) || slices.Contains(conf.GetLearners(), n.id)
}
