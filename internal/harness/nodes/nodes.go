// Package nodes runs the nodes of a cluster as processes of this machine, for tests that kill,
// pause and restart them. It knows nothing of what a test does with the cluster.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Cluster is the nodes of a cluster. Its methods are safe for concurrent use; those that start,
// end, pause or continue a node may be called for one node by one goroutine at a time.
type Cluster struct {
	mu    sync.Mutex
	nodes []*Node // guarded by mu; Join and Leave replace the slice
}

// Node is one of them.
type Node struct {
	Name string
	Addr string // for clients
	Data string

	args    []string
	flags   []string // those of args that all nodes have
	env     []string
	host    Host
	cluster *Cluster
	process *process.Process // guarded by the cluster's mu; nil: never started
	paused  bool             // guarded by the cluster's mu
}

// Host is a machine that a node runs on, as far as a test has several.
type Host interface {
	// Start starts a program, as process.Start does.
	Start(cmd *exec.Cmd, ready *regexp.Regexp) (*process.Process, error)
	// Dial connects from there to an address.
	Dial(ctx context.Context, address string) (net.Conn, error)
}

// local is the machine that the test runs on.
type local struct{}

func (local) Start(cmd *exec.Cmd, ready *regexp.Regexp) (*process.Process, error) {
	return process.Start(cmd, ready)
}

func (local) Dial(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// Place is where a node of a cluster is.
type Place struct {
	Name    string
	Clients string // HOST:PORT for clients
	Between string // HOST:PORT for the other nodes
	Data    string // its directory
	Flags   []string
	Env     []string // added to the environment, NAME=VALUE
	Host    Host     // nil: the machine that the test runs on
}

// ready is the line of a node that listens for clients.
var ready = regexp.MustCompile(`listening on [0-9.]+:\d+`)

// New plans a cluster whose nodes have these names and keep their data below dir. None of
// them runs yet. Flags are given to holdfast serve for each node besides its own.
func New(binary, dir string, names []string, flags ...string) (*Cluster, error) {
	var places []Place
	for _, name := range names {
		p := Place{Name: name, Data: filepath.Join(dir, name)}
		var err error
		if p.Clients, err = process.UnusedAddress(); err != nil {
			return nil, err
		}
		if p.Between, err = process.UnusedAddress(); err != nil {
			return nil, err
		}
		places = append(places, p)
	}
	return At(binary, places, flags...), nil
}

// At is New for nodes at given places.
func At(binary string, places []Place, flags ...string) *Cluster {
	c := &Cluster{}
	var peers []string
	for _, p := range places {
		peers = append(peers, p.Name+"="+p.Between)
	}
	for _, p := range places {
		n := &Node{Name: p.Name, Addr: p.Clients, Data: p.Data, cluster: c, host: p.Host, env: p.Env, flags: flags}
		if n.host == nil {
			n.host = local{}
		}
		n.args = append(append([]string{binary}, n.own(strings.Join(peers, ","))...), flags...)
		n.args = append(n.args, p.Flags...)
		c.nodes = append(c.nodes, n)
	}
	return c
}

// own are the arguments of a node that no other one has.
func (n *Node) own(peers string) []string {
	return []string{"serve", "--node", n.Name, "--listen", n.Addr, "--data", n.Data, "--cluster-peers", peers}
}

// Nodes are all nodes, in the order of their names in New; those that have joined are the last.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes
}

// Start starts nodes at once and waits until they listen for clients. The first start of a
// cluster needs all of them.
func (c *Cluster) Start(nodes ...*Node) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.Launch())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := n.run().AwaitReady(); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Launch starts a node, and does not wait.
func (n *Node) Launch() error {
	cmd := exec.Command(n.args[0], n.args[1:]...)
	cmd.Env = append(os.Environ(), n.env...)
	p, err := n.host.Start(cmd, ready)
	if err != nil {
		return err
	}
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	n.process, n.paused = p, false
	return nil
}

func (n *Node) run() *process.Process {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	return n.process
}

// Kill ends nodes with SIGKILL, all of them before it waits for their ends. Those that do not
// run stay as they are. It returns the names of nodes that had ended by themselves.
func (c *Cluster) Kill(nodes ...*Node) (ended []string) {
	for _, n := range nodes {
		if p := n.run(); p != nil && p.Running() {
			p.Signal(os.Kill)
		}
	}
	for _, n := range nodes {
		p := n.run()
		if p == nil {
			continue
		}
		<-p.Ended()
		if !killed(p) {
			ended = append(ended, n.Name)
		}
	}
	return ended
}

