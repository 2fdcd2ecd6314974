// Package founding is a node's first start: nodes that found a cluster together, and a node that
// joins one.
//
// Nodes have random IDs, so that one which has lost its data directory is not taken for the
// one that voted and stored entries. Before its first start each node therefore asks every
// peer who it is. If all answer, and none belongs to a cluster, they found one: their IDs are
// those of the founders, and the cluster's ID follows from them. A peer that has founded it with this node
// knows all of them, so that one which has died since is not waited for. If a peer belongs to a cluster that this node has not founded, this
// node waits until it was added there, and then begins with an empty log.
//
// A node answers with what it knows also later. One that knows another node by the name of the
// asker tells it so, and the asker does not start. A node without a leader asks as well: it may have
// been removed.
package founding

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sort"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

const (
	// Magic is how a connection begins on which a node is asked who it is.
	Magic   = "holdfast found 1"
	timeout = 5 * time.Second
	pause   = 200 * time.Millisecond
)

// Answer is what a node says of itself.
type Answer struct {
	identity.Identity
	Peers []string `json:"peers"` // names, sorted
	// Level and Lowest are the format levels that its program knows, InForce the cluster's; 0: the program
	// does not say.
	Level   int `json:"level"`
	Lowest  int `json:"lowest_level,omitempty"`
	InForce int `json:"level_in_force,omitempty"`
	// Instance is a random number of each start of a node; 0: the program does not say it.
	Instance members.ID `json:"instance,omitempty"`
	// Now are the members, with their addresses, and Removed those that were; of a node that
	// belongs to a cluster.
	Now     []members.Member `json:"now,omitempty"`
	Removed []members.ID     `json:"removed,omitempty"`
}

var (
	// ErrOtherCluster: the node does not belong to the cluster that its peers form.
	ErrOtherCluster = errors.New("this node is not one of the cluster's")
	// ErrRemoved: the node was removed from its cluster.
	ErrRemoved = errors.New("this node was removed from its cluster")
)

// Send answers a node that asks who this one is.
func (a *Answer) Send(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	_ = json.NewEncoder(conn).Encode(a)
}

// Ask asks a node at an address who it is.
func Ask(ctx context.Context, p *port.Port, address string) (a Answer, err error) {
	conn, err := p.Dial(ctx, address, Magic)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	err = json.NewDecoder(io.LimitReader(conn, 2*identity.Max)).Decode(&a)
	return a, err
}

// Start is a node's first start.
type Start struct {
	FS      vfs.FS
	DataDir string
	NodeDir string
	Self    identity.Identity // without a cluster
	Peers   []Peer            // CheckPeers has found nothing wrong
	Port    *port.Port
	Logger  *slog.Logger
}

// Begin makes the node one of a cluster, and returns who it is then. It fails with identity.ErrNotOurs,
// ErrOtherCluster, ErrRemoved, ctx's error, or with what is wrong in words.
func (s *Start) Begin(ctx context.Context) (*identity.Identity, error) {
	self := s.Self
	if err := identity.CheckUnused(s.FS, s.DataDir); err != nil {
		return nil, err
	}
	founders, joined, err := s.askAll(ctx)
	if err != nil {
		return nil, err
	}
	at := identity.Founded
	self.Members, self.Cluster, self.Level = founders, identity.ClusterOf(founders), members.Lowest
	if joined != nil {
		at = raftlog.Position{}
		self.Members, self.Cluster, self.Base, self.Level = joined.Now, joined.Cluster, &identity.Base{}, joined.InForce
	}
	// A log that is there was made by a start that did not get to its end.
	raft := self.LogDir(s.FS, s.NodeDir)
	if err := s.FS.RemoveAll(raft); err != nil {
		return nil, err
	}
	if err := raftlog.Create(s.FS, raft, at); err != nil {
		return nil, err
	}
	if err := self.Write(s.FS, s.NodeDir); err != nil {
		return nil, err
	}
	if joined != nil {
		s.Logger.Info("this node was added to the cluster, and gets all data from the leader", "node", s.Self.Name, "cluster", self.Cluster)
	} else {
		s.Logger.Info("a cluster was founded", "cluster", self.Cluster, "nodes", Names(s.Peers))
	}
	return &self, nil
}

