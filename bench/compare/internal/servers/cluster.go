package servers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
)

// The names of what is measured of a cluster.
const (
	ThreeNodes   = "Holdfast, 3 nodes"
	ByFollower   = "Holdfast, 3 nodes, by a follower"
	ThreeMembers = "etcd, 3 members"
	ThreeNATS    = "NATS, 3 servers, R3"
	ByFront      = "Holdfast, 3 nodes, through a front"
	FrontItself  = "the front itself"

	FollowerItself = "the follower itself"
	ByProxy        = "Holdfast, 3 nodes, by a bare proxy"
	ProxyItself    = "the bare proxy itself"
)

// patience is how long a cluster may take to get a leader.
const patience = 30 * time.Second

// Node is one node of a cluster.
type Node struct {
	Name, Addr, Dir string
	Process         *process.Process
	arguments       []string
}

// Cluster is three nodes of Holdfast on this machine.
type Cluster struct {
	binary string
	dir    string
	peers  string // as --cluster-peers has them
	Nodes  []*Node
}

// StartCluster starts three nodes, and waits until one leads. more are further flags.
func (l *Laboratory) StartCluster(ctx context.Context, more ...string) (*Cluster, error) {
	return l.StartClusterIn(ctx, nil, more...)
}

// StartClusterIn is StartCluster for nodes of which some have their data in the directories given by name.
func (l *Laboratory) StartClusterIn(ctx context.Context, dirs map[string]string, more ...string) (*Cluster, error) {
	bin, err := l.Build(ctx, l.Repository, holdfastPackage)
	if err != nil {
		return nil, err
	}
	l.started++
	c := &Cluster{binary: bin, dir: filepath.Join(l.Dir, fmt.Sprintf("%02d-cluster", l.started))}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	var peers []string
	for _, name := range []string{"a", "b", "c"} {
		n := &Node{Name: name, Dir: cmp.Or(dirs[name], filepath.Join(c.dir, name))}
		var ports [2]int
		for i := range ports {
			if ports[i], err = process.FreePort(); err != nil {
				return nil, err
			}
		}
		n.Addr = fmt.Sprintf("127.0.0.1:%d", ports[0])
		peers = append(peers, fmt.Sprintf("%s=127.0.0.1:%d", name, ports[1]))
		c.Nodes = append(c.Nodes, n)
	}
	c.peers = strings.Join(peers, ",")
	failures := make(chan error, len(c.Nodes))
	for _, n := range c.Nodes {
		n.arguments = append([]string{bin, "serve", "--node", n.Name, "--cluster-peers", c.peers, "--listen", n.Addr, "--data", n.Dir}, more...)
		go func() { failures <- c.Run(ctx, n) }()
	}
	for range c.Nodes {
		err = errors.Join(err, <-failures)
	}
	if err == nil {
		_, err = c.Leader(ctx)
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Run starts a node, which may have run before.
func (c *Cluster) Run(ctx context.Context, n *Node) (err error) {
	n.Process, _, err = process.Start(ctx, c.dir, "node-"+n.Name, "listening on", n.arguments...)
	return err
}

// Leader waits for one, and returns it.
func (c *Cluster) Leader(ctx context.Context) (*Node, error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, asked := range c.Nodes {
			leader := c.status(ctx, asked).Leader
			for _, n := range c.Nodes {
				if n.Name == leader {
					return n, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("no node leads after %v", patience)
}

// status is what "holdfast cluster status" prints.
type status struct {
	Leader string `json:"leader"`
	Nodes  []struct {
		Name     string `json:"name"`
		Role     string `json:"role"`
		Received int64  `json:"received"`
	} `json:"nodes"`
}

// status is what a node says of the cluster; without a leader if it does not answer.
func (c *Cluster) status(ctx context.Context, asked *Node) (s status) {
	out, _ := exec.CommandContext(ctx, c.binary, "cluster", "status", "--json", "--data", asked.Dir).Output()
	_ = json.Unmarshal(out, &s)
	return s
}

// Received is how many bytes of the leader's data have arrived at a node that gets all of them; false: it
// gets none at the moment, as far as another node knows.
func (c *Cluster) Received(ctx context.Context, n, asked *Node) (bytes int64, receives bool) {
	for _, line := range c.status(ctx, asked).Nodes {
		if line.Name == n.Name && line.Role == "receiving" {
			return line.Received, true
		}
	}
	return 0, false
}

// Others are the nodes but for one.
func (c *Cluster) Others(than *Node) (others []*Node) {
	for _, n := range c.Nodes {
		if n != than {
			others = append(others, n)
		}
	}
	return others
}

// Transfer has the leadership given to a node, and returns when it was.
func (c *Cluster) Transfer(ctx context.Context, to *Node) error {
	out, err := exec.CommandContext(ctx, c.binary, "cluster", "transfer", to.Name, "--data", to.Dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, process.FirstLine(string(out)))
	}
	return err
}

// Kill kills a node.
func (n *Node) Kill() { n.Process.End(syscall.SIGKILL) }

// StartFront starts a front of the cluster.
func (c *Cluster) StartFront(ctx context.Context) (addr string, p *process.Process, err error) {
	port, err := process.FreePort()
	if err != nil {
		return "", nil, err
	}
	addr = fmt.Sprintf("127.0.0.1:%d", port)
	p, _, err = process.Start(ctx, c.dir, "front", "listening on", c.binary, "front", "--listen", addr, "--cluster-peers", c.peers)
	return addr, p, err
}

// StartProxy starts the bare proxy in front of an address.
func (l *Laboratory) StartProxy(ctx context.Context, to string) (addr string, p *process.Process, err error) {
	p, lines, err := l.own(ctx, l.Dir, "proxy", "-to", to)
	return process.AddressIn(lines), p, err
}

// StartNATSes starts three servers of NATS with a bucket on all of them, which acknowledge after an
// fsync. Clients connect to the one that leads the bucket.
func (l *Laboratory) StartNATSes(ctx context.Context) (*Target, error) {
	l.started++
	dir := filepath.Join(l.Dir, fmt.Sprintf("%02d-nats-cluster", l.started))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	bin, err := l.Build(ctx, filepath.Join(l.Repository, "bench/compare"), "./server/nats")
	if err != nil {
		return nil, err
	}
	var ports [3]int
	var routes []string
	for i := range ports {
		if ports[i], err = process.FreePort(); err != nil {
			return nil, err
		}
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	t := &Target{kind: &kind{Name: ThreeNATS, Protocol: SpeaksNATS, Durability: "sync_interval: always, two of three"}}
	addrs := map[string]string{}
	for i, port := range ports {
		name := string(rune('a' + i))
		p, lines, err := process.Start(ctx, dir, "nats-"+name, "listening on", bin, "-data", filepath.Join(dir, name), "-sync-always",
			"-name", name, "-route-port", fmt.Sprint(port), "-routes", strings.Join(routes, ","))
		if err != nil {
			t.Procs.Stop()
			return nil, err
		}
		t.Procs, addrs[name], t.version = append(t.Procs, p), process.AddressIn(lines), printedVersion(lines)
	}
	if t.Addr, err = bucketOf(ctx, addrs); err != nil {
		t.Procs.Stop()
		return nil, err
	}
	return t, nil
}

// bucketOf makes the bucket as soon as the servers have found each other, and is the address of
// the one that leads it.
func bucketOf(ctx context.Context, addrs map[string]string) (addr string, err error) {
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		if err = client.CreateBucket(addrs["a"], len(addrs)); err != nil {
			continue
		}
		var leader string
		if leader, err = client.BucketLeader(addrs["a"]); err == nil {
			return addrs[leader], nil
		}
	}
	return "", fmt.Errorf("the servers of NATS have no bucket after %v: %w", patience, err)
}

// StartEtcds starts three members of etcd.
func (l *Laboratory) StartEtcds(ctx context.Context) (*Target, error) {
	l.started++
	dir := filepath.Join(l.Dir, fmt.Sprintf("%02d-etcds", l.started))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var peers []string
	for _, name := range []string{"a", "b", "c"} {
		port, err := process.FreePort()
		if err != nil {
			return nil, err
		}
		peers = append(peers, fmt.Sprintf("%s=http://127.0.0.1:%d", name, port))
	}
	bin, err := l.Build(ctx, filepath.Join(l.Repository, "bench/compare"), "./server/etcd")
	if err != nil {
		return nil, err
	}
	type started struct {
		p     *process.Process
		lines []string
		err   error
	}
	all := make(chan started)
	for _, peer := range peers {
		name, url, _ := strings.Cut(peer, "=")
		go func() {
			p, lines, err := process.Start(ctx, dir, "etcd-"+name, "listening", bin, "-data", filepath.Join(dir, name), "-name", name, "-peer", url, "-cluster", strings.Join(peers, ","))
			all <- started{p, lines, err}
		}()
	}
	t := &Target{kind: &kind{Name: ThreeMembers, Protocol: SpeaksEtcd, Durability: "after fsync on two of three"}}
	for range peers {
		s := <-all
		if err = errors.Join(err, s.err); s.err == nil {
			t.Procs, t.Addr = append(t.Procs, s.p), process.AddressIn(s.lines)
		}
	}
	if err != nil {
		t.Procs.Stop()
	}
	return t, err
}

// Stop ends all nodes.
func (c *Cluster) Stop() {
	for _, n := range c.Nodes {
		if n.Process != nil {
			n.Process.Stop()
		}
	}
}

// Through is the cluster as clients of a node have it, whose processor time is that of p.
func Through(name string, n *Node, p *process.Process) *Target {
	return &Target{kind: &kind{Name: name, Protocol: speaksMQTT, Durability: "after fsync on two of three"}, Addr: n.Addr, Procs: process.Group{p}}
}
