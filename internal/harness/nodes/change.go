package nodes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Program is the path of the program that the node's next start runs, or has run.
func (n *Node) Program() string { return n.args[0] }

// Replace stops a node with SIGTERM, starts it again with another program, and waits until it listens.
func (n *Node) Replace(program string) error {
	if p := n.run(); p != nil && !p.Stop(process.Patience) {
		return fmt.Errorf("node %s has not ended %v after SIGTERM; it said\n%s", n.Name, process.Patience, p.Output())
	}
	n.args[0] = program
	return n.cluster.Start(n)
}

// AwaitEnd waits until a node's process has ended by itself, with this in its last lines.
func (n *Node) AwaitEnd(ctx context.Context, says string) error {
	p := n.run()
	select {
	case <-p.Ended():
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("node %s does not end: %w; it said\n%s", n.Name, ctx.Err(), p.Output())
	}
	if !strings.Contains(p.Output(), says) {
		return fmt.Errorf("node %s does not say %q; it said\n%s", n.Name, says, p.Output())
	}
	return nil
}

// Status is what a node that works says of the cluster.
func (c *Cluster) Status(ctx context.Context) (report control.Report, err error) {
	err = errors.New("no node works")
	for _, n := range c.Working() {
		if report, err = control.Status(ctx, n.Data); err == nil {
			return report, nil
		}
	}
	return report, err
}

// AwaitStatus waits until the status is as wanted.
func (c *Cluster) AwaitStatus(ctx context.Context, what string, is func(control.Report) bool) error {
	for {
		report, err := c.Status(ctx)
		if err == nil && is(report) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; the status is %+v (%v), and the nodes said\n%s", what, ctx.Err(), report, err, c.Output())
		case <-time.After(lookEvery):
		}
	}
}

// Join adds a node to the cluster, with its data below dir, and waits until it has a vote and listens for
// clients. Its program and its flags are those of the first node.
func (c *Cluster) Join(ctx context.Context, dir, name string) (*Node, error) {
	clients, err := process.UnusedAddress()
	if err != nil {
		return nil, err
	}
	between, err := process.UnusedAddress()
	if err != nil {
		return nil, err
	}
	peers := []string{name + "=" + between}
	report, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, line := range report.Nodes {
		peers = append(peers, line.Name+"="+line.Address)
	}
	first := c.Nodes()[0]
	n := &Node{Name: name, Addr: clients, Data: filepath.Join(dir, name), cluster: c, host: local{}, flags: first.flags}
	n.args = append(append([]string{first.Program()}, n.own(strings.Join(peers, ","))...), n.flags...)
	if err := n.Launch(); err != nil {
		return nil, err
	}
	for {
		err := control.Add(ctx, c.Working()[0].Data, name, between)
		if report, failed := c.Status(ctx); failed == nil { // it may have been added although the answer was lost
			if line, known := report.Named(name); known && !line.Learner {
				break
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("node %s: %w (%v); it said\n%s\nand the others\n%s", name, ctx.Err(), err, n.Output(), c.Output())
		case <-time.After(lookEvery):
		}
	}
	c.mu.Lock()
	c.nodes = append(slices.Clone(c.nodes), n)
	c.mu.Unlock()
	return n, n.run().AwaitReady()
}

// Leave removes a node from the cluster, and waits until its process has ended by itself.
func (c *Cluster) Leave(ctx context.Context, n *Node) error {
	c.mu.Lock()
	c.nodes = slices.DeleteFunc(slices.Clone(c.nodes), func(o *Node) bool { return o == n })
	c.mu.Unlock()
	for {
		err := control.Remove(ctx, c.Working()[0].Data, n.Name)
		if report, failed := c.Status(ctx); failed == nil {
			if _, known := report.Named(n.Name); !known {
				break
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s is not removed: %w (%v); it said\n%s\nand the others\n%s", n.Name, ctx.Err(), err, n.Output(), c.Output())
		case <-time.After(lookEvery):
		}
	}
	return n.AwaitEnd(ctx, "this node was removed from its cluster")
}
