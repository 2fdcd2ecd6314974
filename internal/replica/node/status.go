package node

import (
	"context"
	"sort"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

// Roles of nodes.
const (
	Leader    = "leader"
	Follower  = "follower"
	Candidate = "candidate" // it knows no leader
	Receiving = "receiving" // it follows, and gets all data from the leader
	Learner   = "learner"   // it follows, and has no vote until it has everything
)

// Status is what a node knows of its cluster.
type Status struct {
	Name    string `json:"name"`
	ID      ID     `json:"id"`
	Cluster ID     `json:"cluster"`
	// Level is the highest format level that this node's program knows, and InForce the cluster's.
	Level   int    `json:"level"`
	InForce int    `json:"level_in_force"`
	Role    string `json:"role"`
	Term    uint64 `json:"term"`
	Leader  ID     `json:"leader"` // 0: none is known
	// Ready: this node leads, and has what earlier leaders have committed.
	Ready bool `json:"ready"`
	// Committed is the index of the last entry that this node knows to be committed, Last
	// that of the last one in its log.
	Committed uint64 `json:"committed"`
	Last      uint64 `json:"last"`
	// Received and ReceiveBytes are how much of the leader's data has arrived, and how much it is;
	// 0: this node has its own.
	Received     int64 `json:"received,omitempty"`
	ReceiveBytes int64 `json:"receive_bytes,omitempty"`
	// Lag is how many entries this node lacks of those that it knows to be committed, in its log or
	// in its database; LagKnown: a leader has said what there is.
	Lag      uint64 `json:"lag"`
	LagKnown bool   `json:"lag_known"`
	// Lease is for how much longer a leader may answer reads from memory; 0: it may not.
	Lease    time.Duration `json:"lease"`
	DiskFull bool          `json:"disk_full"` // this node takes no entries of a leader
	// WallMs is the wall clock of this node's machine in ms since 1970, 0 in the status of a program
	// that does not say it. Unfit: it must not lead as long as another node can, because that clock is wrong.
	WallMs  int64    `json:"wall_ms,omitempty"`
	Unfit   bool     `json:"unfit,omitempty"`
	Members []Member `json:"members"`         // by name
	Admin   string   `json:"admin,omitempty"` // as Options has it
}

// Member is a node of the cluster as another one knows it.
type Member struct {
	Name    string `json:"name"`
	ID      ID     `json:"id"`
	Address string `json:"address"` // of its port
	Learner bool   `json:"learner,omitempty"`
	// What follows only the leader knows. Active: the node has answered within the last election timeout.
	// Lag is how many entries it lacks.
	Active bool   `json:"active"`
	Lag    uint64 `json:"lag"`
}

// Status gives it. A node that is being closed gives its name only.
func (n *Node) Status() (s Status) {
	self := n.self.Load()
	s = Status{Name: self.Name, ID: self.ID, Cluster: self.Cluster, Level: members.Own.Highest, InForce: n.roster.Load().list.Level, Role: Candidate, Admin: n.o.Admin}
	n.do(func() {
		view := n.core.Office()
		s.Term, s.Leader, s.Ready = view.Term, ID(view.Leader), view.Ready
		switch {
		case view.Leads:
			s.Role, s.LagKnown, s.Lease = Leader, true, n.core.Lease().Remaining(n.moment())
		case view.Leader != 0:
			s.Role = Follower
		}
		s.Last, _ = n.log.LastIndex()
		progress, r := n.core.Progress(), n.roster.Load()
		all := r.list.Members
		if len(all) == 0 { // this node has yet to get the cluster's data
			all = self.Members
		}
		for _, m := range all {
			member := Member{Name: m.Name, ID: m.ID, Address: r.addresses[uint64(m.ID)], Learner: m.Learner}
			if m.Learner && m.ID == self.ID && s.Role == Follower {
				s.Role = Learner
			}
			if p, ok := progress[uint64(m.ID)]; ok {
				member.Active, member.Lag = p.Active, s.Last-min(p.Match, s.Last)
			}
			s.Members = append(s.Members, member)
		}
	})
	if of := n.snapshots.of.Load(); of > 0 {
		s.Role, s.Received, s.ReceiveBytes = Receiving, min(n.snapshots.done.Load(), of), of
	}
	n.mu.Lock()
	s.Committed = n.committed
	n.mu.Unlock()
	s.DiskFull = n.full.Load()
	if s.Role != Leader {
		given := n.given.Load()
		s.Lag, s.LagKnown = n.behind.Behind(given)
		s.Lag = max(s.Lag, s.Committed-min(given, s.Committed))
	}
	sort.Slice(s.Members, func(i, j int) bool { return s.Members[i].Name < s.Members[j].Name })
	s.Unfit, s.WallMs = n.isUnfit(self.ID), n.o.WallMs()
	return s
}

// LeaderAddress is the address of the leader's port; false: no leader is known.
func (s *Status) LeaderAddress() (string, bool) {
	for _, m := range s.Members {
		if m.ID == s.Leader {
			return m.Address, true
		}
	}
	return "", false
}

// Changes gives a channel that is closed when the role, the term or the leader changes next. A caller
// gets it before it calls Status, to miss no change.
func (n *Node) Changes() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// Transfer gives the leadership away, to a node or, with 0, to the one that is furthest. It
// returns when this node does not lead any more: another one may not lead yet. It fails with
// consensus.ErrNotLeader, consensus.ErrAlone, consensus.ErrChanging, ErrStopped, or ctx's error.
func (n *Node) Transfer(ctx context.Context, to ID) error {
	var err error
	if !n.do(func() {
		id := uint64(to)
		if id == 0 {
			id = n.best()
		}
		err = n.core.Transfer(id)
	}) {
		return ErrStopped
	}
	for err == nil {
		changed := n.Changes()
		n.mu.Lock()
		leads := n.view.Leads
		n.mu.Unlock()
		if !leads {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		case <-n.ending.Done():
			err = ErrStopped
		}
	}
	return err
}
