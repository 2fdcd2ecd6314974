package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/founding"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

// Changes of the membership
//
// The leader proposes them, one at a time, as entries of the log. A node is added as a learner: it
// gets all data by a snapshot, and then everything that is written, and has no vote. Whichever
// node leads gives it one when it lacks next to nothing. The members that count are those as of
// the newest committed entry; the database has them as of the last entry that it has, so a start
// goes on from these.

// promotionLag is how many entries a learner may lack when it gets its vote: less than a busy
// leader writes in a second.
const promotionLag = 256

var (
	// ErrChanging: another change of the membership is under way.
	ErrChanging = fmt.Errorf("%w: another change of the nodes is under way; wait for its end", members.ErrRefused)
	errUnknown  = errors.New("the leadership was lost meanwhile: look at the status, and try again if the change was not made")
)

// noteMembers takes changes of the membership out of entries that are committed. conf is what the
// consensus makes of them; nil: there are none.
func (n *Node) noteMembers(entries []*raftpb.Entry, conf *raftpb.ConfState) error {
	if conf == nil {
		return nil
	}
	n.mu.Lock()
	list := n.history.Now()
	n.mu.Unlock()
	for _, e := range entries {
		if e.GetType() != raftpb.EntryConfChange {
			continue
		}
		change := &raftpb.ConfChange{}
		err := proto.Unmarshal(e.GetData(), change)
		if err == nil {
			list, err = list.Apply(change)
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", e.GetIndex(), err)
		}
		n.mu.Lock()
		n.history.Add(e.GetIndex(), list)
		n.mu.Unlock()
		if change.GetType() == raftpb.ConfChangeUpdateNode {
			n.o.Logger.Info("the cluster has a new format level: programs that do not know it are kept out", "node", n.o.Name, "level", list.Level)
			continue
		}
		n.o.Logger.Info("the nodes of the cluster have changed", "node", n.o.Name, "change", change.GetType().String(), "of", ID(change.GetNodeId()), "nodes", list.Names())
	}
	if got := list.ConfState(); !proto.Equal(got, &raftpb.ConfState{Voters: conf.GetVoters(), Learners: conf.GetLearners()}) {
		return fmt.Errorf("the consensus has the members %v, and the list of them %v", conf, got)
	}
	n.setRoster(list)
	if self := n.self.Load(); list.WasRemoved(self.ID) {
		return founding.Removed(self, "its log")
	}
	return nil
}

// propose proposes a change of the membership, unless check refuses it, and waits until it is made.
// check is called with deciding held, with the members and whether each of them answers.
func (n *Node) propose(ctx context.Context, what raftpb.ConfChangeType, m members.Member, check func(*members.List, func(ID) bool) error) error {
	c, err := members.Change(what, m)
	if err != nil {
		return err
	}
	p := &proposal{done: make(chan error, 2)}
	if !n.do(func() { err = n.proposeChange(c, p, check) }) {
		return ErrStopped
	}
	if err != nil {
		return err
	}
	select {
	case err = <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("a quorum has not taken the change yet, and may still do: look at the status: %w", ctx.Err())
	case <-n.ending.Done():
		return ErrStopped
	}
	if err != nil {
		return errUnknown
	}
	now, is := n.roster.Load().list.Find(m.ID)
	if made := is == (what != raftpb.ConfChangeRemoveNode) && now.Learner == (what == raftpb.ConfChangeAddLearnerNode); !made {
		return ErrChanging
	}
	return nil
}

// proposeChange does it. deciding is held.
func (n *Node) proposeChange(c *raftpb.ConfChange, p *proposal, check func(*members.List, func(ID) bool) error) error {
	if !n.core.Office().Ready {
		return consensus.ErrNotLeader
	}
	if n.change != nil {
		return ErrChanging
	}
	progress := n.core.Progress()
	if err := check(n.roster.Load().list, func(id ID) bool { return progress[uint64(id)].Active }); err != nil {
		return err
	}
	at, err := n.core.Change(c)
	if err == nil {
		p.at, n.change = at, p
	}
	return err
}

// Add makes a node that runs and waits at an address a learner, and returns when it is one: it gets
// all data, and then a vote, by itself. Only the leader can do it. It fails with an error that wraps
// members.ErrRefused, consensus.ErrNotLeader, ErrStopped, or ctx's error.
func (n *Node) Add(ctx context.Context, name, address string) error {
	release, err := n.beginChange()
	if err != nil {
		return err
	}
	defer release()
	if err := n.port.Allows(address); err != nil {
		return err
	}
	alive := n.alive(ctx)
	check := func(l *members.List, answers func(ID) bool) error {
		addresses := n.roster.Load().addresses
		return l.CheckNew(name, address, both(alive, answers), func(m members.Member) string { return addresses[uint64(m.ID)] })
	}
	if err := n.try(check); err != nil {
		return err
	}
	id, err := n.greet(ctx, name, address)
	if err != nil {
		return err
	}
	return n.propose(ctx, raftpb.ConfChangeAddLearnerNode, members.Member{Name: name, ID: id, Address: address}, check)
}

