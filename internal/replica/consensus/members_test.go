package consensus

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

// maxMachines bounds those that a world gets by and by.
const maxMachines = 12

// reconfigure has leaders change the members again and again, one at a time: a new machine becomes a
// learner, a learner that lacks little gets its vote, any member is removed, also the leader, which
// gives its office away first. A machine that has learned that it was removed ends; another one that was
// removed stays, and may not know it.
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
	}
	if what == raftpb.ConfChangeRemoveNode && id == n.id {
		_ = n.core.Transfer(conf.GetVoters()[w.rng.IntN(len(conf.GetVoters()))])
		n.work()
		return
	}
	p, err := n.core.Change(&raftpb.ConfChange{Type: &what, NodeId: &id})
	if err != nil {
		return
	}
	n.pending[p.Index] = p.Term
	n.work()
	if what != raftpb.ConfChangeRemoveNode || w.now > w.lasts {
		return
	}
	switch w.rng.IntN(4) {
	case 0: // the node that is being removed may become the leader
		_ = n.core.Transfer(id)
		n.work()
	case 1: // at the moment in which others learn of the removal, or shortly before
		w.after(w.between(0, 5*time.Millisecond), nil, func() { w.crash(n, true) })
	}
}

// leaves ends a node that has learned that it was removed. Some are started again: what is on their disk decides
// whether they know it then.
func (n *node) leaves(e *raftpb.Entry) (does bool) {
	if node, err := removedBy(e); err != nil || node != n.id {
		return false
	}
	w := n.w
	w.left++
	n.machine.removed = true
	if w.chance(50) {
		n.durable = n.machine
	}
	n.stop(w.chance(50))
	if w.chance(50) {
		w.after(w.between(0, 2*time.Second), n, n.start)
	}
	return true
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
