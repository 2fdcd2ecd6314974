// Package settings has the settings of a node of a cluster, as the command line and the
// configuration give them: it says what is wrong with them, and makes of the names of files
// the TLS configuration by which nodes prove themselves to each other.
//
// The commands fill Settings, and the server makes its node of them. The package opens no
// connection and nothing in the data directory.
package settings

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// How leaders answer reads.
const (
	Lease  = "lease"  // from memory, as long as no other node can have become leader by the clocks' rates
	Quorum = "quorum" // after a quorum has said that this node still leads; needs no clocks
)

// MaxNodes bounds the nodes of a cluster.
const MaxNodes = 9

// Settings are those of a node. The zero value: the server is not in a cluster.
type Settings struct {
	Node   string   // its name
	Listen string   // HOST:PORT for the other nodes; empty: its address in Peers
	Peers  []string // NAME=HOST:PORT of all nodes, this one included
	// Bootstrap: the data directory, of a server by itself, becomes that of a cluster of this node.
	Bootstrap bool
	Cert      string // PEM file with the node's certificate, for servers and for clients
	Key       string // PEM file with its private key
	CA        string // PEM file with the authorities of the nodes' certificates
	Reads     string // Lease (the default, also if empty) or Quorum
	// LogKeep is how many bytes of its log the node keeps for others that are behind; 0: the
	// node's default.
	LogKeep int64
	// SnapshotRate bounds the bytes per second that the leader sends to a node that lacks all
	// data; 0: the node's default.
	SnapshotRate int64
	// RelayMemory bounds, in bytes, the large buffers of clients that the node passes on to the
	// leader, and on the leader those with what clients of fronts have sent; 0: the relay's default.
	RelayMemory int64
	// Reading is called while a node that starts reads its log, with how many bytes it has read. nil:
	// nothing happens.
	Reading  func(bytes int64)
	Election time.Duration // without a leader before another one is elected; 0: the node's default
}

// Peer is a node as the settings name it.
type Peer struct{ Name, Address string }

// InCluster says whether the server is a node of a cluster.
func (s *Settings) InCluster() bool { return s.Node != "" || len(s.Peers) > 0 }

// name is what nodes may be called.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ParsePeers reads the peers, of which no two have the same name or address.
func (s *Settings) ParsePeers() (peers []Peer, err error) {
	names, addresses := map[string]bool{}, map[string]string{}
	for _, text := range s.Peers {
		p, err := ParsePeer(text)
		if err != nil {
			return nil, fmt.Errorf("--cluster-peers %w", err)
		}
		if names[p.Name] {
			return nil, fmt.Errorf("--cluster-peers: two nodes have the name %s: give each node a name of its own", p.Name)
		}
		if other, again := addresses[p.Address]; again {
			return nil, fmt.Errorf("--cluster-peers: the nodes %s and %s have the same address, %s: each node listens on one of its own", other, p.Name, p.Address)
		}
		names[p.Name], addresses[p.Address] = true, p.Name
		peers = append(peers, p)
	}
	if len(peers) > MaxNodes {
		return nil, fmt.Errorf("--cluster-peers: %d nodes: a cluster has at most %d", len(peers), MaxNodes)
	}
	return peers, nil
}

// ParsePeer reads NAME=HOST:PORT.
func ParsePeer(text string) (p Peer, err error) {
	n, address, found := strings.Cut(text, "=")
	n, address = strings.TrimSpace(n), strings.TrimSpace(address)
	if !found || !name.MatchString(n) {
		return p, fmt.Errorf("%q: want NAME=HOST:PORT, with a name of 1 to 63 letters, digits, dots, dashes and underscores", text)
	}
	if err := checkAddress(address); err != nil {
		return p, fmt.Errorf("%q: %w", text, err)
	}
	return Peer{n, address}, nil
}

// checkAddress says what is wrong with the address at which others reach a node.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("want HOST:PORT: %w", err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port %q: want 1 to 65535", port)
	}
	ip, err := netip.ParseAddr(host)
	if host == "" || err == nil && ip.IsUnspecified() {
		return errors.New("it names no host by which the other nodes reach this one")
	}
	return nil
}

