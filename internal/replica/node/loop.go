package node

import (
	"fmt"
	"math"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
)

// do calls f with deciding held, and then does what the Core asks for. False: the node has ended,
// and f was not called.
func (n *Node) do(f func()) bool {
	n.deciding.Lock()
	defer n.deciding.Unlock()
	if n.ending.Err() != nil {
		return false
	}
	f()
	n.work()
	return true
}

// run is the consensus's clock.
func (n *Node) run() {
	defer n.guard("the node's consensus")
	tick := time.NewTicker(n.o.Election / consensus.TicksPerElection)
	defer tick.Stop()
	for {
		select {
		case <-n.ending.Done():
			return
		case <-tick.C:
		}
		n.do(func() {
			n.core.Tick(n.moment())
			n.lookAtDisk()
			n.lookAtClock()
			n.lookAtFollowers()
			n.promoteLearner()
			n.raiseLevel()
			if n.ungiven > 0 {
				n.wakeReplay()
			}
		})
	}
}

// receive takes a message of another node.
func (n *Node) receive(m *raftpb.Message) {
	if n.roster.Load().list.WasRemoved(ID(m.GetFrom())) {
		return
	}
	n.do(func() {
		if err := n.checkAcknowledged(m); err != nil {
			n.fail(err)
			return
		}
		n.behind.Heard(m, n.now())
		if n.hasRoomFor(m) {
			n.core.Step(m, n.now())
		}
	})
}

// checkAcknowledged fails with ErrOldData if a leader says that this node has acknowledged an entry which its log
// does not have: the heartbeat of a leader names no committed entry that the node has not acknowledged to it.
// deciding is held.
func (n *Node) checkAcknowledged(m *raftpb.Message) error {
	if m.GetType() != raftpb.MsgHeartbeat || m.GetTerm() < n.core.Office().Term || m.GetTo() != uint64(n.ID()) {
		return nil
	}
	last, err := n.log.LastIndex()
	if err != nil || m.GetCommit() <= last {
		return err
	}
	return fmt.Errorf("%w: node %s, which leads, has this node's acknowledgement of entry %d, and the log in %s ends with entry %d: either a former copy of the directory was put there, or its disk has lost what was written. Start this node with a new data directory: run \"holdfast cluster remove %s\", then \"holdfast cluster add %s=HOST:PORT\"",
		ErrOldData, n.name(m.GetFrom()), m.GetCommit(), n.o.Dir, last, n.o.Name, n.o.Name)
}

// hasRoomFor says whether the log may take a leader's entries. They stay in the log until the
// database has their rows in tables, so a follower whose database does not keep up loses
// messages, and is sent the entries again. So does one whose disk is full.
func (n *Node) hasRoomFor(m *raftpb.Message) bool {
	if m.GetType() != raftpb.MsgApp || len(m.GetEntries()) == 0 || n.log.Bytes() <= max(logSlack*n.o.LogKeep, logSlackBytes) && !n.full.Load() {
		return true
	}
	n.storing.wakeUp() // there may be something to trim, or room on the disk
	return false
}

// logSlack times Options.LogKeep is what the log of a follower has at most, but for one message, or
// logSlackBytes, if that is more: what is written while tables are.
const (
	logSlack      = 2
	logSlackBytes = 16 << 20
)

// lookAtFollowers notes which entries the leader keeps for the nodes that answer.
func (n *Node) lookAtFollowers() {
	needed, s := uint64(math.MaxUint64), &n.snapshots
	n.generous.Store(n.core.Office().Leads && (s.sending || n.now() < s.long))
	if n.generous.Load() {
		needed = s.from
	}
	for _, p := range n.core.Progress() {
		if p.Active {
			needed = min(needed, p.Match)
		}
	}
	n.needed.Store(needed)
}

// work does what the Core asks for. deciding is held.
func (n *Node) work() {
	if lost := n.lost.Swap(nil); lost != nil {
		for _, id := range *lost {
			n.core.ReportUnreachable(id)
		}
	}
	for {
		n.publish()
		w := n.core.Work(n.now())
		n.send(w.Send)
		for _, m := range w.Store {
			n.snapshots.asked = n.snapshots.asked || !raft.IsEmptySnap(m.GetSnapshot())
		}
		n.storing.add(w.Store)
		for _, m := range w.Apply {
			if !n.apply(m) {
				return
			}
		}
		n.answer(w.Reads)
		n.publish()
		if len(w.Apply) == 0 {
			return
		}
	}
}