// greet asks the node that is to be added who it is.
func (n *Node) greet(ctx context.Context, name, address string) (ID, error) {
	r := n.roster.Load()
	if n.o.Members != nil { // its certificate is accepted from now on
		hosts := []string{address}
		for _, a := range r.addresses {
			hosts = append(hosts, a)
		}
		n.o.Members(hosts)
	}
	a, err := founding.Ask(ctx, n.port, address)
	if err != nil {
		return 0, fmt.Errorf("no node answers at %s: %w. Start it first: holdfast serve --node %s --data DIR --cluster-peers %s=%s,… with the nodes of this cluster behind it", address, err, name, name, address)
	}
	self := n.self.Load()
	refuse := func(format string, args ...any) (ID, error) {
		return 0, fmt.Errorf("%w: "+format, append([]any{members.ErrRefused}, args...)...)
	}
	switch _, known := r.list.Find(a.ID); {
	case a.Name != name:
		return refuse("the node at %s has the name %q", address, a.Name)
	case known:
		return refuse("the node at %s has the ID of a member, %v: was a data directory copied? Start it with an empty one", address, a.ID)
	case r.list.WasRemoved(a.ID):
		return refuse("node %s was removed from the cluster: start it with a new data directory", name)
	case a.Cluster != 0:
		return refuse("the data directory of node %s is one of the cluster %v, and this cluster is %v: start it with a new data directory", name, a.Cluster, self.Cluster)
	}
	if lack := (members.Levels{Lowest: max(a.Lowest, 1), Highest: a.Level}).Lack(r.list.Level); lack != "" {
		return refuse("node %s %s", name, lack)
	}
	return a.ID, nil
}

// Remove removes the node of this name, and returns when it is none any more. Only the leader can do
// it; to remove itself it gives the leadership away first, and fails with ErrGaveAway. Otherwise it
// fails like Add.
func (n *Node) Remove(ctx context.Context, name string) error {
	release, err := n.beginChange()
	if err != nil {
		return err
	}
	defer release()
	alive := n.alive(ctx)
	check := func(l *members.List, answers func(ID) bool) error { return l.CheckRemoval(name, both(alive, answers)) }
	m, _ := n.roster.Load().list.Named(name)
	if m.ID != n.ID() {
		return n.propose(ctx, raftpb.ConfChangeRemoveNode, m, check)
	}
	if err := n.try(check); err != nil {
		return err
	}
	if err := n.Transfer(ctx, 0); err != nil {
		return fmt.Errorf("node %s leads, and could not give the leadership away: %w", name, err)
	}
	return ErrGaveAway
}

// try says whether a change would be refused now.
func (n *Node) try(check func(*members.List, func(ID) bool) error) (err error) {
	if !n.do(func() {
		progress := n.core.Progress()
		if progress == nil {
			err = consensus.ErrNotLeader
			return
		}
		err = check(n.roster.Load().list, func(id ID) bool { return progress[uint64(id)].Active })
	}) {
		return ErrStopped
	}
	return err
}

// aliveTimeout is how long a member may take to say that it runs.
const aliveTimeout = 2 * time.Second

// alive asks all members whether they run: the consensus takes a node that has just ended for one that
// answers, until an election timeout has passed.
func (n *Node) alive(ctx context.Context) map[ID]bool {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	all, found, asked := map[ID]bool{n.ID(): true}, make(chan ID, 2*members.Max), 0
	for id, address := range n.roster.Load().addresses {
		if ID(id) == n.ID() {
			continue
		}
		asked++
		n.running.Go(func() {
			defer n.guard("a question to a member")
			if a, err := founding.Ask(ctx, n.port, address); err == nil && a.ID == ID(id) {
				found <- a.ID
			} else {
				found <- n.ID()
			}
		})
	}
	for range asked {
		all[<-found] = true
	}
	return all
}

func both(alive map[ID]bool, answers func(ID) bool) func(ID) bool {
	return func(id ID) bool { return alive[id] && answers(id) }
}

// ErrGaveAway: the node that is to be removed has given its leadership away; its successor removes it.
var ErrGaveAway = errors.New("the leadership was given away first")

// beginChange keeps other changes out until release is called.
func (n *Node) beginChange() (release func(), err error) {
	select {
	case n.changing <- struct{}{}:
		return func() { <-n.changing }, nil
	default:
		return nil, ErrChanging
	}
}

// raiseLevel has the cluster go to the highest format level that all members know, if each of them is connected
// and answers. It is called at each tick of a leader, with deciding held.
func (n *Node) raiseLevel() {
	list := n.roster.Load().list
	if list.Level >= members.Level || n.change != nil || !n.core.Office().Ready {
		return
	}
	progress := n.core.Progress()
	next := list.NextLevel(func(id ID) (members.Levels, bool) {
		if id == n.ID() {
			return members.Own, true
		}
		announced := n.levels[id]
		if announced == nil || !progress[uint64(id)].Active {
			return members.Levels{}, false
		}
		return *announced, true
	})
	if next == list.Level {
		return
	}
	c, err := members.Raise(next)
	if err == nil {
		// It fails if this node gives the leadership away: then the next leader does it.
		_ = n.proposeChange(c, &proposal{done: make(chan error, 2)}, func(*members.List, func(ID) bool) error { return nil })
	}
}

// promoteLearner gives a learner that lacks next to nothing its vote. It is called at each tick, with deciding held.
func (n *Node) promoteLearner() {
	list := n.roster.Load().list
	if n.change != nil || list.Voters() == len(list.Members) || !n.core.Office().Ready {
		return
	}
	last, _ := n.log.LastIndex()
	nearest := n.log.Before(n.o.LogKeep/2, last) // the log keeps what is behind it
	progress := n.core.Progress()
	for _, m := range list.Members {
		p := progress[uint64(m.ID)]
		if !m.Learner || !p.Active || p.Match == 0 || p.Match+promotionLag < last || p.Match < nearest {
			continue
		}
		c, err := members.Change(raftpb.ConfChangeAddNode, m)
		if err == nil {
			err = n.proposeChange(c, &proposal{done: make(chan error, 2)}, (*members.List).CheckPromotion)
		}
		if now := n.now(); err != nil && !errors.Is(err, consensus.ErrNotLeader) && now > n.saidVote {
			n.saidVote = now + time.Minute
			n.o.Logger.Warn("a node that has all data gets no vote yet", "node", n.o.Name, "of", m.Name, "reason", err)
		}
		return
	}
}
