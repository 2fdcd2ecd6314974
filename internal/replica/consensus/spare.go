package consensus

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// Spare nodes
//
// Of a leader's followers only so many must store an entry before it is committed as make a quorum
// with the leader. To have the others store each entry at once costs each of them, and the leader, as
// much processor time as it costs those, and gains nothing. So their appends are held for a moment, and
// go as one, with one fsync and one answer. To Raft that is a network that takes longer.
//
// The first entries after a tick go to all. Those that answer first are prompt until the next tick, and the
// others are spare. If an entry is not committed soon, the caller calls Hurry: then no node is spare
// until after the next tick.

const (
	maxHeld      = 64                    // entries that wait for a node
	maxHeldBytes = 768 << 10             // with a batch behind it still less than the transport writes at once
	maxHeldTime  = 80 * time.Millisecond // or until the next tick
)

// spares are the followers whose appends are held, of a node that leads.
type spares struct {
	begun    bool     // there was a tick since Hurry
	first    uint64   // the last of the first entries after the tick; 0: there were none
	answered []uint64 // voters that have stored them; enough of them are the prompt nodes
	held     []held   // at most one for each node
}

// held is an append that waits.
type held struct {
	m     *raftpb.Message
	since time.Duration
}

// tick begins another round.
func (s *spares) tick() { s.begun, s.first, s.answered = true, 0, s.answered[:0] }

// hear takes an answer of a follower.
func (s *spares) hear(m *raftpb.Message, voters []uint64) {
	if m.GetType() == raftpb.MsgAppResp && !m.GetReject() && s.first != 0 && m.GetIndex() >= s.first && len(s.answered) < len(voters)/2 &&
		slices.Contains(voters, m.GetFrom()) && !slices.Contains(s.answered, m.GetFrom()) {
		s.answered = append(s.answered, m.GetFrom())
	}
}

// take takes what is held for a node.
func (s *spares) take(to uint64) (h held) {
	if i := slices.IndexFunc(s.held, func(h held) bool { return h.m.GetTo() == to }); i >= 0 {
		h = s.held[i]
		s.held = slices.Delete(s.held, i, i+1)
	}
	return h
}

// Hurry has entries go to all nodes at once until after the next tick: some are not committed although they
// should be.
func (c *Core) Hurry() { c.spares.begun = false }

// isSpare says whether a node is one now. While a removal is not applied no node is (removals.go).
func (c *Core) isSpare(id uint64) bool {
	s := &c.spares
	return s.begun && c.office.Ready && !c.transfers && len(s.answered) == len(c.members)/2 && !slices.Contains(s.answered, id) &&
		c.applied >= c.change && len(c.removals.all) == 0
}

// hold holds a message if it may wait, and otherwise adds it to what is to be sent, behind what was held
// for its node.
func (c *Core) hold(send []*raftpb.Message, m *raftpb.Message, now time.Duration) []*raftpb.Message {
	s, to := &c.spares, m.GetTo()
	if m.GetType() == raftpb.MsgHeartbeat {
		return append(send, m) // it tells of the commit of entries only that the node is known to have
	}
	since := now
	if before := s.take(to); before.m != nil {
		if follows(before.m, m) {
			m, since = join(before.m, m), before.since
		} else {
			send = append(send, before.m)
		}
	}
	entries := m.GetEntries()
	if m.GetType() != raftpb.MsgApp || len(entries) == 0 {
		return append(send, m)
	}
	if s.first == 0 {
		s.first = lastOf(m)
	}
	if len(entries) >= maxHeld || bytesOf(entries) >= maxHeldBytes || !c.isSpare(to) || !c.replicates(to) {
		return append(send, m)
	}
	s.held = append(s.held, held{m: m, since: since})
	return send
}

// releaseHeld adds to what is to be sent what has waited for long, or for a node that is not spare any more.
func (c *Core) releaseHeld(send []*raftpb.Message, now time.Duration) []*raftpb.Message {
	s := &c.spares
	s.held = slices.DeleteFunc(s.held, func(h held) bool {
		if now-h.since < maxHeldTime && c.isSpare(h.m.GetTo()) {
			return false
		}
		send = append(send, h.m)
		return true
	})
	return send
}

// replicates says whether a node is known to follow: to another one the library sends one append, and
// waits for the answer.
func (c *Core) replicates(id uint64) (is bool) {
	c.node.WithProgress(func(other uint64, _ raft.ProgressType, p tracker.Progress) {
		is = is || other == id && p.State == tracker.StateReplicate
	})
	return is
}

// follows says whether an append has the entries behind those of another one.
func follows(before, m *raftpb.Message) bool {
	last := before.GetEntries()[len(before.GetEntries())-1]
	return m.GetType() == raftpb.MsgApp && m.GetTerm() == before.GetTerm() && m.GetIndex() == last.GetIndex() && m.GetLogTerm() == last.GetTerm()
}

// join is one append in place of two, of which the second follows.
func join(before, m *raftpb.Message) *raftpb.Message {
	joined := &raftpb.Message{
		Type: before.Type, To: before.To, From: before.From, Term: before.Term, Index: before.Index, LogTerm: before.LogTerm,
		Commit: new(max(before.GetCommit(), m.GetCommit())),
	}
	joined.Entries = append(append(joined.Entries, before.GetEntries()...), m.GetEntries()...)
	return joined
}

func bytesOf(entries []*raftpb.Entry) (n int) {
	for _, e := range entries {
		n += len(e.GetData())
	}
	return n
}