// apply notes that entries are committed. Replay and the journal have them from the log.
func (n *Node) apply(m *raftpb.Message) bool {
	conf, err := n.core.Applied(m)
	if err == nil {
		err = n.noteMembers(m.GetEntries(), conf)
	}
	if err != nil {
		n.fail(err)
		return false
	}
	var last uint64
	for _, e := range m.GetEntries() {
		last = e.GetIndex()
		n.ungiven += 1 + len(e.GetData())
		for _, under := range []**proposal{&n.proposed, &n.change} {
			if p := *under; p != nil && p.at.Index == last {
				*under = nil
				p.end(p.at.Term == e.GetTerm())
				if under == &n.proposed {
					n.hurrying.end(n.now())
				}
			}
		}
	}
	n.mu.Lock()
	n.committed = max(n.committed, last)
	n.mu.Unlock()
	if n.ungiven > maxUngiven || n.now() > n.giveAt {
		n.wakeReplay()
	}
	return true
}

// To wake Replay costs a follower as much as to answer its leader, and the journal only gathers what it
// is given. So Replay is woken after givePause or when there are maxUngiven bytes; for the last entries
// before a pause, at the next tick.
const (
	givePause  = 80 * time.Millisecond
	maxUngiven = replayBytes
)

// wakeReplay has Replay look for entries that are committed. deciding is held.
func (n *Node) wakeReplay() {
	n.ungiven, n.giveAt = 0, n.now()+givePause
	n.mu.Lock()
	defer n.mu.Unlock()
	n.moved.Broadcast()
}

// publish tells others about the office when it has changed. It is called after each event that may
// change it, and before the Core gets another. deciding is held.
func (n *Node) publish() {
	next := n.core.Office()
	if next == n.view { // it is written with deciding held
		return
	}
	if n.view.Ready && !(next.Ready && next.Term == n.view.Term) {
		for _, under := range []**proposal{&n.proposed, &n.change} {
			if p := *under; p != nil {
				*under = nil
				p.end(false)
			}
		}
		n.refuse()
	}
	if n.view.Leads && !(next.Leads && next.Term == n.view.Term) {
		n.endSnapshot()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.view
	n.view = next
	if n.office != nil && !(next.Ready && next.Term == n.office.term) {
		n.office.close()
		n.office = nil
	}
	if next.Ready && n.office == nil {
		n.office = &Office{n: n, term: next.Term, from: n.committed, lease: n.core.Lease(), lost: make(chan struct{})}
	}
	if next.Leader != 0 && (next.Leader != before.Leader || next.Term != before.Term) {
		n.leaders.Add(1)
	}
	if next.Leader != before.Leader || next.Leads != before.Leads {
		switch {
		case next.Leads:
			n.o.Logger.Info("this node leads", "node", n.o.Name, "term", next.Term)
		case next.Leader != 0:
			n.o.Logger.Info("this node follows", "node", n.o.Name, "term", next.Term, "leader", n.name(next.Leader))
		case before.Leads:
			n.o.Logger.Warn("this node has lost its office", "node", n.o.Name, "term", next.Term)
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
	n.moved.Broadcast()
}

// unreachable notes that a message to a node was lost. The transport calls it, also in send.
func (n *Node) unreachable(id uint64) {
	for {
		old := n.lost.Load()
		var next []uint64
		if old != nil {
			for _, other := range *old {
				if other == id {
					return
				}
			}
			next = append(next, *old...)
		}
		next = append(next, id)
		if n.lost.CompareAndSwap(old, &next) {
			return
		}
	}
}

// diskPatience is how long the leader's disk may hang before the leadership is given away.
const diskPatience = 5 * time.Second

// lookAtDisk gives the leadership away while the disk hangs, and ends the node if what it
// stores would not be found again.
func (n *Node) lookAtDisk() {
	if begun := n.storing.since.Load(); begun != 0 && n.core.Office().Ready && n.now()-time.Duration(begun) > diskPatience {
		if n.core.Transfer(n.best()) == nil {
			n.o.Logger.Warn("the disk does not answer: giving the leadership away", "node", n.o.Name, "for", n.now()-time.Duration(begun))
		}
	}
}