// Pause stops a node with SIGSTOP, and Continue lets it run on.
func (n *Node) Pause() { n.signal(pause, true) }

// Continue is the end of Pause.
func (n *Node) Continue() { n.signal(resume, false) }

func (n *Node) signal(s os.Signal, paused bool) {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	if n.process != nil && n.process.Running() {
		n.process.Signal(s)
		n.paused = paused
	}
}

// Running says whether the node's process is there, paused or not.
func (n *Node) Running() bool {
	p := n.run()
	return p != nil && p.Running()
}

// Works says whether the node runs and is not paused.
func (n *Node) Works() bool {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	return n.process != nil && n.process.Running() && !n.paused
}

// Dial connects to a node, from the host that it runs on.
func (n *Node) Dial(ctx context.Context) (net.Conn, error) { return n.host.Dial(ctx, n.Addr) }

// ID is the process identifier of the node's last start.
func (n *Node) ID() int { return n.run().ID() }

// Output is the last lines of the node's log since its last start.
func (n *Node) Output() string {
	if p := n.run(); p != nil {
		return p.Output()
	}
	return ""
}

// Output is that of all nodes.
func (c *Cluster) Output() string {
	var b strings.Builder
	for _, n := range c.Nodes() {
		fmt.Fprintf(&b, "node %s:\n%s\n", n.Name, n.Output())
	}
	return b.String()
}

// Working are the nodes that run and are not paused.
func (c *Cluster) Working() (nodes []*Node) {
	for _, n := range c.Nodes() {
		if n.Works() {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Dead are the nodes that do not run.
func (c *Cluster) Dead() (nodes []*Node) {
	for _, n := range c.Nodes() {
		if !n.Running() {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// View is what the nodes say of their cluster.
type View struct {
	Leader *Node  // nil: there is none, or it does not answer
	Term   uint64 // the highest that a node has
}

// Look asks a node that works. It takes half a second or a second if one of the others is paused.
func (c *Cluster) Look(ctx context.Context) (v View) { return c.LookFrom(ctx, c.Working()...) }

// LookFrom asks the first of some nodes that knows a leader.
func (c *Cluster) LookFrom(ctx context.Context, nodes ...*Node) (v View) {
	for _, n := range nodes {
		report, err := control.Status(ctx, n.Data)
		if err != nil {
			continue
		}
		for _, line := range report.Nodes {
			v.Term = max(v.Term, line.Term)
		}
		for _, line := range report.Nodes {
			if line.Role == node.Leader && line.Term == v.Term {
				v.Leader = c.node(line.Name)
			}
		}
		if v.Leader != nil {
			return v
		}
	}
	return v
}

func (c *Cluster) node(name string) *Node {
	for _, n := range c.Nodes() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// lookEvery is how long AwaitLeader waits between two looks.
const lookEvery = 10 * time.Millisecond

// AwaitLeader waits until a node leads in a term higher than after.
func (c *Cluster) AwaitLeader(ctx context.Context, after uint64) (View, error) {
	return c.AwaitLeaderOf(ctx, after, c.Working)
}

// AwaitLeaderOf is AwaitLeader for what some nodes say.
func (c *Cluster) AwaitLeaderOf(ctx context.Context, after uint64, nodes func() []*Node) (View, error) {
	for {
		v := c.LookFrom(ctx, nodes()...)
		if v.Leader != nil && v.Term > after {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("no node leads in a term higher than %d: %w; the nodes said\n%s", after, ctx.Err(), c.Output())
		case <-time.After(lookEvery):
		}
	}
}

// Transfer has the leader give the leadership to a node.
func (c *Cluster) Transfer(ctx context.Context, to *Node) error {
	return control.Transfer(ctx, to.Data, to.Name)
}

// ProbeKey is a key that only Probe sets.
const ProbeKey = "harness/probe"

// Probe sets a key through a node: it returns when the leader has committed that.
func (n *Node) Probe(ctx context.Context) error {
	for {
		err := n.probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("a client of node %s: %w; the nodes said\n%s", n.Name, err, n.cluster.Output())
		case <-time.After(lookEvery):
		}
	}
}

// probeTimeout bounds one attempt.
const probeTimeout = 10 * time.Second

func (n *Node) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c, err := client.Dial(ctx, n.Addr, client.WithDialer(n.Dial))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Set(ctx, ProbeKey, []byte(n.Name))
	return err
}

// Other is a node that works and is not the one given, chosen by pick from [0, n); nil: there is none.
func (c *Cluster) Other(than *Node, pick func(n int) int) *Node {
	var others []*Node
	for _, n := range c.Working() {
		if n != than {
			others = append(others, n)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return others[pick(len(others))]
}