// Check says what is wrong with the settings. syncs says whether each write is acknowledged after an fsync
// only.
func (s *Settings) Check(syncs bool) error {
	if !s.InCluster() {
		for flag, given := range map[string]bool{"cluster-listen": s.Listen != "", "cluster-cert": s.Cert != "", "cluster-key": s.Key != "", "cluster-ca": s.CA != "", "cluster-bootstrap": s.Bootstrap} {
			if given {
				return fmt.Errorf("--%s is for a node of a cluster: name it and the nodes, with --node and --cluster-peers, or leave it out", flag)
			}
		}
		return nil
	}
	peers, err := s.ParsePeers()
	if err != nil {
		return err
	}
	own := ""
	for _, p := range peers {
		if p.Name == s.Node {
			own = p.Address
		}
	}
	switch {
	case s.Node == "":
		return errors.New("--cluster-peers: say which of the nodes this is: --node NAME")
	case len(peers) == 0:
		return fmt.Errorf("--node %s: say with --cluster-peers %s=HOST:PORT,... which nodes the cluster has, this one included", s.Node, s.Node)
	case own == "":
		return fmt.Errorf("--node %s: no node in --cluster-peers has this name: the list names all nodes, this one included", s.Node)
	case !syncs:
		return errors.New("--durability: in a cluster it must be sync: a node that has lost what it acknowledged could lose it for all")
	case s.Reads != "" && s.Reads != Lease && s.Reads != Quorum:
		return fmt.Errorf("--cluster-reads %q: want %s or %s", s.Reads, Lease, Quorum)
	}
	if s.Listen != "" {
		if _, _, err := net.SplitHostPort(s.Listen); err != nil {
			return fmt.Errorf("--cluster-listen %q: want HOST:PORT: %w", s.Listen, err)
		}
	}
	return s.checkFiles(peers, "node")
}

// checkFiles says whether nodes prove themselves where they must. kind is what holdfast cert calls this program.
func (s *Settings) checkFiles(peers []Peer, kind string) error {
	for _, of := range [][3]string{{"cluster-cert", s.Cert, s.Key + s.CA}, {"cluster-key", s.Key, s.Cert + s.CA}, {"cluster-ca", s.CA, s.Cert + s.Key}} {
		if of[1] == "" && of[2] != "" {
			return fmt.Errorf("--%s is missing: a %s needs --cluster-cert, --cluster-key and --cluster-ca, or none of them", of[0], kind)
		}
	}
	if s.Cert != "" {
		return nil
	}
	beyond := func(flag, address string) error {
		return fmt.Errorf("--%s %s: beyond loopback nodes must prove themselves by certificates, because a program that they take for a node could read and change everything: give --cluster-cert, --cluster-key and --cluster-ca; \"holdfast cert %s\" makes them", flag, address, kind)
	}
	if s.Listen != "" && !isLoopback(s.Listen) {
		return beyond("cluster-listen", s.Listen)
	}
	for _, p := range peers {
		if !isLoopback(p.Address) {
			return beyond("cluster-peers", p.Name+"="+p.Address)
		}
	}
	return nil
}

// isLoopback says whether an address is certainly one of the loopback interface: a name other
// than localhost may become another address later.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Advice says what so many nodes survive, if that is less than one would think.
func Advice(nodes int) []string {
	switch {
	case nodes == 1:
		return []string{"a cluster of one node does not survive its loss: use 3 nodes"}
	case nodes == 2:
		return []string{"a cluster of 2 nodes stops when one of them is gone, so it is less available than one node: use 3"}
	case nodes%2 == 0:
		return []string{fmt.Sprintf("a cluster of %d nodes survives the loss of %d, as one of %d does, and each write waits for one node more: use %d or %d", nodes, nodes/2-1, nodes-1, nodes-1, nodes+1)}
	}
	return nil
}
