// Package partition runs the nodes of a cluster on hosts whose links a test cuts (package netns),
// with the certificates that nodes need beyond one machine. Its tests show what clients on both
// sides of a cut see; internal/crashtest has a run with all of its actors go through cuts.
package partition

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/holdfast-mqtt/holdfast/internal/harness/netns"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
)

// Cluster is nodes, each on a host of its own. Its methods are safe for concurrent use; those
// that change links may be called by one goroutine at a time.
type Cluster struct {
	*nodes.Cluster
	network *netns.Network
	hosts   map[*nodes.Node]*netns.Host
}

// The ports of each node.
const (
	clientPort  = 1883
	betweenPort = 7001
)

// Plan is one node as New is to make it.
type Plan struct {
	Name  string
	Flags []string // for holdfast serve, besides those of all nodes
	Env   []string // added to the environment, NAME=VALUE
	Data  string   // its directory; empty: one with its name, in the directory of New
}

// Names are the plans of nodes with these names.
func Names(names ...string) (plans []Plan) {
	for _, name := range names {
		plans = append(plans, Plan{Name: name})
	}
	return plans
}

// New plans a cluster in a network of its own, with certificates and data in dir. None of its nodes runs
// yet. Flags are given to holdfast serve for each node. End it with Close. It fails if
// netns.Unavailable does.
func New(binary, dir string, plans []Plan, flags ...string) (*Cluster, error) {
	network, err := netns.New(len(plans))
	if err != nil {
		return nil, err
	}
	c := &Cluster{network: network, hosts: map[*nodes.Node]*netns.Host{}}
	if err := c.plan(binary, dir, plans, flags); err != nil {
		return nil, errors.Join(err, network.Close())
	}
	return c, nil
}

func (c *Cluster) plan(binary, dir string, plans []Plan, flags []string) error {
	authority := filepath.Join(dir, "authority")
	if err := command(binary, "init", authority); err != nil {
		return err
	}
	var places []nodes.Place
	for i, p := range plans {
		h := c.network.Hosts()[i]
		secret := filepath.Join(dir, "certificate-"+p.Name)
		if err := command(binary, "cert", "node", h.Address, "--ca", authority, "--out", secret); err != nil {
			return err
		}
		place := nodes.Place{
			Name: p.Name, Host: h, Data: p.Data, Env: p.Env,
			Clients: fmt.Sprintf("%s:%d", h.Address, clientPort), Between: fmt.Sprintf("%s:%d", h.Address, betweenPort),
			Flags: append([]string{"--cluster-cert", secret + ".crt", "--cluster-key", secret + ".key"}, p.Flags...),
		}
		if place.Data == "" {
			place.Data = filepath.Join(dir, p.Name)
		}
		places = append(places, place)
	}
	all := append([]string{"--allow-anonymous", "--cluster-ca", filepath.Join(authority, "ca.crt")}, flags...)
	c.Cluster = nodes.At(binary, places, all...)
	for i, n := range c.Nodes() {
		c.hosts[n] = c.network.Hosts()[i]
	}
	return nil
}

func command(binary string, args ...string) error {
	if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("holdfast %v: %w\n%s", args, err, out)
	}
	return nil
}

// Close kills the nodes and removes the network. Data and certificates stay.
func (c *Cluster) Close() error {
	for _, n := range c.Nodes() {
		n.Continue()
	}
	c.Kill(c.Nodes()...)
	return c.network.Close()
}

func (c *Cluster) hostsOf(all []*nodes.Node) (hosts []*netns.Host) {
	for _, n := range all {
		hosts = append(hosts, c.hosts[n])
	}
	return hosts
}

// Others are all nodes but some.
func (c *Cluster) Others(than ...*nodes.Node) (others []*nodes.Node) {
next:
	for _, n := range c.Nodes() {
		for _, o := range than {
			if n == o {
				continue next
			}
		}
		others = append(others, n)
	}
	return others
}

// Isolate cuts all links between nodes and the others, both ways.
func (c *Cluster) Isolate(side ...*nodes.Node) error {
	return c.network.Part(c.hostsOf(side), c.hostsOf(c.Others(side...)))
}

// Scatter cuts all links.
func (c *Cluster) Scatter() error { return c.network.Part(c.network.Hosts(), c.network.Hosts()) }

// Mute has nothing arrive of what a node sends to others.
func (c *Cluster) Mute(n *nodes.Node) error {
	return c.each(n, func(o *nodes.Node) error { return c.Cut(n, o) })
}

// Deafen has nothing arrive of what others send to a node.
func (c *Cluster) Deafen(n *nodes.Node) error {
	return c.each(n, func(o *nodes.Node) error { return c.Cut(o, n) })
}

func (c *Cluster) each(n *nodes.Node, change func(other *nodes.Node) error) (err error) {
	for _, o := range c.Others(n) {
		err = errors.Join(err, change(o))
	}
	return err
}

// Cut has nothing arrive of what one node sends to another.
func (c *Cluster) Cut(from, to *nodes.Node) error { return c.network.Cut(c.hosts[from], c.hosts[to]) }

// Mend is the end of Cut.
func (c *Cluster) Mend(from, to *nodes.Node) error { return c.network.Mend(c.hosts[from], c.hosts[to]) }

// Unplug takes the carrier of a node's interface away.
func (c *Cluster) Unplug(n *nodes.Node) error { return c.hosts[n].Unplug() }

// The link of Slow: packets are lost when more is sent than it carries for a while.
const (
	slowBits    = 2_000_000
	slowLatency = 60_000_000 // ns
)

// Slow has a node's link carry little, with delays and losses, or with false as much as before.
func (c *Cluster) Slow(n *nodes.Node, slow bool) error {
	if !slow {
		return c.hosts[n].Slow(0, 0)
	}
	return c.hosts[n].Slow(slowBits, slowLatency)
}

// Heal mends all that was cut.
func (c *Cluster) Heal() error { return c.network.Heal() }
