package node

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/founding"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

var (
	// ErrOtherCluster is founding.ErrOtherCluster.
	ErrOtherCluster = founding.ErrOtherCluster
	// ErrRemoved is founding.ErrRemoved.
	ErrRemoved = founding.ErrRemoved
	// ErrPeers: the configuration gives a node the address of another one.
	ErrPeers = errors.New("--cluster-peers is wrong")
	// ErrTwice: another node runs with this node's ID, because the data directory was copied.
	ErrTwice = errors.New("another node runs with this node's ID")
	// ErrOldData: the data directory lacks entries that this node has acknowledged.
	ErrOldData = errors.New("the data directory is older than what this node has acknowledged")
)

// tell answers a node that asks who this one is.
func (n *Node) tell(conn net.Conn) {
	a := founding.Answer{Identity: *n.self.Load(), Peers: founding.Names(n.o.Peers), Level: members.Own.Highest, Lowest: members.Own.Lowest, Instance: n.instance}
	if r := n.roster.Load(); r != nil {
		a.InForce = r.list.Level
		a.Now = slices.Clone(r.list.Members)
		for i := range a.Now {
			a.Now[i].Address = r.addresses[uint64(a.Now[i].ID)]
		}
		a.Removed = r.list.Removed
	}
	a.Send(conn)
}

// removalPause is how often a node that knows no leader, or does not hear it, asks the others whether
// it is still a member. A learner does not notice by itself that it has no leader any more.
const removalPause = 2 * time.Second

// watchRemoval ends the node when another one says that it is no member any more, or that the cluster
// has a format level that this program does not know. At first it ends one whose peers are another cluster's.
func (n *Node) watchRemoval() {
	defer n.guard("the watcher of the node's membership")
	if err := n.checkPeers(); err != nil {
		n.fail(err)
		return
	}
	tick := time.NewTicker(removalPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-n.ending.Done():
			return
		}
		n.mu.Lock()
		led := n.view.Leads || n.view.Leader != 0 && n.now()-n.behind.Last() < 2*n.o.Election
		n.mu.Unlock()
		if led {
			continue
		}
		if err := n.askWhetherRemoved(); err != nil {
			n.fail(err)
			return
		}
	}
}

// checkPeers fails with ErrOtherCluster if a node that the configuration names belongs to another cluster than
// this node's data: they may be those of another node's directory. It fails with ErrPeers if the address that
// the configuration gives a founder is that of another node, which would refuse what this one sends.
func (n *Node) checkPeers() error {
	self := n.self.Load()
	for _, p := range n.o.Peers {
		if p.Name == self.Name {
			continue
		}
		a, err := founding.Ask(n.ending, n.port, p.Address)
		if m, known := n.roster.Load().list.Named(p.Name); err == nil && a.Cluster == self.Cluster && a.Name != p.Name && known && m.Address == "" {
			return fmt.Errorf("%w: the node at %s has the name %q, and not %q: correct the list", ErrPeers, p.Address, a.Name, p.Name)
		}
		if err != nil || a.Cluster == 0 || a.Cluster == self.Cluster || slices.Contains(self.Former, a.Cluster) || slices.Contains(a.Former, self.Cluster) {
			continue // askWhetherRemoved sees to the last
		}
		return fmt.Errorf("%w: %s has the data of a node of cluster %v, and node %s at %s, which --cluster-peers names, is of cluster %v. Start this node with the data directory that it had there, or correct --cluster-peers",
			founding.ErrOtherCluster, n.o.Dir, self.Cluster, a.Name, p.Address, a.Cluster)
	}
	return nil
}

// checkInstance fails with ErrTwice if another node runs with this node's ID at an address where the others
// reach it.
func (n *Node) checkInstance(address string) error {
	if address == "" {
		return nil
	}
	a, err := founding.Ask(n.ending, n.port, address)
	if err != nil || a.ID != n.ID() || a.Instance == 0 || a.Instance == n.instance {
		return nil
	}
	return fmt.Errorf("%w, %v, at %s, where the other nodes reach it: was the data directory %s copied? To have a node more, start it with a new data directory and a name of its own, and run \"holdfast cluster add\"",
		ErrTwice, a.ID, address, n.o.Dir)
}

// askWhetherRemoved asks all nodes that are known; nil: none says why this one cannot go on.
func (n *Node) askWhetherRemoved() error {
	self := n.self.Load()
	for id, address := range n.roster.Load().addresses {
		if ID(id) == self.ID || address == "" {
			continue
		}
		a, err := founding.Ask(n.ending, n.port, address)
		switch {
		case err != nil:
		case a.Cluster == self.Cluster && slices.Contains(a.Removed, self.ID):
			return founding.Removed(self, "node "+a.Name)
		case a.Cluster == self.Cluster && a.InForce > 0 && members.Own.Lack(a.InForce) != "":
			return members.CheckLevel(a.InForce)
		case slices.Contains(a.Former, self.Cluster):
			return fmt.Errorf("%w: node %s at %s has survived a cluster's loss of its quorum, and is of a new cluster, %v, while this node's data are of the former one. Start this node with a new data directory, and run \"holdfast cluster add %s=HOST:PORT\"",
				founding.ErrOtherCluster, a.Name, address, a.Cluster, self.Name)
		}
		for _, m := range a.Now {
			if err == nil && a.Cluster == self.Cluster && m.ID == self.ID {
				if err := n.checkInstance(m.Address); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
