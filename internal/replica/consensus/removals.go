package consensus

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Removals
//
// A node that applies the entry which removes it ends for good. The others must not need its vote
// from then on. But the library counts votes by the members as of the last entry that a node has
// applied, and a node that starts applies what its own disk says is committed. If that lags, it
// still counts the removed node. Of two nodes, a and b, a leads and removes b, and both store the
// entry; b hears that it is committed, and ends; a loses its power, starts with both members, and
// waits for the vote of b, for ever.
//
// So a node that stays must know by its disk that a removal is committed before the node that is
// removed ends:
//
//  1. Before a node tells another one that the removal of a node is committed, and before it applies
//     the entry (so that an operator does not hear of it earlier either), it stores that it is,
//     durably. Until then it tells the others of the commit of earlier entries only.
//  2. A node does not take its own removal for committed before another node has told it so, which by
//     1 has it on its disk then. Until then it neither applies the entry, nor tells others that it is
//     committed, nor stores that.
//  3. A leader whose own removal is committed, by what it counts itself, gives its office away. The
//     next leader finds that the entry is committed, and tells.
//
// 3 comes to an end because a leader never proposes its own removal (Change). So its removal is of an
// earlier term than its own. It is not ready to lead before it has applied its first entry, which
// comes after the removal, so it has proposed nothing, and its log ends with that first entry. When it
// counts the removal as committed, that first entry is: a leader counts entries of its own term only.
// So a quorum has the whole log of the leader, of two nodes the other one, and can be elected. The
// former leader votes, and asks for no votes itself: the library does not while it has a change of
// the members to apply. If it is started again, it has forgotten what it counted.
//
// A new member needs none of this: a node that does not know yet that its vote counts gives it all
// the same, and more votes are needed afterwards, not fewer.

// removal is an entry of the log that removes a node.
type removal struct {
	index uint64
	node  uint64
}

// removals are those in the log that the node has not applied, and did not know to be committed when
// it was started; and what waits for them.
type removals struct {
	self   uint64
	all    []removal         // by index
	stored uint64            // the disk says that entries up to this one are committed
	told   uint64            // another node has said that entries up to this one are
	held   []*raftpb.Message // to be applied, in this order
	untold []*raftpb.Message // appends that tell of a commit too early; at most one for each node
	early  bool              // tests: nothing waits
}

// ErrOwnRemoval: a leader was asked to remove itself. It has to give its office away before.
var ErrOwnRemoval = errors.New("the leader cannot remove itself: give the leadership to another node first")

// removedBy is the node that an entry removes; 0: none.
func removedBy(e *raftpb.Entry) (node uint64, err error) {
	if e.GetType() != raftpb.EntryConfChange {
		return 0, nil
	}
	change := &raftpb.ConfChange{}
	if err := proto.Unmarshal(e.GetData(), change); err != nil {
		return 0, fmt.Errorf("entry %d is no change of the membership: %w", e.GetIndex(), err)
	}
	if change.GetType() != raftpb.ConfChangeRemoveNode {
		return 0, nil
	}
	return change.GetNodeId(), nil
}

// add takes entries that follow those before the first of them in the log, and replace all behind.
func (r *removals) add(entries []*raftpb.Entry) {
	if len(entries) == 0 {
		return
	}
	first := entries[0].GetIndex()
	r.all = slices.DeleteFunc(r.all, func(old removal) bool { return old.index >= first })
	for _, e := range entries {
		if node, err := removedBy(e); err == nil && node != 0 { // Applied tells of an error
			r.all = append(r.all, removal{index: e.GetIndex(), node: node})
		}
	}
}

// find takes those in a log behind an entry.
func (r *removals) find(log raft.Storage, behind uint64) error {
	last, err := log.LastIndex()
	for next := behind + 1; err == nil && next <= last; {
		var entries []*raftpb.Entry
		entries, err = log.Entries(next, last+1, maxMessageBytes)
		r.add(entries)
		next += uint64(len(entries))
	}
	return err
}

