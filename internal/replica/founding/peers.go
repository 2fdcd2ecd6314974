package founding

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Peer is a node as the configuration names it.
type Peer struct {
	Name    string `json:"name"`
	Address string `json:"address"` // of its port, HOST:PORT
}

// CheckPeers says what is wrong with the peers of a configuration.
func CheckPeers(name string, peers []Peer) error {
	seen := map[string]string{}
	for _, p := range peers {
		if p.Name == "" || p.Address == "" {
			return errors.New("a peer needs a name and an address: NAME=HOST:PORT")
		}
		for _, of := range []string{"name " + p.Name, "address " + p.Address} {
			if other, again := seen[of]; again {
				return fmt.Errorf("the peers %s and %s have the same %s", other, p.Name, strings.Fields(of)[0])
			}
			seen[of] = p.Name
		}
	}
	if !slices.ContainsFunc(peers, func(p Peer) bool { return p.Name == name }) {
		return fmt.Errorf("node %q is not among the peers: they must include it", name)
	}
	return nil
}

// Names are those of peers, sorted.
func Names(peers []Peer) (names []string) {
	for _, p := range peers {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// AddressOf is the address that peers give a node; empty: they do not name it.
func AddressOf(peers []Peer, name string) string {
	for _, p := range peers {
		if p.Name == name {
			return p.Address
		}
	}
	return ""
}
