package node

import (
	"fmt"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/replica/founding"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

// ID identifies a node, or a cluster.
type ID = members.ID

// Dir is identity.Dir.
const Dir = identity.Dir

// ErrNotOurs is identity.ErrNotOurs.
var ErrNotOurs = identity.ErrNotOurs

// Peer is a node as the configuration names it.
type Peer = founding.Peer

// peerAddress is the address that the configuration gives a node; empty: it does not name it.
func (o *Options) peerAddress(name string) string { return founding.AddressOf(o.Peers, name) }

// roster is which nodes the cluster has, as this one knows it, and where they are. It is not
// changed: SetRoster makes another one.
type roster struct {
	list      *members.List
	addresses map[uint64]string // of the members, and of others that have connected
}

// address is that of a member. A node that was added has the one it was added with; founders
// have those of this node's configuration, or those that it had when it became a node.
func (n *Node) address(m members.Member) string {
	if m.Address != "" {
		return m.Address
	}
	if a := n.o.peerAddress(m.Name); a != "" {
		return a
	}
	for _, known := range n.self.Load().Members {
		if known.ID == m.ID {
			return known.Address
		}
	}
	return ""
}

// setRoster notes the members as of the newest entry that is committed. deciding is held, or
// nothing else runs yet.
func (n *Node) setRoster(list *members.List) {
	next := &roster{list: list, addresses: map[uint64]string{}}
	all := list.Members
	if len(all) == 0 { // this node has yet to get the cluster's data
		all = n.self.Load().Members
	}
	var hosts []string
	for _, m := range all {
		address := n.address(m)
		next.addresses[uint64(m.ID)] = address
		hosts = append(hosts, address)
	}
	if before := n.roster.Load(); before != nil { // those that have connected and are not known yet
		for id, address := range before.addresses {
			_, known := before.list.Find(ID(id))
			if _, now := next.addresses[id]; !known && !now && !list.WasRemoved(ID(id)) {
				next.addresses[id] = address
			}
		}
	}
	n.useRoster(next, hosts)
	if list.WasRemoved(n.snapshots.to) {
		n.endSnapshot()
	}
}

func (n *Node) useRoster(next *roster, hosts []string) {
	if n.o.Members != nil && hosts != nil {
		n.o.Members(hosts)
	}
	n.roster.Store(next)
	if n.transport != nil {
		n.transport.SetPeers(next.addresses)
	}
}

// meet notes the address of a node that has connected and is not known as a member: it may be one
// by entries that this node has yet to get. deciding is held.
func (n *Node) meet(id uint64, address string) {
	now := n.roster.Load()
	if _, known := now.addresses[id]; known || len(now.addresses) >= 2*members.Max || n.port.Allows(address) != nil {
		return
	}
	next := &roster{list: now.list, addresses: map[uint64]string{id: address}}
	for id, address := range now.addresses {
		next.addresses[id] = address
	}
	n.useRoster(next, nil)
}

// admit says why a node that connects is refused, and notes what it announces until left is called.
// A goroutine of the transport calls it.
func (n *Node) admit(id uint64, address string, level uint32) (left func(), err error) {
	levels := members.Announced(level)
	if !n.do(func() {
		list := n.roster.Load().list
		if list.WasRemoved(ID(id)) {
			err = fmt.Errorf("node %v was removed from the cluster: it can come back with a new data directory, as a new node", ID(id))
			return
		}
		if lack := levels.Lack(list.Level); lack != "" {
			err = fmt.Errorf("node %s %s", n.name(id), lack)
			return
		}
		n.meet(id, address)
		n.levels[ID(id)] = &levels
	}) {
		err = ErrStopped
	}
	return func() {
		n.do(func() {
			if n.levels[ID(id)] == &levels { // or it has connected again
				delete(n.levels, ID(id))
			}
		})
	}, err
}

// name is the name of a member; its ID if this node does not know it.
func (n *Node) name(id uint64) string {
	if m, known := n.roster.Load().list.Find(ID(id)); known && m.Name != "" {
		return m.Name
	}
	for _, m := range n.self.Load().Members {
		if m.ID == ID(id) {
			return m.Name
		}
	}
	return ID(id).String()
}

// sayDifferences logs where the configuration is not what holds.
func (n *Node) sayDifferences() {
	list := n.roster.Load().list
	if len(list.Members) == 0 {
		return
	}
	if names := founding.Names(n.o.Peers); !slices.Equal(names, list.Names()) {
		n.o.Logger.Warn("--cluster-peers is for the first start: the nodes of the cluster hold, which were changed since", "peers", names, "nodes", list.Names())
	}
	for _, m := range list.Members {
		if given := n.o.peerAddress(m.Name); given != "" && given != n.address(m) {
			n.o.Logger.Warn("--cluster-peers gives a node another address than it was added with, which holds", "node", m.Name, "given", given, "address", n.address(m))
		}
	}
}