// askAll learns who the peers are, and returns the founders by name, or the answer of a node of
// the cluster to which this one was added.
func (s *Start) askAll(ctx context.Context) (founders []members.Member, joined *Answer, err error) {
	self := &s.Self
	known := map[string]members.Member{s.Self.Name: {Name: s.Self.Name, ID: self.ID, Address: AddressOf(s.Peers, s.Self.Name)}}
	var waiting said
	add := fmt.Sprintf("holdfast cluster add %s=%s --data DIR", s.Self.Name, AddressOf(s.Peers, s.Self.Name))
	because := errors.New("the first start of a cluster needs all of its nodes, and has not heard from all yet") // why the node waits
	for {
		var disagrees, silent error
		lacked := "" // the first node that is silent
		clustered := false
		for _, p := range s.Peers {
			if p.Name == s.Self.Name {
				continue
			}
			a, err := Ask(ctx, s.Port, p.Address)
			if ctx.Err() != nil {
				return nil, nil, &notFounded{because, ctx.Err()}
			}
			if err != nil {
				if _, answered := known[p.Name]; !answered {
					lacked, silent = cmp.Or(lacked, p.Name), cmp.Or(silent, fmt.Errorf("node %s at %s: %w", p.Name, p.Address, err))
				}
				continue
			}
			belongs, err := s.agrees(p, a)
			switch {
			case errors.Is(err, errOtherPeers):
				disagrees = err
			case err != nil:
				return nil, nil, err
			case belongs:
				return nil, &a, nil
			case a.founded(self):
				return s.withOwnAddresses(a.Members), nil, nil
			case a.Cluster != 0:
				clustered = true
			default:
				known[p.Name] = members.Member{Name: p.Name, ID: a.ID, Address: p.Address}
			}
		}
		if silent != nil {
			because = fmt.Errorf("the first start of a cluster needs all of its nodes: %w", silent)
		}
		if clustered {
			because = fmt.Errorf("this node was not added to the cluster (%s)", add)
		}
		switch {
		case clustered:
			s.say(&waiting, said{why: "added"}, "waiting until this node is added to the cluster: run the command where one of its nodes runs, with that node's data directory", "command", add)
		case disagrees != nil:
			return nil, nil, disagrees
		case silent == nil:
			for _, m := range known {
				founders = append(founders, m)
			}
			sort.Slice(founders, func(i, j int) bool { return founders[i].Name < founders[j].Name })
			return founders, nil, nil
		default:
			s.say(&waiting, said{why: "founded", node: lacked, error: silent.Error()}, "waiting for the other nodes: the first start of a cluster needs all of them. If there is a cluster to which this node is to be added, run the command where one of its nodes runs, with that node's data directory",
				"error", silent, "command", add)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, &notFounded{because, ctx.Err()}
		}
	}
}

// notFounded is the error of a first start that has ended because its context has. Its text has what the
// start lacked.
type notFounded struct{ lacked, ended error }

func (e *notFounded) Error() string { return e.lacked.Error() }
func (e *notFounded) Unwrap() error { return e.ended }

// said is what the log says of why a node waits.
type said struct {
	why, node, error string
	at               time.Time
}

// errorPause is how often the log has another error of the same node.
const errorPause = 10 * time.Second

// say logs why the node waits, unless the log has it. Which node it lacks changes once for each node at the most.
func (s *Start) say(last *said, now said, text string, args ...any) {
	now.at = time.Now()
	same := last.why == now.why && last.node == now.node
	if same && (last.error == now.error || now.at.Sub(last.at) < errorPause) {
		return
	}
	*last = now
	s.Logger.Info(text, append([]any{"node", s.Self.Name}, args...)...)
}

// errOtherPeers: two nodes that belong to no cluster have other peers.
var errOtherPeers = errors.New("the nodes have other peers")

// founded says whether a node has founded its cluster together with this one.
func (a *Answer) founded(self *identity.Identity) bool {
	return a.Cluster != 0 && identity.Has(a.Members, self.Name, self.ID) && identity.ClusterOf(a.Members) == a.Cluster
}

// withOwnAddresses are the founders that another node has named, each with the address that this node's configuration
// gives it.
func (s *Start) withOwnAddresses(founders []members.Member) []members.Member {
	own := slices.Clone(founders)
	for i, m := range own {
		own[i].Address = cmp.Or(AddressOf(s.Peers, m.Name), m.Address)
	}
	return own
}

// agrees says why a peer cannot be in a cluster with this node, and whether it belongs to one to
// which this node was added.
func (s *Start) agrees(p Peer, a Answer) (belongs bool, err error) {
	self := &s.Self
	switch names := Names(s.Peers); {
	case a.Name != p.Name:
		return false, fmt.Errorf("the node at %s has the name %q, and the list of peers calls it %q: correct the list", p.Address, a.Name, p.Name)
	case a.ID == self.ID:
		return false, fmt.Errorf("node %s at %s has this node's ID, %v: was the data directory copied? Start each node with an empty one", p.Name, p.Address, a.ID)
	case slices.Contains(a.Removed, self.ID):
		return false, Removed(self, "node "+a.Name)
	case a.Cluster == 0 && !slices.Equal(a.Peers, names):
		return false, fmt.Errorf("%w: node %s at %s has the peers %v, and this node has %v: give all nodes the same list", errOtherPeers, p.Name, p.Address, a.Peers, names)
	case a.Cluster == 0 && max(a.Lowest, 1) != members.Lowest:
		return false, fmt.Errorf("node %s at %s would begin the cluster with the format level %d, and this node with %d: found it with one version", p.Name, p.Address, max(a.Lowest, 1), members.Lowest)
	case a.Cluster == 0:
		return false, nil
	case identity.Has(a.Now, self.Name, self.ID) && !identity.Has(a.Members, self.Name, self.ID):
		return true, nil
	}
	for _, m := range append(slices.Clone(a.Members), a.Now...) {
		if m.Name == self.Name && m.ID != self.ID && isNow(&a, m) {
			return false, fmt.Errorf("%w: node %s at %s is of cluster %v, and its node %q has another ID than this one, whose data directory is new. Start this node with the data directory that it had; if that is lost, run \"holdfast cluster remove %s\", then \"holdfast cluster add %s=%s\"",
				ErrOtherCluster, p.Name, p.Address, a.Cluster, self.Name, self.Name, self.Name, AddressOf(s.Peers, self.Name))
		}
	}
	return false, nil
}

// isNow says whether a founder is a member now, as far as the node that answers knows.
func isNow(a *Answer, m members.Member) bool {
	return len(a.Now) == 0 || identity.Has(a.Now, m.Name, m.ID)
}

// Removed is ErrRemoved, with what says so and what to do.
func Removed(self *identity.Identity, by string) error {
	return fmt.Errorf("%w, as %s says. To add it again, start it with a new data directory, and run \"holdfast cluster add %s=HOST:PORT\"", ErrRemoved, by, self.Name)
}
