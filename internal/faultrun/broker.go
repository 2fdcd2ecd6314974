package faultrun

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// The broker is a server by itself, or the nodes of a cluster. Clients of a cluster connect to any
// node, each time to another one.

// clusterCounts is what has happened to the nodes of a cluster.
type clusterCounts struct {
	Nodes     int `json:"nodes"`
	Leaders   int `json:"leaders_killed"` // also together with the others
	Followers int `json:"followers_killed"`
	Pauses    int `json:"leaders_paused"` // until another node led
	Transfers int `json:"transfers"`
	Cut       int `json:"leaders_killed_alone"` // while both followers were paused
}

func (c *clusterCounts) String() string {
	return fmt.Sprintf("%d nodes, of which leaders killed %d times, %d times more while both followers were paused, and paused %d times, followers killed %d times, and the leadership transferred %d times",
		c.Nodes, c.Leaders, c.Cut, c.Pauses, c.Followers, c.Transfers)
}

// planBroker chooses the addresses for clients.
func (r *run) planBroker() (err error) {
	if !r.Cluster {
		address, err := process.FreeAddress(r.rng.IntN)
		r.addresses = []string{address}
		return err
	}
	if r.nodes, err = nodes.New(r.Broker, r.Dir, []string{"a", "b", "c"}, r.brokerFlags()...); err != nil {
		return err
	}
	for _, n := range r.nodes.Nodes() {
		r.addresses = append(r.addresses, n.Addr)
	}
	r.summary.Cluster = &clusterCounts{Nodes: len(r.addresses)}
	return nil
}

// startBroker starts the broker, of which nothing runs.
func (r *run) startBroker() (err error) {
	if r.nodes != nil {
		return r.nodes.Start(r.nodes.Nodes()...)
	}
	if r.broker, err = harness.Holdfast(r.Broker, r.brokerFlags()...).Start(r.Dir, r.addresses[0]); err != nil {
		return err
	}
	return r.broker.AwaitReady()
}

func (r *run) brokerFlags() []string {
	return append([]string{"--max-queued-messages", fmt.Sprint(r.queueBound()), "--max-store-bytes", fmt.Sprint(r.storeBytes())}, r.Flags...)
}

func (r *run) killBroker() {
	switch {
	case r.nodes != nil:
		r.nodes.Kill(r.nodes.Nodes()...)
	case r.broker != nil:
		r.broker.Kill()
	}
}

// failBroker has a server by itself, or nodes of a cluster, fail. When it returns all run again, and a
// cluster has a leader.
func (r *run) failBroker(ctx context.Context) error {
	if r.nodes == nil {
		r.summary.BrokerKills++
		r.broker.Kill()
		return r.startBroker()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	before, err := r.nodes.AwaitLeader(ctx, 0)
	if err != nil {
		return err
	}
	leader, follower, counts := before.Leader, r.nodes.Other(before.Leader, r.rng.IntN), r.summary.Cluster
	var dead []*nodes.Node
	after, choice := before.Term, r.rng.IntN(10)
	if counts.Leaders == 0 {
		choice = killLeader
	}
	switch choice {
	case 0:
		dead = r.nodes.Nodes()
		counts.Leaders, counts.Followers = counts.Leaders+1, counts.Followers+len(dead)-1
	case 1:
		dead = []*nodes.Node{follower}
		counts.Followers++
		after--
	case 2, 3: // SIGSTOP; the old leader goes on with requests that it has not read yet
		counts.Pauses++
		leader.Pause()
		defer leader.Continue()
		_, err := r.nodes.AwaitLeader(ctx, before.Term)
		return err
	case 4:
		counts.Transfers++
		if err := r.nodes.Transfer(ctx, follower); err != nil {
			r.Log("transfer to node %s: %v", follower.Name, err)
		}
		_, err := r.nodes.AwaitLeader(ctx, 0)
		return err
	case 5: // the others elect a leader without what only its disk has
		for _, n := range r.nodes.Nodes() {
			if n != leader {
				n.Pause()
				defer n.Continue()
			}
		}
		counts.Cut++
		time.Sleep(time.Duration(r.rng.Int64N(int64(maxCut)))) // clients work
		r.nodes.Kill(leader)
		for _, n := range r.nodes.Nodes() {
			n.Continue()
		}
		if _, err := r.nodes.AwaitLeader(ctx, before.Term); err != nil {
			return err
		}
		return r.nodes.Start(leader)
	default:
		dead = []*nodes.Node{leader}
		counts.Leaders++
	}
	if ended := r.nodes.Kill(dead...); len(ended) > 0 {
		return fmt.Errorf("the nodes %s ended by themselves; the nodes said\n%s", strings.Join(ended, ", "), r.nodes.Output())
	}
	if len(dead) == 1 && r.rng.IntN(2) == 0 { // the others elect a leader without it
		if _, err := r.nodes.AwaitLeader(ctx, after); err != nil {
			return err
		}
	}
	if err := r.nodes.Start(dead...); err != nil {
		return err
	}
	_, err = r.nodes.AwaitLeader(ctx, after)
	return err
}

const (
	killLeader = 9                      // a choice of failBroker
	maxCut     = 800 * time.Millisecond // that a leader has paused followers
)

// through is how clients connect: each time to an address that chance chooses.
func through(addresses []string) client.Option {
	return client.WithDialer(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", addresses[rand.IntN(len(addresses))])
	})
}