// applied forgets those that the state machine has.
func (r *removals) applied(index uint64) {
	r.all = slices.DeleteFunc(r.all, func(old removal) bool { return old.index <= index })
}

// waits says whether a removal must not be taken for committed yet.
func (r *removals) waits(one removal) bool {
	if one.node == r.self {
		return r.told < one.index
	}
	return r.stored < one.index
}

// limit is the last entry that others may be told is committed, if it is, and that may be applied.
func (r *removals) limit() uint64 {
	if r.early {
		return math.MaxUint64
	}
	for _, one := range r.all {
		if r.waits(one) {
			return one.index - 1
		}
	}
	return math.MaxUint64
}

// secure prepares a message for the storer, which says up to where entries are committed: that another node is
// removed is to be durable, and that this one is must not be stored yet.
func (r *removals) secure(m *raftpb.Message) {
	if r.early || m.Commit == nil {
		return
	}
	urgent := false
	for _, one := range r.all {
		if one.index > m.GetCommit() {
			break
		}
		if one.node == r.self && r.waits(one) {
			m.Commit = new(one.index - 1)
			break
		}
		urgent = urgent || r.waits(one)
	}
	if urgent {
		typ, to, from, commit := raftpb.MsgStorageAppendResp, r.self, raft.LocalAppendThread, m.GetCommit()
		m.Responses = append(m.GetResponses(), &raftpb.Message{Type: &typ, To: &to, From: &from, Commit: &commit})
	}
}

// isDurableCommit says whether a response to a message for the storer is one that secure has added.
func isDurableCommit(response *raftpb.Message) bool {
	return response.GetType() == raftpb.MsgStorageAppendResp && response.GetCommit() != 0 // the library's have none
}

// mustKeep says whether the commit that a message for the storer has is to be durable.
func mustKeep(m *raftpb.Message) bool { return slices.ContainsFunc(m.GetResponses(), isDurableCommit) }

// tell is what may be sent now of a message that may tell how far entries are committed.
func (r *removals) tell(m *raftpb.Message) *raftpb.Message {
	limit := r.limit()
	if m.GetCommit() <= limit || m.GetType() != raftpb.MsgApp && m.GetType() != raftpb.MsgHeartbeat {
		return m
	}
	if m.GetType() == raftpb.MsgApp {
		r.untold = append(slices.DeleteFunc(r.untold, func(old *raftpb.Message) bool { return old.GetTo() == m.GetTo() }), m)
	}
	less := proto.Clone(m).(*raftpb.Message)
	less.Commit = &limit
	return less
}

// hear takes a message of another node, which may tell how far entries are committed.
func (r *removals) hear(m *raftpb.Message) {
	if t := m.GetType(); t == raftpb.MsgApp || t == raftpb.MsgHeartbeat {
		r.told = max(r.told, m.GetCommit())
	}
}

// release gives what need not wait any more.
func (r *removals) release(w *Work) {
	limit := r.limit()
	r.untold = slices.DeleteFunc(r.untold, func(m *raftpb.Message) bool {
		if m.GetCommit() > limit {
			return false
		}
		w.Send = append(w.Send, m)
		return true
	})
	for len(r.held) > 0 && lastOf(r.held[0]) <= limit {
		w.Apply = append(w.Apply, r.held[0])
		r.held = r.held[1:]
	}
}

func lastOf(m *raftpb.Message) uint64 {
	entries := m.GetEntries()
	return entries[len(entries)-1].GetIndex()
}

// isRemoved says whether this node's own removal waits, and is committed by what the node has counted.
func (r *removals) isRemoved(commit uint64) bool {
	return !r.early && slices.ContainsFunc(r.all, func(one removal) bool {
		return one.node == r.self && one.index <= commit && r.waits(one)
	})
}
