package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// Founding
//
// Nodes have random IDs, so that one which has lost its data directory is not taken for the
// one that voted and stored entries. Before the first start each node therefore asks every
// peer who it is, until all have answered. Their IDs then are those of the founders, and the
// cluster's ID follows from them. A node answers with what it knows also later. One that
// knows another node by the name of the asker tells it so, and the asker does not start.

const (
	foundMagic   = "holdfast found 1"
	foundTimeout = 5 * time.Second
	foundPause   = 200 * time.Millisecond
)

// answer is what a node says of itself.
type answer struct {
	identity
	Peers []string `json:"peers"` // names, sorted
}

// ErrOtherCluster: the node does not belong to the cluster that its peers form.
var ErrOtherCluster = errors.New("this node is not one of the cluster's")

// tell answers a node that asks who this one is.
func (n *Node) tell(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(foundTimeout))
	_ = json.NewEncoder(conn).Encode(answer{*n.self.Load(), peerNames(n.o.Peers)})
}

func peerNames(peers []Peer) (names []string) {
	for _, p := range peers {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// askAll learns who the peers are, and returns the founders by name.
func (n *Node) askAll(ctx context.Context) (founders []member, err error) {
	self := n.self.Load()
	founders = []member{{self.Name, self.ID}}
	said := false
	for _, p := range n.o.Peers {
		if p.Name == n.o.Name {
			continue
		}
		for {
			a, err := n.ask(ctx, p)
			if err == nil {
				if err := n.agrees(p, a); err != nil {
					return nil, err
				}
				founders = append(founders, member{p.Name, a.ID})
				break
			}
			if !said {
				n.o.Logger.Info("waiting for the other nodes: the first start of a cluster needs all of them", "node", p.Name, "address", p.Address, "error", err)
				said = true
			}
			select {
			case <-time.After(foundPause):
			case <-ctx.Done():
				return nil, fmt.Errorf("the first start of a cluster needs all of its nodes, and node %s at %s has not answered: %w", p.Name, p.Address, err)
			}
		}
	}
	slices.SortFunc(founders, func(a, b member) int { return cmp.Compare(a.Name, b.Name) })
	return founders, nil
}

// ask asks a peer who it is.
func (n *Node) ask(ctx context.Context, p Peer) (a answer, err error) {
	conn, err := n.port.Dial(ctx, p.Address, foundMagic)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(foundTimeout))
	err = json.NewDecoder(io.LimitReader(conn, maxIdentity)).Decode(&a)
	return a, err
}

// agrees says why a peer cannot found a cluster with this node.
func (n *Node) agrees(p Peer, a answer) error {
	self := n.self.Load()
	switch names := peerNames(n.o.Peers); {
	case a.Name != p.Name:
		return fmt.Errorf("the node at %s has the name %q, and the list of peers calls it %q: correct the list", p.Address, a.Name, p.Name)
	case a.ID == self.ID:
		return fmt.Errorf("node %s at %s has this node's ID, %v: was the data directory copied? Start each node with an empty one", p.Name, p.Address, a.ID)
	case a.Cluster != 0 && !slices.Contains(a.Members, member{self.Name, self.ID}):
		return fmt.Errorf("%w: node %s at %s is of cluster %v, and its node %q has another ID than this one, whose data directory is new. Start this node with the data directory that it had", ErrOtherCluster, p.Name, p.Address, a.Cluster, self.Name)
	case a.Cluster == 0 && !slices.Equal(a.Peers, names):
		return fmt.Errorf("node %s at %s has the peers %v, and this node has %v: give all nodes the same list", p.Name, p.Address, a.Peers, names)
	}
	return nil
}
